"""The run store: several processes at once, migrations, and looking without writing."""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from itertools import chain
from pathlib import Path

import pytest

from cloudtrain.errors import StoreError
from cloudtrain.lifecycle.store.records import salt_of_new_store
from cloudtrain.lifecycle.store.schema import (
    MIGRATIONS,
    migrate,
    open_store,
    read_store,
    version_of,
)
from cloudtrain.lifecycle.store.store import Store
from cloudtrain.plans.progress import RunStatus
from cloudtrain.plans.states import RunState
from cloudtrain.system.files import STORE_FILE
from cloudtrain.system.processes import ProcessLock
from tests.deadlines import DEADLINE
from tests.lifecycle.store.records import KEY, record


def snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    """Name to size and modification time of everything in a folder."""
    return {str(p): (p.stat().st_size, p.stat().st_mtime_ns) for p in sorted(folder.rglob("*"))}


def test_a_row_comes_back_as_it_went_in(state_dir: Path) -> None:
    """What is reserved can be read, and the journal has its stage."""
    with open_store(state_dir) as store:
        lock = store.reserve(record())
        assert lock is not None
        assert store.get("job-1-1") == record(seq=1)
        assert [stage for stage, _ in store.journal("job-1-1")] == ["planned"]
        lock.release(remove=True)


def test_a_name_is_reserved_once(state_dir: Path) -> None:
    """The second reservation of a name fails, also after the first process let go of its lock."""
    with open_store(state_dir) as store:
        lock = store.reserve(record())
        assert lock is not None
        assert store.reserve(record()) is None
        lock.release(remove=True)
        assert store.reserve(record()) is None


def test_forgotten_names_are_free(state_dir: Path) -> None:
    """After forgetting, the counter does not skip and the name can be taken again."""
    with open_store(state_dir) as store:
        lock = store.reserve(record())
        assert lock is not None
        lock.release(remove=True)
        store.forget("job-1-1")
        assert store.get("job-1-1") is None
        assert store.next_counter(KEY, "me@here") == 1
        assert store.reserve(record()) is not None


def test_counters_count_per_plan_and_submitter(state_dir: Path) -> None:
    """Another job or submitter starts at 1."""
    with open_store(state_dir) as store:
        for counter in (1, 2):
            store.reserve(record(f"job-1-{counter}", counter))
        assert store.next_counter(KEY, "me@here") == 3
        assert store.next_counter("cd" * 32, "me@here") == 1
        assert store.next_counter(KEY, "you@here") == 1


def test_newest_filters_and_orders(state_dir: Path) -> None:
    """Newest first; by state and by job."""
    with open_store(state_dir) as store:
        for counter in range(1, 6):
            store.reserve(record(f"job-1-{counter}", counter))
        store.reserve(record("other-1-1", 9, job_name="other"))
        store.record(
            "job-1-2", RunStatus(RunState.FAILED, reason="it broke", started=1.0, ended=2.0)
        )
        assert [found.name for found in store.newest(limit=2)] == ["other-1-1", "job-1-5"]
        assert [found.name for found in store.newest(states=[RunState.FAILED])] == ["job-1-2"]
        assert [found.name for found in store.newest(job="other")] == ["other-1-1"]
        failed = store.get("job-1-2")
        assert failed is not None
        assert (failed.state, failed.reason, failed.started, failed.ended) == (
            "failed",
            "it broke",
            1.0,
            2.0,
        )


def test_prefixes_match_beginnings_only(state_dir: Path) -> None:
    """`job-1` finds `job-1-1` and `job-10`, not `a-job-1`; wildcards of SQL are ordinary letters."""
    with open_store(state_dir) as store:
        for counter, name in enumerate(["job-1-1", "job-10", "a-job-1", "jobx1"], 1):
            store.reserve(record(name, counter))
        assert {found.name for found in store.starting_with("job-1")} == {"job-1-1", "job-10"}
        assert store.starting_with("job_1") == []
        assert store.starting_with("%") == []


def test_reading_writes_nothing(state_dir: Path) -> None:
    """Looking at the store leaves every file as it was, and makes none."""
    with read_store(state_dir) as store:
        assert (store.newest(), store.next_counter(KEY, "me@here"), store.salt) == (
            [],
            1,
            salt_of_new_store(state_dir),
        )
    assert not state_dir.exists()
    with open_store(state_dir) as store:
        store.reserve(record())
    before = snapshot(state_dir)
    with read_store(state_dir) as store:
        assert store.next_counter(KEY, "me@here") == 2
    assert snapshot(state_dir) == before


