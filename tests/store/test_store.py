"""The run store: several processes at once, migrations, and looking without writing."""

from __future__ import annotations

import fcntl
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from cloudtrain._lock import ProcessLock
from cloudtrain.errors import TargetError
from cloudtrain.states import RunState, RunStatus
from cloudtrain.store.migrations import MIGRATIONS, migrate, version_of
from cloudtrain.store.store import FILE_NAME, Row, open_store, read_store


def row(name: str = "job-1-1", counter: int = 1, **changes: object) -> Row:
    """A row that was just planned."""
    fields: dict[str, object] = {
        "name": name, "target": "local", "place": None, "job_name": "job", "plan_sha256": "ab" * 32,
        "submitter": "me@here", "counter": counter, "stage": "planned", "state": "pending", "reason": None,
        "created": 1000.0 + counter, "started": None, "ended": None,
    }  # fmt: skip
    return Row(**fields | changes)  # type: ignore[arg-type]


def snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    """Name to size and modification time of everything in a folder."""
    return {str(p): (p.stat().st_size, p.stat().st_mtime_ns) for p in sorted(folder.rglob("*"))}


def test_a_row_comes_back_as_it_went_in(state_dir: Path) -> None:
    """What is reserved can be read, and the journal has its stage."""
    with open_store(state_dir) as store:
        lock = store.reserve(row())
        assert lock is not None
        assert store.get("job-1-1") == row()
        assert [stage for stage, _ in store.journal("job-1-1")] == ["planned"]
        lock.release(remove=True)


def test_a_name_is_reserved_once(state_dir: Path) -> None:
    """The second reservation of a name fails, also after the first process let go of its lock."""
    with open_store(state_dir) as store:
        lock = store.reserve(row())
        assert lock is not None
        assert store.reserve(row()) is None
        lock.release(remove=True)
        assert store.reserve(row()) is None


def test_forgotten_names_are_free(state_dir: Path) -> None:
    """After forgetting, the counter does not skip and the name can be taken again."""
    with open_store(state_dir) as store:
        lock = store.reserve(row())
        assert lock is not None
        lock.release(remove=True)
        store.forget("job-1-1")
        assert store.get("job-1-1") is None
        assert store.next_counter("local", "ab" * 32, "me@here") == 1
        assert store.reserve(row()) is not None


def test_counters_count_per_plan_and_submitter(state_dir: Path) -> None:
    """Another plan, target or submitter starts at 1."""
    with open_store(state_dir) as store:
        for counter in (1, 2):
            store.reserve(row(f"job-1-{counter}", counter))
        assert store.next_counter("local", "ab" * 32, "me@here") == 3
        assert store.next_counter("local", "cd" * 32, "me@here") == 1
        assert store.next_counter("local", "ab" * 32, "you@here") == 1
        assert store.next_counter("sagemaker", "ab" * 32, "me@here") == 1


def test_newest_filters_and_orders(state_dir: Path) -> None:
    """Newest first; by state and by job."""
    with open_store(state_dir) as store:
        for counter in range(1, 6):
            store.reserve(row(f"job-1-{counter}", counter))
        store.reserve(row("other-1-1", 9, job_name="other"))
        store.record("job-1-2", RunStatus(RunState.FAILED, reason="it broke", started=1.0, ended=2.0))
        assert [found.name for found in store.newest(limit=2)] == ["other-1-1", "job-1-5"]
        assert [found.name for found in store.newest(states=[RunState.FAILED])] == ["job-1-2"]
        assert [found.name for found in store.newest(job="other")] == ["other-1-1"]
        failed = store.get("job-1-2")
        assert failed is not None
        assert (failed.state, failed.reason, failed.started, failed.ended) == ("failed", "it broke", 1.0, 2.0)


def test_prefixes_match_beginnings_only(state_dir: Path) -> None:
    """`job-1` finds `job-1-1` and `job-10`, not `a-job-1`; wildcards of SQL are ordinary letters."""
    with open_store(state_dir) as store:
        for counter, name in enumerate(["job-1-1", "job-10", "a-job-1", "jobx1"], 1):
            store.reserve(row(name, counter))
        assert {found.name for found in store.starting_with("job-1")} == {"job-1-1", "job-10"}
        assert store.starting_with("job_1") == []
        assert store.starting_with("%") == []


