"""The schema of the database, which the steps in `migrations.sql` build, and the functions that
open it."""

from __future__ import annotations

import fcntl
import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from cloudtrain.errors import StoreError
from cloudtrain.lifecycle.store.records import (
    has_store,
    location_in,
    salt_of_moved_store,
    salt_of_new_store,
    unusable,
)
from cloudtrain.lifecycle.store.store import Store, transaction, translate_errors
from cloudtrain.system.files import KEPT, STORE_FILE
from cloudtrain.system.private import close_file, make_state_folder

_SCRIPT = Path(__file__).with_name("migrations.sql").read_text("utf-8")
_STEPS = re.split("(?m)^-- Step .*$", _SCRIPT)[1:]
MIGRATIONS = tuple(tuple(filter(str.strip, step.split(";\n"))) for step in _STEPS)
"""The SQL statements of each migration, in order. The database's `user_version` is the number of
applied migrations."""


def version_of(db: sqlite3.Connection) -> int:
    """Return how many migrations were applied to the database."""
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def migrate(db: sqlite3.Connection) -> None:
    """Apply the missing migrations, each in its own transaction. Safe with several processes at
    once."""
    while version_of(db) < len(MIGRATIONS):
        with transaction(db):
            version = version_of(db)  # check again: another process may have been faster
            if version < len(MIGRATIONS):
                for statement in MIGRATIONS[version]:
                    db.execute(statement)
                db.execute(f"PRAGMA user_version = {version + 1}")


@contextmanager
def open_store(folder: Path) -> Iterator[Store]:
    """Open the store in `folder` for reading and writing. Creates or migrates it if needed.

    Raises:
        StoreError: the folder cannot be written, the store is damaged, or it was created by a newer
            cloudtrain.
    """
    try:
        salt = salt_of_new_store(folder)  # before the folder is created, as in a dry run
        make_state_folder(folder, ours=KEPT)
        # SQLite gives the files beside the database the mode of the database
        close_file(folder / STORE_FILE)
        with translate_errors(folder):
            _detach(folder)
        db = sqlite3.connect(folder / STORE_FILE, timeout=30, isolation_level=None)
    except (OSError, sqlite3.Error) as error:
        raise unusable(folder, error) from error
    with translate_errors(folder), closing(db):
        if db.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            # SQLite does not wait for other processes during the switch to write-ahead logging
            with _locked(folder):
                db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        _check_version(db, folder)
        migrate(db)
        yield Store(db, folder, _identify(db, folder, salt))


@contextmanager
def read_store(folder: Path) -> Iterator[Store]:
    """Open the store for reading without creating or writing anything. If no store exists, yield
    one without runs.

    Raises:
        StoreError: the store exists but cannot be read.
    """
    with translate_errors(folder), closing(_open_to_read(folder)) as opened:
        _check_version(opened, folder)
        with closing(_up_to_date(opened)) as db:
            salt = _salt_at(db, location_in(folder), salt_of_new_store(folder))
            yield Store(db, folder, salt)


def _open_to_read(folder: Path) -> sqlite3.Connection:
    """Open the database for reading; without one, an empty one in memory.

    If there is no write-ahead log, no process is writing to the database, and it is opened with
    `immutable`, so that SQLite creates no log. If there is a log, SQLite needs an index file beside
    it. If SQLite cannot create the index, for example on a read-only disk, the log is ignored.
    """
    file = folder / STORE_FILE
    if not has_store(folder):
        return sqlite3.connect(":memory:", isolation_level=None)

    def connect(mode: str) -> sqlite3.Connection:
        address = f"{file.absolute().as_uri()}?{mode}"
        return sqlite3.connect(address, uri=True, timeout=30, isolation_level=None)

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
    """Return the database itself if it has every migration, else a migrated copy in memory."""
    if version_of(db) == len(MIGRATIONS):
        return db
    copy = sqlite3.connect(":memory:", isolation_level=None)
    db.backup(copy)
    migrate(copy)
    return copy


def _detach(folder: Path) -> None:
    """Give a copy that consists of hard links (`cp -al`) a database of its own. What it writes into
    the shared one would be written into the original's too, and damage it: SQLite takes two paths
    for two databases."""
    file = folder / STORE_FILE
    if file.stat().st_nlink == 1:
        return
    with _locked(folder), closing(_open_to_read(folder)) as shared:
        _check_version(shared, folder)
        with closing(_up_to_date(shared)) as db:
            here = location_in(folder)
            if _is_at(db, here):
                return  # the original
            own_file = file.with_name(f"{STORE_FILE}.own")
            close_file(own_file)
            salt = _salt_at(db, here, "")  # that of a dry run until now
            with closing(sqlite3.connect(own_file)) as own:
                db.backup(own)
                own.execute(
                    "UPDATE identity SET salt = ?, location = ?",
                    (salt, location_in(folder, own_file)),
                )
                own.commit()
        for ending in ("-wal", "-shm"):
            file.with_name(STORE_FILE + ending).unlink(missing_ok=True)
        own_file.replace(file)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a lock on the folder, for what only one process may do at a time."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _identify(db: sqlite3.Connection, folder: Path, salt_if_new: str) -> str:
    """Return the salt of this store, and record it with the store's current location. `salt_if_new`
    becomes the salt of a store that has none yet."""
    location = location_in(folder)
    if not _is_at(db, location):
        with transaction(db):
            salt = _salt_at(db, location, salt_if_new)  # another process may have been faster
            db.execute("DELETE FROM identity")
            db.execute("INSERT INTO identity (salt, location) VALUES (?, ?)", (salt, location))
    return _salt_at(db, location, salt_if_new)


def _is_at(db: sqlite3.Connection, location: str) -> bool:
    """Return whether the store was created or last written at `location`."""
    return (
        db.execute("SELECT 1 FROM identity WHERE location = ?", (location,)).fetchone() is not None
    )


def _salt_at(db: sqlite3.Connection, location: str, salt_if_new: str) -> str:
    """Return the salt of the store at `location`: the recorded one, or another if the store was
    copied or moved."""
    row = db.execute("SELECT salt, location FROM identity").fetchone()
    if row is None:
        return salt_if_new
    salt, recorded = row
    if recorded != location:
        return salt_of_moved_store(salt, location)
    return str(salt)


def _check_version(db: sqlite3.Connection, folder: Path) -> None:
    if version_of(db) > len(MIGRATIONS):
        raise StoreError(
            f"the run store in `{folder}` was made by a newer cloudtrain",
            hint="pip install --upgrade cloudtrain",
            code="CT962",
        )