def test_readers_see_an_open_writers_rows(state_dir: Path) -> None:
    """While another connection keeps the store open for writing, a reader sees what it committed."""
    with open_store(state_dir) as writer:
        writer.reserve(record())
        with read_store(state_dir) as reader:
            assert reader.get("job-1-1") is not None


def test_every_old_schema_is_brought_up_to_date(state_dir: Path) -> None:
    """From each earlier version the migrations lead to the same schema."""

    def schema(db: sqlite3.Connection) -> list[str]:
        return sorted(str(sql) for (sql,) in db.execute("SELECT sql FROM sqlite_master"))

    fresh = sqlite3.connect(":memory:", isolation_level=None)
    migrate(fresh)
    expected = schema(fresh)
    fresh.close()
    for version in range(len(MIGRATIONS)):
        db = sqlite3.connect(":memory:", isolation_level=None)
        for statement in chain.from_iterable(MIGRATIONS[:version]):
            db.execute(statement)
        db.execute(f"PRAGMA user_version = {version}")
        migrate(db)
        assert version_of(db) == len(MIGRATIONS)
        assert schema(db) == expected
        db.close()


def test_a_newer_store_is_refused(state_dir: Path) -> None:
    """A store of a newer cloudtrain is left alone, and the error says to upgrade."""
    with open_store(state_dir):
        pass
    db = sqlite3.connect(state_dir / STORE_FILE)
    db.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    db.close()
    with pytest.raises(StoreError, match="newer cloudtrain") as caught, open_store(state_dir):
        pass
    assert caught.value.hint == "pip install --upgrade cloudtrain"


def test_a_broken_store_is_an_error_with_a_hint(state_dir: Path) -> None:
    """A file that is no database is not overwritten."""
    state_dir.mkdir()
    (state_dir / STORE_FILE).write_bytes(b"this is not a database, it is a love letter" * 100)
    with pytest.raises(StoreError, match="cannot be used"), open_store(state_dir):
        pass
    assert (state_dir / STORE_FILE).read_bytes().startswith(b"this is not")


WRITER = """
import sys
import threading
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from tests.lifecycle.store.records import record
from cloudtrain.lifecycle.store.schema import open_store
folder, worker = Path(sys.argv[1]), int(sys.argv[2])
taken = []
while len(taken) < 5:
    with open_store(folder) as store:
        counter = store.next_counter("ab" * 32, "me@here")
        lock = store.reserve(record(f"job-1-{counter}", counter))
        if lock is not None:
            lock.release(remove=True)
            taken.append(counter)
print(*taken)
"""


@pytest.mark.slow
def test_ten_processes_lose_nothing(state_dir: Path) -> None:
    """Ten processes that each take five names at once, in a store that none of them had made yet, get fifty."""
    root = str(Path(__file__).parents[3])
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(state_dir), str(n), root],
            stdout=subprocess.PIPE,
            text=True,
        )
        for n in range(10)
    ]
    outputs = [worker.communicate(timeout=DEADLINE)[0] for worker in workers]
    assert all(worker.returncode == 0 for worker in workers)
    assert sorted(int(number) for output in outputs for number in output.split()) == list(
        range(1, 51)
    )


def test_ten_thousand_runs_are_listed_from_an_index(state_dir: Path) -> None:
    """The listing and the prefix search walk an index instead of sorting or scanning the table."""
    with open_store(state_dir):
        pass
    db = sqlite3.connect(state_dir / STORE_FILE)
    for sql in (
        "SELECT * FROM runs ORDER BY seq DESC LIMIT 20",
        "SELECT * FROM runs WHERE stage != 'reported'",
        "SELECT * FROM runs WHERE job_name = 'x' ORDER BY seq DESC LIMIT 20",
    ):
        steps = " ".join(str(step) for step in db.execute("EXPLAIN QUERY PLAN " + sql))
        assert "USING INDEX" in steps or "ORDER BY seq" in sql, steps
        assert "TEMP B-TREE" not in steps, steps
    db.close()


def test_a_lock_whose_file_was_removed_meanwhile_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opened by one process, removed by its holder, made anew by a third: only the third has it."""
    path, flock, holders = tmp_path / "a.lock", fcntl.flock, []

    def late(descriptor: int, operation: int) -> None:
        if not holders:
            holders.append(None)
            path.unlink()
            holders.append(ProcessLock.take(path))
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    assert ProcessLock.take(path) is None
    third = holders[1]
    assert third is not None
    third.release(remove=True)
    assert ProcessLock.take(path) is not None


def test_a_lock_that_is_only_looked_at_is_not_missed(tmp_path: Path) -> None:
    """`is_held` holds the lock for a moment; with patience this moment does not read as another holder."""
    path = tmp_path / "a.lock"
    path.touch()
    looking = path.open("rb")
    fcntl.flock(looking, fcntl.LOCK_SH)
    assert ProcessLock.take(path) is None
    looked = threading.Timer(0.3, looking.close)
    looked.start()
    held = ProcessLock.take(path, patience=DEADLINE)
    assert held is not None
    assert ProcessLock.take(path, patience=0.1) is None
    held.release()
    looked.join()


ANOTHER = """
import sys
from pathlib import Path
from cloudtrain.lifecycle.store.schema import open_store
from tests.lifecycle.store.test_store import put
with open_store(Path(sys.argv[1])) as store:
    put(store, sys.argv[2])