def test_reading_writes_nothing(state_dir: Path) -> None:
    """Looking at the store leaves every file as it was, and makes none."""
    with read_store(state_dir) as store:
        assert store is None
    assert not state_dir.exists()
    with open_store(state_dir) as store:
        store.reserve(row())
    before = snapshot(state_dir)
    with read_store(state_dir) as store:
        assert store is not None
        assert store.next_counter("local", "ab" * 32, "me@here") == 2
    assert snapshot(state_dir) == before


def test_readers_see_an_open_writers_rows(state_dir: Path) -> None:
    """While another connection keeps the store open for writing, a reader sees what it committed."""
    with open_store(state_dir) as writer:
        writer.reserve(row())
        with read_store(state_dir) as reader:
            assert reader is not None
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
        for step in MIGRATIONS[:version]:
            step(db)
        db.execute(f"PRAGMA user_version = {version}")
        migrate(db)
        assert version_of(db) == len(MIGRATIONS)
        assert schema(db) == expected
        db.close()


def test_a_newer_store_is_refused(state_dir: Path) -> None:
    """A store of a newer cloudtrain is left alone, and the error says to upgrade."""
    with open_store(state_dir):
        pass
    db = sqlite3.connect(state_dir / FILE_NAME)
    db.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    db.close()
    with pytest.raises(TargetError, match="newer cloudtrain") as caught, open_store(state_dir):
        pass
    assert caught.value.hint == "pip install --upgrade cloudtrain"


def test_a_broken_store_is_an_error_with_a_hint(state_dir: Path) -> None:
    """A file that is no database is not overwritten."""
    state_dir.mkdir()
    (state_dir / FILE_NAME).write_bytes(b"this is not a database, it is a love letter" * 100)
    with pytest.raises(TargetError, match="cannot be used"), open_store(state_dir):
        pass
    assert (state_dir / FILE_NAME).read_bytes().startswith(b"this is not")


WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from tests.store.test_store import row
from cloudtrain.store.store import open_store
folder, worker = Path(sys.argv[1]), int(sys.argv[2])
taken = []
while len(taken) < 5:
    with open_store(folder) as store:
        counter = store.next_counter("local", "ab" * 32, "me@here")
        lock = store.reserve(row(f"job-1-{counter}", counter))
        if lock is not None:
            lock.release(remove=True)
            taken.append(counter)
print(*taken)
"""


def test_ten_processes_lose_nothing(state_dir: Path) -> None:
    """Ten processes that each take five names at once, in a store that none of them had made yet, get fifty."""
    root = str(Path(__file__).parents[2])
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(state_dir), str(n), root], stdout=subprocess.PIPE, text=True
        )
        for n in range(10)
    ]
    outputs = [worker.communicate(timeout=60)[0] for worker in workers]
    assert all(worker.returncode == 0 for worker in workers)
    assert sorted(int(number) for output in outputs for number in output.split()) == list(range(1, 51))


def test_ten_thousand_runs_are_listed_from_an_index(state_dir: Path) -> None:
    """The listing and the prefix search walk an index instead of sorting or scanning the table."""
    with open_store(state_dir):
        pass
    db = sqlite3.connect(state_dir / FILE_NAME)
    for sql in (
        "SELECT * FROM runs ORDER BY created DESC, name LIMIT 20",
        "SELECT * FROM runs WHERE stage != 'reported'",
        "SELECT * FROM runs WHERE job_name = 'x' ORDER BY created DESC LIMIT 20",
    ):
        steps = " ".join(str(step) for step in db.execute("EXPLAIN QUERY PLAN " + sql))
        assert "USING INDEX" in steps, steps
        assert "TEMP B-TREE" not in steps, steps
    db.close()


def test_a_lock_whose_file_was_removed_meanwhile_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_full_disk_is_named(state_dir: Path) -> None:
    """SQLite has rolled back by then, and what it said is what the user reads."""
    with open_store(state_dir) as store:
        pages = store._db.execute("PRAGMA page_count").fetchone()[0]
        store._db.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(sqlite3.OperationalError, match="disk is full"):
            store.reserve(row(reason="x" * 100_000))


def test_a_full_disk_during_a_migration_is_named() -> None:
    """The same for a database that is being made."""
    db = sqlite3.connect(":memory:", isolation_level=None)
    db.execute("PRAGMA max_page_count = 1")
    with pytest.raises(sqlite3.OperationalError, match="disk is full"):
        migrate(db)
    db.close()
