"""Exactly-once submission: every step is written down before it is taken, so that a crash anywhere can be mended.

    planned     the run name is taken; nothing has left this machine
    uploaded    the bundle is in place
    sent        the request is about to leave: from here on only the target knows whether the run exists
    accepted    the target has the run
    reported    the submitter was told

A submission whose process died is finished or forgotten by the next command. Before `sent` there is nothing to find,
so it is forgotten; from `sent` on the target is asked for the run by its reference, which was fixed at `planned`. A run
that was accepted but never reported is handed to the next submit of the same plan, instead of making a second one.

A request may be on its way when its sender dies or is interrupted. For `Backend.in_flight` seconds an answer that the
run is not there therefore settles nothing: the row stays, and the next submit of the same plan sends the request again
under the same name, which the target takes once. What the target has refused is forgotten at once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from cloudtrain._lock import ProcessLock
from cloudtrain.backends.base import Backend, BundleWriter, OnBytes
from cloudtrain.backends.registry import backend_of
from cloudtrain.errors import CloudtrainError, NameTaken, TargetError, TargetUnreachable
from cloudtrain.lineage import written_by
from cloudtrain.plans import Plan
from cloudtrain.settings import Settings
from cloudtrain.states import RunState
from cloudtrain.store.store import Row, Store


@dataclass(frozen=True)
class Recovered:
    """What became of a submission whose process died."""

    name: str
    outcome: Literal["finished", "forgotten", "unknown"]
    detail: str


@dataclass(frozen=True)
class Submission:
    """What is to be submitted. `key` is the hash of the plan without its name; `plan_of` compiles (and checks) the plan
    of a given counter."""

    backend: Backend
    key: str
    submitter: str
    plan_of: Callable[[int], Plan]
    bundle: BundleWriter
    on_bytes: OnBytes | None = None


def submit_once(store: Store, submission: Submission) -> Row:
    """Take a name, upload, send; the row of the run that the target now has.

    Another process that submits the same plan at the same time gets the next counter; so does one whose name the
    target has given away already, to a run that this store does not know.
    """
    backend, beyond = submission.backend, 0
    while True:
        counter = max(store.next_counter(backend.name, submission.key, submission.submitter), beyond + 1)
        plan = submission.plan_of(counter)
        row = _planned(plan, submission.key, submission.submitter, counter)
        lock = store.reserve(row, written_by(plan))
        if lock is None:
            continue
        try:
            return _send(store, submission, plan, row)
        except NameTaken:
            beyond = counter
        finally:
            lock.release(remove=True)


def resume(store: Store, submission: Submission, *, place: str | None) -> Row | None:
    """The run of the same plan at the same place whose request left and may not have arrived: sent again, under its
    name. Call after `recover`."""
    for row in _same(store, submission.backend.name, place, submission.key, submission.submitter):
        with _orphaned(store, row) as current:
            if current is not None and current.stage == "sent":
                return _send(store, submission, submission.plan_of(current.counter), current)
    return None


def adopt(store: Store, *, target: str, place: str | None, key: str, submitter: str) -> Row | None:
    """The run of the same plan at the same place that was accepted while its submitter died before it was told.

    Call after `recover`.
    """
    for row in _same(store, target, place, key, submitter):
        with _orphaned(store, row) as current:
            if current is not None and current.stage == "accepted":
                store.advance(row.name, "reported")
                return store.get(row.name)
    return None


def recover(store: Store, settings: Settings) -> list[Recovered]:
    """Finish or forget every submission whose process died. Those of living processes are left alone."""
    results = []
    for row in store.unfinished():
        with _orphaned(store, row) as current:
            if current is not None and current.stage not in ("accepted", "reported"):
                results.append(_settle(store, settings, current))
    return results


@contextmanager
def _orphaned(store: Store, row: Row) -> Iterator[Row | None]:
    """The row as it is now, which may have moved on, held against all other processes; None while its submitter lives,
    or when it has been forgotten."""
    lock = ProcessLock.take(store.lock_path(row.name))
    if lock is None:
        yield None
        return
    try:
        yield store.get(row.name)
    finally:
        lock.release(remove=True)


def _same(store: Store, target: str, place: str | None, key: str, submitter: str) -> list[Row]:
    """Unfinished submissions of the same plan. Where nobody knew the place yet, it is the one meant."""
    return [
        row
        for row in store.unfinished()
        if (row.target, row.plan_sha256, row.submitter) == (target, key, submitter) and row.place in (None, place)
    ]


def _planned(plan: Plan, key: str, submitter: str, counter: int) -> Row:
    return Row(
        name=plan.run_name,
        target=plan.target,
        place=plan.place,
        job_name=plan.job_name,
        plan_sha256=key,
        submitter=submitter,
        counter=counter,
        stage="planned",
        state=RunState.PENDING.value,
        reason=None,
        created=time.time(),
        started=None,
        ended=None,
    )


def _send(store: Store, submission: Submission, plan: Plan, row: Row) -> Row:
    """All that is left of a submission whose lock is held."""
    backend = submission.backend
    try:
        backend.upload(plan, submission.bundle, on_bytes=submission.on_bytes)
        if row.stage == "planned":
            store.advance(row.name, "uploaded")  # what was `sent` once stays so: that request may still arrive
        store.advance(row.name, "sent")
        ref = backend.submit(plan, since=row.created)
        store.advance(row.name, "accepted", place=ref.place)
        store.advance(row.name, "reported")
    except BaseException as error:
        _after_failure(store, backend, row, error)
        raise
    accepted = store.get(row.name)
    assert accepted is not None, "an accepted run is never removed"
    return accepted


def _after_failure(store: Store, backend: Backend, row: Row, error: BaseException) -> None:
    """Before the request left, the name is free again at once; after that, only where it is certain that the target
    does not have it: it has refused, or it has answered and nothing is on its way."""
    current = store.get(row.name)
    if current is None or current.stage in ("accepted", "reported"):
        return
    refused = isinstance(error, TargetError) and not isinstance(error, TargetUnreachable)
    try:
        certain = refused or not backend.in_flight
        never_arrived = current.stage != "sent" or (certain and not backend.has(row.ref, since=row.created))
    except CloudtrainError:
        return  # the next command asks again
    if never_arrived:
        store.forget(row.name)


def _settle(store: Store, settings: Settings, row: Row) -> Recovered:
    if row.stage != "sent":
        store.forget(row.name)
        return Recovered(row.name, "forgotten", f"it stopped at `{row.stage}`, so nothing was sent")
    try:
        backend = backend_of(row.target, settings)
        arrived = backend.has(row.ref, since=row.created)
    except CloudtrainError as error:
        return Recovered(row.name, "unknown", f"`{row.target}` could not be asked: {error.message}")
    if arrived:
        store.advance(row.name, "accepted")
        return Recovered(row.name, "finished", f"`{row.target}` has the run")
    left = store.sent_at(row.name) + backend.in_flight - time.time()
    if left > 0:
        detail = f"`{row.target}` has no such run yet, and its request may be on its way for {math.ceil(left)} s more"
        return Recovered(row.name, "unknown", detail)
    store.forget(row.name)
    return Recovered(row.name, "forgotten", f"`{row.target}` has no such run")