"""


def put(store: Store, name: str) -> None:
    """Record a run with that name."""
    lock = store.reserve(record(name=name, key=name))
    assert lock is not None
    lock.release(remove=True)


@pytest.mark.slow
def test_a_store_that_a_process_opens_twice_keeps_its_locks(state_dir: Path) -> None:
    """Without them, another process takes itself for the last one, and removes the log that later changes go to."""

    def put_elsewhere(name: str) -> None:
        command = [sys.executable, "-c", ANOTHER, str(state_dir), name]
        subprocess.run(command, check=True, cwd=Path(__file__).parents[3])

    with open_store(state_dir) as store:
        put(store, "one-1")
    with open_store(state_dir) as store:
        put(store, "two-1")
        with open_store(state_dir):
            pass
        put_elsewhere("three-1")
        put(store, "four-1")
        put_elsewhere("five-1")
        put_elsewhere("six-1")
        put(store, "seven-1")
    with read_store(state_dir) as after:
        assert len(after.newest()) == 7


def test_a_full_disk_is_named(state_dir: Path) -> None:
    """SQLite has rolled back by then, and what it said is what the user reads."""
    with open_store(state_dir) as store:
        pages = store._db.execute("PRAGMA page_count").fetchone()[0]
        store._db.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StoreError, match="disk is full"):
            store.reserve(record(reason="x" * 100_000))


def test_after_a_commit_that_fails_the_store_can_be_written(state_dir: Path) -> None:
    """SQLite leaves the transaction of a COMMIT that fails open. It is rolled back."""
    with open_store(state_dir) as store:
        store._db.executescript("""
            PRAGMA foreign_keys = ON;
            CREATE TABLE parents (id PRIMARY KEY);
            CREATE TABLE children (id REFERENCES parents (id) DEFERRABLE INITIALLY DEFERRED);
            CREATE TRIGGER breaks_the_commit AFTER INSERT ON runs WHEN new.counter = 1
            BEGIN INSERT INTO children VALUES (1); END;
        """)
        with pytest.raises(StoreError, match="FOREIGN KEY constraint failed"):
            store.reserve(record())
        assert store.get("job-1-1") is None
        assert store.reserve(record("job-1-2", 2)) is not None


def test_a_full_disk_during_a_migration_is_named() -> None:
    """The same for a database that is being made."""
    db = sqlite3.connect(":memory:", isolation_level=None)
    db.execute("PRAGMA max_page_count = 1")
    with pytest.raises(sqlite3.OperationalError, match="disk is full"):
        migrate(db)
    db.close()


def test_the_order_of_runs_is_that_of_their_submission(state_dir: Path) -> None:
    """A clock that was set back between two submissions does not make the older one the newest."""
    with open_store(state_dir) as store:
        store.reserve(record("job-1-1", 1, created=2000.0))
        store.reserve(record("job-1-2", 2, created=1000.0))
        assert [found.name for found in store.newest()] == ["job-1-2", "job-1-1"]
        assert [found.name for found in store.starting_with("job")] == ["job-1-2", "job-1-1"]


@pytest.mark.parametrize("version", range(1, len(MIGRATIONS)))
def test_an_old_store_is_read_as_it_is(state_dir: Path, version: int) -> None:
    """Its runs are there for a command that looks, which leaves every file as it was."""
    _old_store(state_dir, version)
    before = snapshot(state_dir)
    with read_store(state_dir) as store:
        assert [(found.name, found.created) for found in store.newest()] == [
            ("old-2-1", 5.0),
            ("old-1-1", 9.0),
        ]
        salt = store.salt
    assert snapshot(state_dir) == before
    with open_store(state_dir) as store:
        assert [found.name for found in store.newest()] == ["old-2-1", "old-1-1"]
        assert store.salt == salt


def _old_store(state_dir: Path, version: int) -> None:
    state_dir.mkdir()
    db = sqlite3.connect(state_dir / STORE_FILE, isolation_level=None)
    for statement in chain.from_iterable(MIGRATIONS[:version]):
        db.execute(statement)
    db.execute(f"PRAGMA user_version = {version}")
    for name, created in (("old-1-1", 9.0), ("old-2-1", 5.0)):
        row = {
            "name": name, "target": "local", "place": "here", "job_name": "old", "submitter": "me@here", "counter": 1,
            "stage": "reported", "state": "failed", "created": created, "started": 1, "ended": 2,
        }  # fmt: skip
        row |= {"plan_sha256": name} if version < 4 else {"key": name, "store": ""}
        db.execute(
            f"INSERT INTO runs ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})",
            tuple(row.values()),
        )
    db.close()


@pytest.mark.parametrize(
    "what", ["a file", "a file in the place of the store", "a folder in the place of the store"]
)
def test_a_state_path_that_holds_something_else_is_an_error(state_dir: Path, what: str) -> None:
    """It does not read as "there is no run yet"."""
    if what == "a file":
        state_dir.write_text("")
    else:
        state_dir.mkdir()
        (state_dir / STORE_FILE).mkdir() if "a folder" in what else (
            state_dir / STORE_FILE
        ).write_text("text " * 200)
    for opening in (read_store, open_store):
        with pytest.raises(StoreError) as caught, opening(state_dir) as store:
            store.newest()
        assert caught.value.hint


def test_a_store_that_is_copied_gives_other_names_and_one_that_stays_the_same(
    state_dir: Path, tmp_path: Path
) -> None:
    """The salt goes with the place; a dry run, which only reads, knows the one that a submit will use."""
    planned = salt_of_new_store(state_dir)
    with open_store(state_dir) as store:
        assert store.salt == planned
    copy = tmp_path / "copy"
    shutil.copytree(state_dir, copy)
    with read_store(copy) as read:
        planned = read.salt
    with open_store(copy) as store, open_store(state_dir) as original:
        assert (store.salt, store.salt == original.salt) == (planned, False)
    with open_store(copy) as store:
        assert store.salt == planned


def test_a_folder_that_another_process_makes_first_changes_no_name(state_dir: Path) -> None:
    """Between a plan and its submit, or between two commands that begin at once."""
    planned = salt_of_new_store(state_dir)
    state_dir.mkdir(parents=True)
    assert salt_of_new_store(state_dir) == planned
    with open_store(state_dir) as store:
        assert store.salt == planned


def linked(source: Path, to: Path) -> Path:
    """A copy of a state folder with hard links in place of files, as `cp -al` makes it."""
    shutil.copytree(source, to, copy_function=os.link)
    return to


@pytest.mark.parametrize("is_open", [False, True])
def test_a_copy_of_hard_links_is_another_store(
    state_dir: Path, tmp_path: Path, is_open: bool
) -> None:
    """What is written into one is not in the other, also if a command of the original has it open; and a dry run knows
    the salt that a submit will use."""
    lost, running = RunStatus(RunState.LOST), RunStatus(RunState.RUNNING)
    with open_store(state_dir) as store:
        store.reserve(record())
        store.record("job-1-1", running)
        copy = linked(state_dir, tmp_path / "copy") if is_open else None
    copy = copy or linked(state_dir, tmp_path / "copy")
    with read_store(copy) as read:
        planned = read.salt
    with open_store(state_dir) as original, open_store(copy) as other:
        assert (other.salt, other.salt == original.salt) == (planned, False)
        other.record("job-1-1", lost)
        original.reserve(record("job-1-2", counter=2))
        assert [store.get("job-1-1").state for store in (original, other)] == ["running", "lost"]  # type: ignore[union-attr]
        assert other.get("job-1-2") is None
    for folder, names in ((state_dir, {"job-1-1", "job-1-2"}), (copy, {"job-1-1"})):
        with open_store(folder) as store:
            assert {run.name for run in store.newest()} == names
    with read_store(copy) as read:
        assert read.salt == planned
    assert (state_dir / STORE_FILE).stat().st_nlink == 1


def test_the_original_stays_where_it_is_linked(state_dir: Path, tmp_path: Path) -> None:
    """A backup of hard links does not give the store that is in use another file."""
    with open_store(state_dir) as store:
        store.reserve(record())
        inode = (state_dir / STORE_FILE).stat().st_ino
        linked(state_dir, tmp_path / "backup")
        with open_store(state_dir):
            pass
        store.advance("job-1-1", "sent")
    assert (state_dir / STORE_FILE).stat().st_ino == inode


def test_a_store_that_is_replaced_meanwhile_is_written_no_more(state_dir: Path) -> None:
    """A submission does not go on in a database that no other command will find."""
    with open_store(state_dir) as store:
        store.reserve(record())
        shutil.rmtree(state_dir)
        with open_store(state_dir), pytest.raises(StoreError, match="removed or replaced"):
            store.advance("job-1-1", "sent")
