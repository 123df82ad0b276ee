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

-- Step 9: outlays of earlier runs
-- Existing runs have none, so the cap for 24 hours missed them. Their time limit is not in a column: a day at the list
-- price is counted until their bill is known. What a sweep can still start, and what has no price, is unknown.
INSERT OR IGNORE INTO outlays (name, target, at, most, pool, hourly, sweep)
SELECT runs.name, target, created,
       CASE WHEN key GLOB 'sweep:*' OR key GLOB 'tuner:*' THEN NULL ELSE hourly * 24 END,
       0, ifnull(hourly, 0), ''
FROM runs LEFT JOIN money USING (name)
WHERE created > CAST(strftime('%s', 'now') AS REAL) - 86400
   OR state NOT IN ('succeeded', 'failed', 'stopped', 'lost');

-- Step 10: main metrics
-- Keep the newest and the best value of each run's main metric. Existing runs have none.
ALTER TABLE runs ADD COLUMN main TEXT;  -- JSON

-- Step 11: notifications
-- Record each event that a person wants to be told of, in the transaction that records its cause, once `notifying` has a
-- row. What happened before it was on is no event.
CREATE TABLE notifying (
    since REAL NOT NULL         -- when it was turned on, in seconds since the epoch
);
CREATE TABLE outbox (
    run     TEXT NOT NULL,
    event   TEXT NOT NULL,
    attempt INTEGER NOT NULL,   -- from 1: a sweep that was continued can end again
    at      REAL NOT NULL,      -- when it was recorded, in seconds since the epoch
    moment  REAL,               -- when it happened, or NULL if unknown
    reason  TEXT,
    is_done INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (run, event, attempt)
);
CREATE INDEX outbox_to_send ON outbox (at) WHERE is_done = 0;
CREATE TABLE deliveries (
    run     TEXT NOT NULL,
    event   TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    channel TEXT NOT NULL,
    tries   INTEGER NOT NULL,
    error   TEXT,               -- of the last try, or NULL if it was sent
    PRIMARY KEY (run, event, attempt, channel)
);
CREATE VIEW notified AS
SELECT name, since FROM runs, notifying WHERE key NOT GLOB 'trial:*' AND job_name NOT LIKE '%-rehearsal';
CREATE TRIGGER run_started AFTER UPDATE OF state, started ON runs
WHEN new.state NOT IN ('pending', 'queued', 'preparing')
    AND EXISTS (SELECT 1 FROM notified WHERE name = new.name AND since <= new.started)
    AND NOT EXISTS (SELECT 1 FROM outbox WHERE run = new.name AND event = 'started')
BEGIN
    INSERT INTO outbox (run, event, attempt, at, moment)
    VALUES (new.name, 'started', 1, (julianday('now') - 2440587.5) * 86400, new.started); END;
CREATE TRIGGER run_ended AFTER UPDATE OF state ON runs
WHEN new.state IN ('succeeded', 'failed', 'stopped', 'lost') AND new.state != old.state
    AND EXISTS (SELECT 1 FROM notified WHERE name = new.name AND (new.ended IS NULL OR since <= new.ended))
    AND NOT EXISTS (SELECT 1 FROM outbox WHERE run = new.name AND event = new.state AND moment IS new.ended)
BEGIN
    INSERT INTO outbox (run, event, attempt, at, moment, reason)
    SELECT new.name, new.state, 1 + count(*), (julianday('now') - 2440587.5) * 86400, new.ended, new.reason
    FROM outbox WHERE run = new.name AND event = new.state; END;

-- Step 12: changes and annotations
-- Number the changes of runs, so that a reader can ask for those since its last look. Keep what people add to a run
-- after its submission. Existing runs have the revision 0.
ALTER TABLE runs ADD COLUMN revision INTEGER NOT NULL DEFAULT 0;
CREATE INDEX runs_by_revision ON runs (revision);
CREATE TABLE revisions (newest INTEGER NOT NULL);
INSERT INTO revisions (newest) VALUES (0);
CREATE TRIGGER run_added AFTER INSERT ON runs BEGIN
    UPDATE revisions SET newest = newest + 1; UPDATE runs SET revision = (SELECT newest FROM revisions)
    WHERE seq = new.seq; END;
CREATE TRIGGER run_changed AFTER UPDATE ON runs
WHEN (old.key, old.stage, old.state, old.reason, old.started, old.ended, old.metrics, old.main)
    IS NOT (new.key, new.stage, new.state, new.reason, new.started, new.ended, new.metrics, new.main) BEGIN
    UPDATE revisions SET newest = newest + 1; UPDATE runs SET revision = (SELECT newest FROM revisions)
    WHERE seq = new.seq; END;
CREATE TRIGGER run_removed AFTER DELETE ON runs BEGIN UPDATE revisions SET newest = newest + 1; END;
CREATE TABLE annotations (
    name   TEXT PRIMARY KEY,    -- of the run
    note   TEXT NOT NULL,
    pinned INTEGER NOT NULL
);
CREATE TRIGGER run_annotated AFTER INSERT ON annotations BEGIN
    UPDATE revisions SET newest = newest + 1; UPDATE runs SET revision = (SELECT newest FROM revisions)
    WHERE name = new.name; END;

-- Step 13: plans
-- Keep the hash of each plan that was sent or waits for an approval, and how many paid runs it is at a time. Of existing
-- runs only this number is known.
CREATE TABLE plans (
    sha256  TEXT PRIMARY KEY,
    run     TEXT,               -- the run that it was sent as, or NULL
    runs    REAL NOT NULL DEFAULT 0,
    shown   BLOB,               -- the plan that a person is asked about
    asked   REAL,               -- when it was asked about, in seconds since the epoch
    until   REAL                -- until when it is approved, or NULL
);
CREATE INDEX plans_by_run ON plans (run);
INSERT INTO plans (sha256, run, runs)
SELECT 'run:' || name, name, 1 FROM outlays WHERE sweep = '' AND (most IS NULL OR most > 0);
