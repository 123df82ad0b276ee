"""SQLite in WAL mode, safe with several processes at once, and readable without writing a byte."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path

from cloudtrain._lock import ProcessLock
from cloudtrain.errors import TargetError
from cloudtrain.states import RunRef, RunState, RunStatus
from cloudtrain.store import FILE_NAME
from cloudtrain.store.migrations import MIGRATIONS, migrate, version_of

STAGES = ("planned", "uploaded", "sent", "accepted", "reported")
"""How far a submission came. planned: the name is taken. uploaded: the bundle is in place. sent: the request is
about to leave. accepted: the target has the run. reported: the submitter was told its name, so that a later submit
of the same plan means a new run."""


@dataclass(frozen=True)
class Row:
    """One run in the store, as last seen. Times are seconds since the epoch."""

    name: str
    target: str
    place: str | None
    job_name: str
    plan_sha256: str
    submitter: str
    counter: int
    stage: str
    state: str
    reason: str | None
    created: float
    started: float | None
    ended: float | None

    @property
    def ref(self) -> RunRef:
        """The run's reference."""
        return RunRef(self.target, self.place or "", self.name)


_COLUMNS = ", ".join(field.name for field in fields(Row))


class Store:
    """The runs of this user on this machine. Opened by `open_store` (to write) or `read_store` (to look)."""

    def __init__(self, db: sqlite3.Connection, folder: Path) -> None:
        self._db = db
        self._folder = folder

    def close(self) -> None:
        """Close the database; the last writer folds the write-ahead log back in."""
        self._db.close()

    def next_counter(self, target: str, plan_sha256: str, submitter: str) -> int:
        """One more than the earlier runs of the same plan by the same submitter."""
        row = self._db.execute(
            "SELECT MAX(counter) FROM runs WHERE target = ? AND plan_sha256 = ? AND submitter = ?",
            (target, plan_sha256, submitter),
        ).fetchone()
        return (row[0] or 0) + 1

    def reserve(self, row: Row, written: Mapping[str, str] | None = None) -> ProcessLock | None:
        """Take a run name: stage `planned`, and a lock that lives as long as this process.

        `written` is what the run will write, and where; see `written_by`.
        None when another process was faster with that name, or holds it.
        """
        with self._writing():
            if self._db.execute("SELECT 1 FROM runs WHERE name = ?", (row.name,)).fetchone():
                return None
            lock = ProcessLock.take(self.lock_path(row.name))
            if lock is None:
                return None
            values = [getattr(row, field.name) for field in fields(Row)]
            marks = ", ".join("?" * len(values))
            self._db.execute(f"INSERT INTO runs ({_COLUMNS}) VALUES ({marks})", values)
            places = [(row.name, what, place) for what, place in (written or {}).items()]
            self._db.executemany("INSERT INTO written (name, what, place) VALUES (?, ?, ?)", places)
            self._note(row.name, row.stage)
            return lock

    def advance(self, name: str, stage: str, *, place: str | None = None) -> None:
        """Write down that a submission reached a stage. On disk before this returns."""
        assert stage in STAGES
        with self._writing():
            changed = self._db.execute(
                "UPDATE runs SET stage = ?, place = COALESCE(?, place) WHERE name = ?", (stage, place, name)
            )
            assert changed.rowcount == 1, "a submission is forgotten only under its lock"
            self._note(name, stage)

    def forget(self, name: str) -> None:
        """Remove a submission that never reached its target; its name is free again."""
        with self._writing():
            self._db.execute("DELETE FROM runs WHERE name = ?", (name,))
            self._db.execute("DELETE FROM written WHERE name = ?", (name,))
            self._note(name, "forgotten")

    def record(self, name: str, status: RunStatus) -> None:
        """Keep what a backend said about a run."""
        with self._writing():
            self._db.execute(
                "UPDATE runs SET state = ?, reason = ?, started = ?, ended = ? WHERE name = ?",
                (status.state.value, status.reason, status.started, status.ended, name),
            )

    def get(self, name: str) -> Row | None:
        """The run of exactly that name."""
        rows = self._select("WHERE name = ?", (name,))
        return rows[0] if rows else None

    def starting_with(self, prefix: str, *, limit: int = 50) -> list[Row]:
        """Runs whose name starts with `prefix`, newest first."""
        return self._select(
            "WHERE name >= ? AND name < ? ORDER BY created DESC, name LIMIT ?", (prefix, prefix + "\U0010ffff", limit)
        )

    def newest(self, *, limit: int | None = None, states: Sequence[RunState] = (), job: str | None = None) -> list[Row]:
        """Runs, newest first, of some states and of one job if given."""
        conditions, values = ["1"], list[object]()
        if states:
            conditions.append(f"state IN ({', '.join('?' * len(states))})")
            values += [state.value for state in states]
        if job is not None:
            conditions.append("job_name = ?")
            values.append(job)
        where = " AND ".join(conditions)
        values.append(-1 if limit is None else limit)
        return self._select(f"WHERE {where} ORDER BY created DESC, name LIMIT ?", values)

    def unfinished(self) -> list[Row]:
        """Submissions whose submitter was not told the outcome yet: in progress now, or broken off."""
        return self._select("WHERE stage != 'reported' ORDER BY created", ())

    def written_by(self, name: str) -> dict[str, str]:
        """What a run writes, and where: `model`, `checkpoint`, `outputs/NAME` to a path or URI."""
        return dict(self._db.execute("SELECT what, place FROM written WHERE name = ? ORDER BY what", (name,)))

    def journal(self, name: str) -> list[tuple[str, float]]:
        """The stages of a submission with their times."""
        found = self._db.execute("SELECT stage, at FROM journal WHERE name = ? ORDER BY id", (name,))
        return [(stage, at) for stage, at in found]

    def sent_at(self, name: str) -> float:
        """When its request left, seconds since the epoch; the last time, if it left more than once."""
        return max((at for stage, at in self.journal(name) if stage == "sent"), default=0.0)

    def lock_path(self, name: str) -> Path:
        """The file whose lock says that a submission's process is alive."""
        return self._folder / "submitting" / f"{name}.lock"

    def _note(self, name: str, stage: str) -> None:
        self._db.execute("INSERT INTO journal (name, stage, at) VALUES (?, ?, ?)", (name, stage, time.time()))

    def _select(self, tail: str, values: Sequence[object]) -> list[Row]:
        return [Row(*found) for found in self._db.execute(f"SELECT {_COLUMNS} FROM runs {tail}", tuple(values))]

    @contextmanager
    def _writing(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            if self._db.in_transaction:  # a full disk has rolled it back already
                self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")


@contextmanager
def open_store(folder: Path) -> Iterator[Store]:
    """The store in `folder`, made and brought up to date if need be, for reading and writing.

    Raises:
        TargetError: the folder cannot be written, or the store is broken or of a newer cloudtrain.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        db = sqlite3.connect(folder / FILE_NAME, timeout=30, isolation_level=None)
    except (OSError, sqlite3.Error) as error:
        raise TargetError(
            f"the run store in `{folder}` cannot be opened: {error}",
            hint="set CLOUDTRAIN_STATE_DIR to a folder of yours",
        ) from error
    with _closing(db, folder):
        _write_ahead(db, folder)
        db.execute("PRAGMA synchronous = FULL")
        migrate(db)
        yield Store(_checked(db, folder), folder)


@contextmanager
def read_store(folder: Path) -> Iterator[Store | None]:
    """The store for looking only, or None when there is none yet. Nothing is created and nothing is written."""
    file = folder / FILE_NAME
    if not file.is_file():
        yield None
        return
    # Without a write-ahead log nobody else is writing, and `immutable` keeps SQLite from making one.
    mode = "mode=ro" if file.with_name(FILE_NAME + "-wal").exists() else "immutable=1"
    db = sqlite3.connect(f"{file.absolute().as_uri()}?{mode}", uri=True, timeout=30, isolation_level=None)
    with _closing(db, folder):
        if version_of(db) < len(MIGRATIONS):
            yield None  # made by an older cloudtrain, or being made right now
        else:
            yield Store(_checked(db, folder), folder)


def _write_ahead(db: sqlite3.Connection, folder: Path) -> None:
    """One process after the other: SQLite does not wait for the others where a new file changes its mode."""
    if db.execute("PRAGMA journal_mode").fetchone()[0] == "wal":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        db.execute("PRAGMA journal_mode = WAL")
    finally:
        os.close(descriptor)


@contextmanager
def _closing(db: sqlite3.Connection, folder: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.DatabaseError as error:
        raise TargetError(
            f"the run store in `{folder}` cannot be used: {error}",
            hint="free disk space, or move the folder away to start an empty store",
        ) from error
    finally:
        db.close()


def _checked(db: sqlite3.Connection, folder: Path) -> sqlite3.Connection:
    if version_of(db) > len(MIGRATIONS):
        raise TargetError(
            f"the run store in `{folder}` was made by a newer cloudtrain", hint="pip install --upgrade cloudtrain"
        )
    return db
