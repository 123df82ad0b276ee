"""The schema of the database as numbered steps. Each step runs once, in order, and is recorded. Existing steps are
never edited."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from cloudtrain.errors import StoreError
from cloudtrain.lifecycle.records import Identity, has_store, location_in, salt_of_new_store, unusable
from cloudtrain.lifecycle.store import Store, translate_errors
from cloudtrain.system.files import KEPT, STORE_FILE
from cloudtrain.system.private import close_file, make_state_folder

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (  # 001 runs
        """
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
        )
        """,
        "CREATE INDEX runs_by_created ON runs (created DESC, name)",
        "CREATE INDEX runs_by_job ON runs (job_name, created DESC)",
        "CREATE INDEX runs_unfinished ON runs (stage) WHERE stage != 'reported'",
    ),
    (  # 002 journal
        """
        CREATE TABLE journal (
            id    INTEGER PRIMARY KEY,
            name  TEXT NOT NULL,
            stage TEXT NOT NULL,
            at    REAL NOT NULL
        )
        """,
        "CREATE INDEX journal_by_name ON journal (name)",
    ),
    (  # 003 written
        """
        CREATE TABLE written (
            name  TEXT NOT NULL,    -- of the run
            what  TEXT NOT NULL,    -- model, checkpoint, outputs/NAME
            place TEXT NOT NULL,    -- a path or URI
            PRIMARY KEY (name, what)
        )
        """,
    ),
    (  # 004 order and identity
        # Order runs by `seq`, which does not depend on a clock. Add columns for the store that submitted a run, and for
        # the boot in which a stage was reached.
        #
        # Existing runs keep their keys, which are hashes without the job's name, so they never equal the key of a new
        # run. Existing runs are still listed, and their interrupted submissions are still recovered.
        "ALTER TABLE runs RENAME TO runs_before",
        """
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
        )
        """,
        """
        INSERT INTO runs (seq, name, target, place, job_name, key, submitter, store, counter, stage, state, reason,
                          created, started, ended)
        SELECT rowid, name, target, place, job_name, plan_sha256, submitter, '', counter, stage, state, reason,
               created, started, ended FROM runs_before
        """,
        "DROP TABLE runs_before",
        "CREATE INDEX runs_by_job ON runs (job_name, seq DESC)",
        "CREATE INDEX runs_by_key ON runs (key, submitter, counter)",
        "CREATE INDEX runs_unfinished ON runs (stage) WHERE stage != 'reported'",
        "ALTER TABLE journal ADD COLUMN boot TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE journal ADD COLUMN uptime REAL NOT NULL DEFAULT 0",
        "CREATE TABLE identity (salt TEXT NOT NULL, location TEXT NOT NULL)",
    ),
    (  # 005 origins and removal
        # Add three tables: the folder and terminal of each submission (for `last`), the labels of each run (for
        # searches), and the names of removed runs, which are never used again.
        """
        CREATE TABLE origins (
            name     TEXT PRIMARY KEY,  -- of the run
            folder   TEXT NOT NULL,     -- the working directory of the submit
            project  TEXT NOT NULL,     -- the folder of the job's file, or ''
            terminal TEXT NOT NULL      -- the session of the submit, or ''
        )
        """,
        "CREATE INDEX origins_by_folder ON origins (folder)",
        "CREATE INDEX origins_by_project ON origins (project)",
        "CREATE INDEX origins_by_terminal ON origins (terminal)",
        """
        CREATE TABLE labels (
            name  TEXT NOT NULL,        -- of the run
            kind  TEXT NOT NULL,        -- tag, hyperparameter
            key   TEXT NOT NULL,
            value TEXT NOT NULL,
            PRIMARY KEY (name, kind, key)
        )
        """,
        "CREATE INDEX labels_by_value ON labels (kind, key, value)",
        """
        CREATE TABLE removed (
            name      TEXT PRIMARY KEY,
            key       TEXT NOT NULL,
            submitter TEXT NOT NULL,
            counter   INTEGER NOT NULL
        )
        """,
        "CREATE INDEX removed_by_key ON removed (key, submitter, counter)",
    ),
    (  # 006 history
        # Add tables for the data that was sent for each run, without secrets, and for the run's cost. Existing runs get
        # no rows in these tables.
        """
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
        )
        """,
        "CREATE INDEX sent_by_bundle ON sent (bundle)",
        """
        CREATE TABLE bundles (
            sha256 TEXT PRIMARY KEY,        -- hash of the code
            files  BLOB NOT NULL            -- path, size, executable, hash and link target of each: zlib of JSON
        )
        """,
        """
        CREATE TABLE money (
            name             TEXT PRIMARY KEY,  -- of the run
            hourly           REAL,              -- list price of all instances, when it was submitted
            billable_seconds REAL,              -- as the target billed them
            cost             REAL               -- list price of all instances for these
        )
        """,
    ),
)
"""The SQL of each migration, in order. The database's `user_version` is the number of applied migrations."""


