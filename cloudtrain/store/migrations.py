"""The shape of the database, as numbered steps. Each runs once, in order, and is recorded; none is ever edited."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable


def _m001_runs(db: sqlite3.Connection) -> None:
    db.execute(
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
        """
    )
    db.execute("CREATE INDEX runs_by_created ON runs (created DESC, name)")
    db.execute("CREATE INDEX runs_by_job ON runs (job_name, created DESC)")
    db.execute("CREATE INDEX runs_unfinished ON runs (stage) WHERE stage != 'reported'")


def _m002_journal(db: sqlite3.Connection) -> None:
    db.execute(
        """
        CREATE TABLE journal (
            id    INTEGER PRIMARY KEY,
            name  TEXT NOT NULL,
            stage TEXT NOT NULL,
            at    REAL NOT NULL
        )
        """
    )
    db.execute("CREATE INDEX journal_by_name ON journal (name)")


def _m003_written(db: sqlite3.Connection) -> None:
    db.execute(
        """
        CREATE TABLE written (
            name  TEXT NOT NULL,    -- of the run
            what  TEXT NOT NULL,    -- model, checkpoint, outputs/NAME
            place TEXT NOT NULL,    -- a path or URI
            PRIMARY KEY (name, what)
        )
        """
    )


MIGRATIONS: tuple[Callable[[sqlite3.Connection], None], ...] = (_m001_runs, _m002_journal, _m003_written)
"""In order; the database's `user_version` counts how many were applied."""


def version_of(db: sqlite3.Connection) -> int:
    """How many migrations the database has seen."""
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def migrate(db: sqlite3.Connection) -> None:
    """Apply what is missing, each step in its own transaction. Safe with several processes at once."""
    while version_of(db) < len(MIGRATIONS):
        db.execute("BEGIN IMMEDIATE")
        try:
            version = version_of(db)  # again: another process may have been faster
            if version < len(MIGRATIONS):
                MIGRATIONS[version](db)
                db.execute(f"PRAGMA user_version = {version + 1}")
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:  # a full disk has rolled it back already
                db.execute("ROLLBACK")
            raise
