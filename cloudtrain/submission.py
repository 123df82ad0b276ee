"""Exactly-once submission: every step is written down before it is taken, so that a crash anywhere can be mended.

    planned     the run name is taken; nothing has left this machine
    uploaded    the bundle is in place
    sent        the request is about to leave: from here on only the target knows whether the run exists
    accepted    the target has the run
    reported    the submitter was told

A submission whose process died is finished or forgotten by the next command. Before `sent` there is nothing to find,
so it is forgotten; from `sent` on the target is asked for the run by its reference, which was fixed at `planned`. A run
that was accepted but never reported is handed to the next submit of the same plan, instead of making a second one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from cloudtrain._lock import ProcessLock
from cloudtrain.backends.base import Backend, BundleWriter, OnBytes
from cloudtrain.backends.registry import backend_of
from cloudtrain.errors import CloudtrainError
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


def submit_once(
    store: Store,
    backend: Backend,
    *,
    key: str,
    submitter: str,
    plan_of: Callable[[int], Plan],
    bundle: BundleWriter,
    on_bytes: OnBytes | None = None,
) -> Row:
    """Take a name, upload, send; the row of the run that the target now has.

    `key` is the hash of the plan without its name; `plan_of` compiles (and checks) the plan of a given counter.
    Another process that submits the same plan at the same time gets the next counter.
    """
    while True:
        counter = store.next_counter(backend.name, key, submitter)
        plan = plan_of(counter)
        row = _planned(plan, key, submitter, counter)
        lock = store.reserve(row, written_by(plan))
        if lock is not None:
            break
    try:
        return _send(store, backend, plan, row, lambda: backend.upload(plan, bundle, on_bytes=on_bytes))
    except BaseException:
        _after_failure(store, backend, row)
        raise
    finally:
        lock.release(remove=True)


def adopt(store: Store, *, target: str, place: str | None, key: str, submitter: str) -> Row | None:
    """The run of the same plan at the same place that was accepted while its submitter died before it was told.

    Call after `recover`.
    """
    for row in store.unfinished():
        same = (row.target, row.plan_sha256, row.submitter) == (target, key, submitter) and row.place in (None, place)
        if same and row.stage == "accepted":
            lock = ProcessLock.take(store.lock_path(row.name))
            if lock is not None:
                store.advance(row.name, "reported")
                lock.release(remove=True)
                return store.get(row.name)
    return None


def recover(store: Store, settings: Settings) -> list[Recovered]:
    """Finish or forget every submission whose process died. Those of living processes are left alone."""
    results = []
    for row in store.unfinished():
        lock = ProcessLock.take(store.lock_path(row.name))
        if lock is None:
            continue
        try:
            current = store.get(row.name)  # again: it may have moved before the lock was ours
            if current is not None and current.stage not in ("accepted", "reported"):
                results.append(_settle(store, settings, current))
        finally:
            lock.release(remove=True)
    return results


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


def _send(store: Store, backend: Backend, plan: Plan, row: Row, upload: Callable[[], object]) -> Row:
    upload()
    store.advance(row.name, "uploaded")
    store.advance(row.name, "sent")
    ref = backend.submit(plan)
    store.advance(row.name, "accepted", place=ref.place)
    store.advance(row.name, "reported")
    accepted = store.get(row.name)
    assert accepted is not None, "an accepted run is never removed"
    return accepted


def _after_failure(store: Store, backend: Backend, row: Row) -> None:
    """Before the request left, the name is free again at once; after that, only when the target does not have it."""
    current = store.get(row.name)
    if current is None or current.stage in ("accepted", "reported"):
        return
    try:
        never_arrived = current.stage != "sent" or not backend.has(row.ref)
    except CloudtrainError:
        return  # the next command asks again
    if never_arrived:
        store.forget(row.name)


def _settle(store: Store, settings: Settings, row: Row) -> Recovered:
    if row.stage != "sent":
        store.forget(row.name)
        return Recovered(row.name, "forgotten", f"it stopped at `{row.stage}`, so nothing was sent")
    try:
        arrived = backend_of(row.target, settings).has(row.ref)
    except CloudtrainError as error:
        return Recovered(row.name, "unknown", f"`{row.target}` could not be asked: {error.message}")
    if not arrived:
        store.forget(row.name)
        return Recovered(row.name, "forgotten", f"`{row.target}` has no such run")
    store.advance(row.name, "accepted")
    return Recovered(row.name, "finished", f"`{row.target}` has the run")