def version_of(db: sqlite3.Connection) -> int:
    """Return how many migrations were applied to the database."""
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def migrate(db: sqlite3.Connection) -> None:
    """Apply the missing migrations, each in its own transaction. Safe with several processes at once."""
    while version_of(db) < len(MIGRATIONS):
        db.execute("BEGIN IMMEDIATE")
        try:
            version = version_of(db)  # check again: another process may have been faster
            if version < len(MIGRATIONS):
                for statement in MIGRATIONS[version]:
                    db.execute(statement)
                db.execute(f"PRAGMA user_version = {version + 1}")
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:  # a full disk has rolled the transaction back already
                db.execute("ROLLBACK")
            raise


# Functions that open the run store, for writing or only for reading.


@contextmanager
def open_store(folder: Path) -> Iterator[Store]:
    """Open the store in `folder` for reading and writing. Creates or migrates it if needed.

    Raises:
        StoreError: the folder cannot be written, the store is damaged, or it was created by a newer cloudtrain.
    """
    try:
        salt = salt_of_new_store(folder)  # before the folder is created, as in a dry run
        make_state_folder(folder, ours=KEPT)
        close_file(folder / STORE_FILE)  # SQLite gives the files beside the database the mode of the database
        db = sqlite3.connect(folder / STORE_FILE, timeout=30, isolation_level=None)
    except (OSError, sqlite3.Error) as error:
        raise unusable(folder, error) from error
    with translate_errors(folder), closing(db):
        _write_ahead(db, folder)
        db.execute("PRAGMA synchronous = FULL")
        migrate(_check_version(db, folder))
        yield Store(db, folder, _identify(db, folder, salt))


@contextmanager
def read_store(folder: Path) -> Iterator[Store | None]:
    """Open the store for reading without creating or writing anything. Yield None if no store exists.

    Raises:
        StoreError: the store exists but cannot be read.
    """
    file = folder / STORE_FILE
    if not has_store(folder):
        yield None
        return
    with translate_errors(folder), closing(_open_to_read(file)) as opened:
        if version_of(_check_version(opened, folder)) == 0:
            yield None  # empty, or just being created
            return
        with closing(_up_to_date(opened)) as db:
            yield Store(db, folder, _identity_at(db, location_in(folder), salt_of_new_store(folder)).salt)


def _open_to_read(file: Path) -> sqlite3.Connection:
    """Open the database for reading.

    If there is no write-ahead log, no process is writing to the database, and it is opened with `immutable`, so that
    SQLite creates no log. If there is a log, SQLite needs an index file beside it. If SQLite cannot create the index,
    for example on a read-only disk, the log is ignored.
    """

    def connect(mode: str) -> sqlite3.Connection:
        return sqlite3.connect(f"{file.absolute().as_uri()}?{mode}", uri=True, timeout=30, isolation_level=None)

    if not file.with_name(STORE_FILE + "-wal").exists():
        return connect("immutable=1")
    db = connect("mode=ro")
    try:
        version_of(db)
    except sqlite3.OperationalError:
        db.close()
        return connect("immutable=1")
    return db


def _up_to_date(db: sqlite3.Connection) -> sqlite3.Connection:
    """Return the database, or a migrated copy in memory if an earlier version made the database."""
    if version_of(db) == len(MIGRATIONS):
        return db
    copy = sqlite3.connect(":memory:", isolation_level=None)
    db.backup(copy)
    migrate(copy)
    return copy


def _identify(db: sqlite3.Connection, folder: Path, salt_if_new: str) -> str:
    """Return the salt of this store, and record it with the store's current location. `salt_if_new` becomes the salt of
    a store that has none yet."""
    location = location_in(folder)
    if _identity_at(db, location, salt_if_new) != _recorded_identity(db):
        db.execute("BEGIN IMMEDIATE")
        current = _identity_at(db, location, salt_if_new)  # check again: another process may have been faster
        db.execute("DELETE FROM identity")
        db.execute("INSERT INTO identity (salt, location) VALUES (?, ?)", current)
        db.execute("COMMIT")
    return _identity_at(db, location, salt_if_new).salt


def _identity_at(db: sqlite3.Connection, location: str, salt_if_new: str) -> Identity:
    recorded = _recorded_identity(db)
    return Identity(salt_if_new, location) if recorded is None else recorded.at(location)


def _recorded_identity(db: sqlite3.Connection) -> Identity | None:
    row = db.execute("SELECT salt, location FROM identity").fetchone()
    return None if row is None else Identity(*row)


def _write_ahead(db: sqlite3.Connection, folder: Path) -> None:
    """Switch the database to write-ahead logging. A lock on `folder` lets only one process do this at a time, because
    SQLite does not wait for other processes during the switch."""
    if db.execute("PRAGMA journal_mode").fetchone()[0] == "wal":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        db.execute("PRAGMA journal_mode = WAL")
    finally:
        os.close(descriptor)


def _check_version(db: sqlite3.Connection, folder: Path) -> sqlite3.Connection:
    if version_of(db) > len(MIGRATIONS):
        raise StoreError(
            f"the run store in `{folder}` was made by a newer cloudtrain",
            hint="pip install --upgrade cloudtrain",
            code="CT962",
        )
    return db
