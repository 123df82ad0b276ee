"""What a page about all runs needs beside the public functions: the runs of this machine's store
with all that it knows of them, and the queue."""

from __future__ import annotations

import time
from contextlib import suppress
from functools import cache
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from cloudtrain.lifecycle.runs.costs import RunCost, cost_of, is_free
from cloudtrain.lifecycle.runs.find import kind_of, queue_of
from cloudtrain.lifecycle.runs.run import Run
from cloudtrain.lifecycle.runs.sweep import SweepRun
from cloudtrain.lifecycle.store.records import Money
from cloudtrain.lifecycle.store.schema import read_store
from cloudtrain.lifecycle.store.store import RunRecord
from cloudtrain.plans.progress import QueuedRun
from cloudtrain.plans.states import RunState
from cloudtrain.system.files import STORE_FILE
from cloudtrain.targets.settings import load_settings, read_environment


class StoredRun(NamedTuple):
    """What the store knows of a run.

    Attributes:
        cost: None for a target that costs nothing.
        note: what a person wrote about the run; empty without a note.
        is_pinned: whether a person wants to see it first.
        hourly: the price of an hour, by which the cost of a run that has not ended grows; None if
            unknown.
        folder: the folder that it was submitted from; empty if unknown.
    """

    record: RunRecord
    tags: dict[str, str]
    hyperparameters: dict[str, str]
    cost: RunCost | None
    note: str
    is_pinned: bool
    folder: str
    hourly: float | None

    @property
    def is_sweep(self) -> bool:
        return kind_of(self.record) is SweepRun


class Overview(NamedTuple):
    """Runs of the store, newest first.

    Attributes:
        revision: the number of the store's last change. The next call takes it as `changed_since`.
        number: how many runs the store has now. Fewer than before and the changed ones make up
            means that some were removed.
    """

    runs: list[StoredRun]
    revision: int
    number: int


def overview(*, changed_since: int | None = None) -> Overview:
    """Return all runs in this machine's store but the trials of sweeps, or only those that changed
    after a revision of the store. Raises StoreError."""
    since = -1 if changed_since is None else changed_since
    with read_store(read_environment().state_dir) as store:
        revision = store.revision
        number = store.count()
        if revision == changed_since:  # as at most looks of a page: the search takes 4 ms
            return Overview([], revision, number)
        records = store.newest(changed_since=changed_since)
        tags = store.labels("tag", since)
        hyperparameters = store.labels("hyperparameter", since)
        money = store.money(changed_since)
        annotations = store.annotations(changed_since)
        folders = store.folders(changed_since)

    now = time.time()
    costs_nothing = cache(is_free)  # few targets have many runs
    runs = []
    for record in records:
        name = record.name
        cost = None
        hourly = None
        if not costs_nothing(record.target):
            known = money.get(name, Money())
            cost = cost_of(record, record.status, known, tags.get(name), now)
            hourly = known.hourly
        note, is_pinned = annotations.get(name, ("", False))
        stored = StoredRun(
            record,
            tags.get(name, {}),
            hyperparameters.get(name, {}),
            cost,
            note,
            is_pinned,
            folders.get(name, ""),
            hourly,
        )
        runs.append(stored)
    return Overview(runs, revision, number)


Row: TypeAlias = RunRecord
"""A run as the store has it, for those who do not use the store."""


class Unsettled(NamedTuple):
    """Runs that a page looks at by itself, newest first.

    Attributes:
        running: those that have not ended, the trials of sweeps included.
        unread: those that ended after the last call, whose metrics the store does not have.
        revision: the number of the store's last change. The next call takes it as `changed_since`.
    """

    running: list[RunRecord]
    unread: list[RunRecord]
    revision: int


def unsettled(changed_since: int) -> Unsettled | None:
    """Return the runs that a page looks at; None if the store has not changed since that revision.
    Raises StoreError."""
    with read_store(read_environment().state_dir) as store:
        revision = store.revision
        if revision == changed_since:
            return None
        records = store.unsettled(changed_since)
    ended = [record for record in records if RunState(record.state).is_final]
    running = [record for record in records if not RunState(record.state).is_final]
    return Unsettled(running, ended, revision)


def handle_on(record: RunRecord) -> Run:
    """Return a handle on a run of the store."""
    return kind_of(record)(record, read_environment())


def store_marks() -> list[tuple[int, int]]:
    """Return the time, in nanoseconds, and the size of each file of this machine's store. A change
    of the store changes them, so a page that waits need not open it."""
    file = read_environment().state_dir / STORE_FILE
    marks = []
    for place in (file, file.with_name(f"{STORE_FILE}-wal")):
        with suppress(OSError):  # there is no such file now
            status = place.stat()
            marks.append((status.st_mtime_ns, status.st_size))
    return marks


def queue() -> list[QueuedRun]:
    """Return the queue of the default target: the started runs, then the waiting ones. Raises
    UsageError if the target has no queue of cloudtrain."""
    return queue_of(load_settings().default_target).queue()


def move_in_queue(run: Run, *, before: Run | None, last: bool) -> None:
    """Move a waiting run before another, to the front, or to the end. Raises UsageError if one of
    the runs does not wait."""
    other = None if before is None else before.ref
    queue_of(run.target).move(run.ref, before=other, last=last)


def previous_of(run: Run) -> str | None:
    """Return the name of the run of the same job that was submitted before; None without one."""
    with read_store(read_environment().state_dir) as store:
        rows = store.newest(job=run.job_name, trials=True)
    for row, earlier in pairwise(rows):
        if row.name == run.name:
            return earlier.name
    return None
