"""What enters the outbox, in the transaction that records its cause."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudtrain.lifecycle.store.schema import open_store
from cloudtrain.lifecycle.store.store import Store
from cloudtrain.plans.progress import Notice, RunStatus
from cloudtrain.plans.states import RunState
from tests.lifecycle.store.records import record

NOW = time.time()
RUNNING = RunStatus(RunState.RUNNING, started=NOW)
FAILED = RunStatus(RunState.FAILED, "no memory", started=NOW, ended=NOW + 1)


@pytest.fixture
def store(state_dir: Path) -> Iterator[Store]:
    """A store whose events are recorded."""
    with open_store(state_dir) as store:
        store.outbox.turn_on(NOW - 10)
        yield store


def _reserve(store: Store, name: str = "job-1-1", **fields: object) -> None:
    lock = store.reserve(record(name, **fields))
    assert lock is not None
    lock.release(remove=True)


def _ids(store: Store) -> list[str]:
    return [event.id for event in store.outbox.pending()]


def test_a_run_starts_and_ends_once(store: Store) -> None:
    """However often its states are recorded, and in whatever order two commands record them."""
    _reserve(store)
    for status in (RUNNING, RUNNING, FAILED, FAILED, RUNNING, FAILED):
        store.record("job-1-1", status)
    assert _ids(store) == ["job-1-1/started/1", "job-1-1/failed/1"]
    failed = store.outbox.pending()[1]
    assert (failed.reason, failed.time, failed.job, failed.target) == (
        "no memory",
        NOW + 1,
        "job",
        "local",
    )


def test_a_short_run_has_started_too(store: Store) -> None:
    """Also if nobody saw it run."""
    _reserve(store)
    store.record("job-1-1", FAILED)
    assert _ids(store) == ["job-1-1/started/1", "job-1-1/failed/1"]


def test_what_goes_on_can_end_again(store: Store) -> None:
    """A sweep that was continued has a second end, with another id."""
    _reserve(store, key="sweep:ab")
    for end in (NOW + 1, NOW + 9):
        store.record("job-1-1", RUNNING)
        store.record("job-1-1", RunStatus(RunState.STOPPED, started=NOW, ended=end))
    assert _ids(store) == ["job-1-1/started/1", "job-1-1/stopped/1", "job-1-1/stopped/2"]


@pytest.mark.parametrize("fields", [{"key": "trial:ab"}, {"job_name": "job-rehearsal"}])
def test_parts_of_others_are_no_events(store: Store, fields: dict[str, str]) -> None:
    """A sweep has hundreds of trials, and a rehearsal stops its runs on purpose."""
    _reserve(store, **fields)
    store.record("job-1-1", FAILED)
    store.outbox.add_notices("job-1-1", [Notice("alert", "look", NOW)], NOW)
    assert not _ids(store)


def test_the_past_is_no_event(state_dir: Path) -> None:
    """Nothing is recorded before it is turned on, nor what happened before."""
    with open_store(state_dir) as store:
        _reserve(store)
        store.record("job-1-1", FAILED)
        store.outbox.turn_on(NOW + 5)
        _reserve(store, "job-2-1", counter=2)
        store.record("job-2-1", FAILED)
        assert not _ids(store)
        assert not store.outbox.has_work


def test_a_removed_run_is_told_of(store: Store) -> None:
    """Its event stays until it is sent."""
    _reserve(store)
    store.advance("job-1-1", "reported")
    store.record("job-1-1", FAILED)
    store.remove("job-1-1")
    assert _ids(store)[-1] == "job-1-1/failed/1"
    assert store.outbox.has_work


def test_a_state_is_one_event(store: Store) -> None:
    """Eight ranks whose loss is not finite are one, and what is over is none. Alerts are each one."""
    _reserve(store)
    notices = [Notice("not_finite", f"rank {rank}", NOW + rank, rank) for rank in range(8)]
    notices += [Notice("alert", "first", NOW), Notice("alert", "second", NOW + 1)]
    notices += [Notice("idle", "0%", NOW, ended=NOW + 1)]
    for _ in range(2):
        store.outbox.add_notices("job-1-1", notices, NOW)
    assert sorted(_ids(store)) == ["job-1-1/alert/1", "job-1-1/alert/2", "job-1-1/not_finite/1"]


def test_alerts_without_end_are_bounded(store: Store) -> None:
    """A script that reports one in each step fills no mailbox."""
    _reserve(store)
    for number in range(100):
        store.outbox.add_notices("job-1-1", [Notice("alert", f"{number}", NOW + number)], NOW)
    assert len(_ids(store)) == 20
