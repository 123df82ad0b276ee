-- The schema of the run store as numbered steps. Each step runs once, in order, and is recorded. Existing steps are
-- never edited. A statement ends with a semicolon at the end of a line.

-- Step 1: runs
CREATE TABLE runs (
    name         TEXT PRIMARY KEY,
    target       TEXT NOT NULL,
    place        TEXT,              -- region, workspace or host; known once the run is accepted
    job_name     TEXT NOT NULL,
    plan_sha256  TEXT NOT NULL,     -- of the plan compiled without a run name
    submitter    TEXT NOT NULL,     -- user@host
    counter      INTEGER NOT NULL,
    stage        TEXT NOT NULL,     -- how far the submission came
    state        TEXT NOT NULL,     -- of the run, as last seen
    reason       TEXT,
    created      REAL NOT NULL,     -- seconds since the epoch
    started      REAL,
    ended        REAL,
    UNIQUE (target, plan_sha256, submitter, counter)
);
CREATE INDEX runs_by_created ON runs (created DESC, name);
CREATE INDEX runs_by_job ON runs (job_name, created DESC);
CREATE INDEX runs_unfinished ON runs (stage) WHERE stage != 'reported';

-- Step 2: journal
CREATE TABLE journal (
    id    INTEGER PRIMARY KEY,
    name  TEXT NOT NULL,
    stage TEXT NOT NULL,
    at    REAL NOT NULL
);
CREATE INDEX journal_by_name ON journal (name);

-- Step 3: written
CREATE TABLE written (
    name  TEXT NOT NULL,    -- of the run
    what  TEXT NOT NULL,    -- model, checkpoint, outputs/NAME
    place TEXT NOT NULL,    -- a path or URI
    PRIMARY KEY (name, what)
);

-- Step 4: order and identity
-- Order runs by `seq`, which does not depend on a clock. Add columns for the store that submitted a run, and for the
-- boot in which a stage was reached.
--
-- Existing runs keep their keys, which are hashes without the job's name, so they never equal the key of a new run.
-- Existing runs are still listed, and their interrupted submissions are still recovered.
ALTER TABLE runs RENAME TO runs_before;
CREATE TABLE runs (
    seq       INTEGER PRIMARY KEY,  -- the order in which names were taken
    name      TEXT NOT NULL UNIQUE,
    target    TEXT NOT NULL,
    place     TEXT,                 -- region, workspace or host
    job_name  TEXT NOT NULL,
    key       TEXT NOT NULL,        -- hash of target, place, job name and of the plan without a run name
    submitter TEXT NOT NULL,        -- user@host
    store     TEXT NOT NULL,        -- salt of the store that submitted it
    counter   INTEGER NOT NULL,
    stage     TEXT NOT NULL,        -- how far the submission came
    state     TEXT NOT NULL,        -- of the run, as last seen
    reason    TEXT,
    created   REAL NOT NULL,        -- seconds since the epoch
    started   REAL,
    ended     REAL
);
INSERT INTO runs (seq, name, target, place, job_name, key, submitter, store, counter, stage, state, reason,
                  created, started, ended)
SELECT rowid, name, target, place, job_name, plan_sha256, submitter, '', counter, stage, state, reason,
       created, started, ended FROM runs_before;
DROP TABLE runs_before;
CREATE INDEX runs_by_job ON runs (job_name, seq DESC);
CREATE INDEX runs_by_key ON runs (key, submitter, counter);
CREATE INDEX runs_unfinished ON runs (stage) WHERE stage != 'reported';
ALTER TABLE journal ADD COLUMN boot TEXT NOT NULL DEFAULT '';
ALTER TABLE journal ADD COLUMN uptime REAL NOT NULL DEFAULT 0;
CREATE TABLE identity (salt TEXT NOT NULL, location TEXT NOT NULL);

-- Step 5: origins and removal
-- Add three tables: the folder and terminal of each submission (for `last`), the labels of each run (for searches), and
-- the names of removed runs, which are never used again.
CREATE TABLE origins (
    name     TEXT PRIMARY KEY,  -- of the run
    folder   TEXT NOT NULL,     -- the working directory of the submit
    project  TEXT NOT NULL,     -- the folder of the job's file, or ''
    terminal TEXT NOT NULL      -- the session of the submit, or ''
);
CREATE INDEX origins_by_folder ON origins (folder);
CREATE INDEX origins_by_project ON origins (project);
CREATE INDEX origins_by_terminal ON origins (terminal);
CREATE TABLE labels (
    name  TEXT NOT NULL,        -- of the run
    kind  TEXT NOT NULL,        -- tag, hyperparameter
    key   TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (name, kind, key)
);
CREATE INDEX labels_by_value ON labels (kind, key, value);
CREATE TABLE removed (
    name      TEXT PRIMARY KEY,
    key       TEXT NOT NULL,
    submitter TEXT NOT NULL,
    counter   INTEGER NOT NULL
);
CREATE INDEX removed_by_key ON removed (key, submitter, counter);

-- Step 6: history
-- Add tables for the data that was sent for each run, without secrets, and for the run's cost. Existing runs get no rows
-- in these tables.
CREATE TABLE sent (
    name       TEXT PRIMARY KEY,    -- of the run
    version    TEXT NOT NULL,       -- cloudtrain's
    file       TEXT,                -- the path of the job's file
    bundle     TEXT NOT NULL,       -- hash of the code
    commit_id  TEXT,                -- of the code's git repository
    branch     TEXT,
    dirty      INTEGER,             -- whether the code differed from the commit
    difference TEXT,                -- hash of what differed
    content    BLOB NOT NULL        -- job, overrides, settings and plan: zlib of JSON
);
CREATE INDEX sent_by_bundle ON sent (bundle);
CREATE TABLE bundles (
    sha256 TEXT PRIMARY KEY,        -- hash of the code
    files  BLOB NOT NULL            -- path, size, executable, hash and link target of each: zlib of JSON
);
CREATE TABLE money (
    name             TEXT PRIMARY KEY,  -- of the run
    hourly           REAL,              -- list price of all instances, when it was submitted
    billable_seconds REAL,              -- as the target billed them
    cost             REAL               -- list price of all instances for these
);

-- Step 7: metrics
-- Keep the metrics of each run's last known status. Existing runs have none.
ALTER TABLE runs ADD COLUMN metrics TEXT;  -- JSON

-- Step 8: outlays
-- Keep the most that each submission can spend. A cap adds up those of 24 hours, so the row of a removed run stays.
-- Existing runs get no row.
CREATE TABLE outlays (
    name   TEXT PRIMARY KEY,  -- of the run
    target TEXT NOT NULL,
    at     REAL NOT NULL,     -- when it was sent, in seconds since the epoch
    most   REAL,              -- US dollars at list prices, or NULL if unknown
    pool   REAL NOT NULL,     -- of it after the end of the run, which no bill contains
    hourly REAL NOT NULL,     -- US dollars an hour at the prices of caps, or 0
    sweep  TEXT NOT NULL      -- the sweep on this machine whose trial it is, or ''
);
CREATE INDEX outlays_by_sweep ON outlays (sweep);
