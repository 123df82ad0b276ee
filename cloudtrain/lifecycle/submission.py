"""Exactly-once submission: every step is written down before it is taken, so that a crash anywhere can be mended.

    planned     the run name is taken; nothing has left this machine
    uploaded    the bundle is in place
    sent        the target has no run of that name, and the request is about to leave
    accepted    the target has the run
    reported    the user was told its name

A submission whose process died is settled by the next command. Before `sent` nothing has left, so it is forgotten. From
`sent` on the target is asked for the run: the target had none of that name when the stage was written, so one that is
there now was made by this request. Nothing about it depends on a clock of the target or on this machine's wall clock.

A request may be on its way when its sender dies. For `Service.in_flight` seconds an answer that the run is not there
settles nothing: the record stays, and the next submit of the same job sends the request again under the same name,
which the target takes once. What the target has refused is forgotten at once.

The process that printed the name may die before it can note so. A run that was accepted and is not known to be reported
is therefore offered again: the next submit of the same job within `OFFERED_FOR` reports that run and starts none. A
later one means a new run, and names the older one beside it.

Within one boot that time is exact. After a reboot only the wall clock knows it. Where the clock was set forward too, a
run looks older than it is: it is named, and another one starts. Only what passed since the reboot is certain, but to
offer a run until a day is certain would be worse. A machine that is started for each submit would offer last week's run
and start none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, NamedTuple

from cloudtrain.core.plan import Plan
from cloudtrain.core.states import RunState
from cloudtrain.errors import CloudtrainError, NameTaken, StoreError, TargetError, TargetUnreachable
from cloudtrain.store.history import Kept
from cloudtrain.store.kinds import service_name
from cloudtrain.store.origin import NOWHERE, Origin
from cloudtrain.store.store import RunRecord, Store
from cloudtrain.system.lock import ProcessLock
from cloudtrain.targets.base import BundleWriter, ByteProgress, Service

OFFERED_FOR = 24 * 3600.0
"""Seconds for which a run that may not have been reported is offered to the next submit of the same job."""

ServiceOf = Callable[[str], Service]
"""From the name of a service to it: a target's, or one of `cloudtrain.store.kinds`."""


class Recovered(NamedTuple):
    """What became of a submission whose process died."""

    name: str
    outcome: Literal["finished", "forgotten", "unknown"]
    detail: str


@dataclass(frozen=True)
class Submission:
    """A job that is to be submitted.

    Attributes:
        key: hash of what makes two submissions the same; see `RunRecord.key`.
        plan_of: compiles and checks the plan of the run with a given number.
        outputs_of: what a run of a plan will write, and where.
        origin: where the job is submitted from, and its labels.
        kept_of: what the store keeps of a plan.
        report: tells the user about the run. It is noted as told when this returns.
    """

    service: Service
    key: str
    submitter: str
    plan_of: Callable[[int], Plan]
    outputs_of: Callable[[Plan], dict[str, str]]
    bundle: BundleWriter
    report: Callable[[Submitted], None]
    on_bytes: ByteProgress | None = None
    origin: Origin = NOWHERE
    kept_of: Callable[[Plan], Kept] | None = None


class Submitted(NamedTuple):
    """The run that a submit ends with.

    Attributes:
        adopted: the run was submitted before, by a command that was cut off, and may not have been reported.
        unreported: earlier runs of the same job that may never have been reported, and are too old to be adopted.
    """

    record: RunRecord
    adopted: bool = False
    unreported: tuple[RunRecord, ...] = ()


def submit_once(store: Store, submission: Submission, service_of: ServiceOf) -> Submitted:
    """Submit a job so that exactly one run exists, is in the store, and is reported.

    First settles what earlier commands left, then offers, sends again, or starts a run.

    Raises:
        TargetError: the target refused or could not be reached.
    """
    recover(store, service_of)
    too_old = list[RunRecord]()
    for record in _same(store, submission):
        with _take_over(store, record) as current:
            if current is None:
                continue
            if current.stage == "accepted":
                if store.seconds_since(current.name, "accepted") < OFFERED_FOR:
                    return _report(store, submission, Submitted(current, adopted=True, unreported=tuple(too_old)))
                too_old.append(current)
            elif current.stage == "sent":
                return _send_again(store, submission, current, tuple(too_old))
    return _start(store, submission, tuple(too_old))


def recover(store: Store, service_of: ServiceOf) -> list[Recovered]:
    """Finish or forget every submission whose process died. Those of living processes are left alone."""
    results = []
    for record in store.unfinished():
        if not needs_recovery(store, record):
            continue
        with _take_over(store, record) as current:
            if current is None or not needs_recovery(store, current):
                continue
            if current.stage != "accepted":
                results.append(_settle(store, service_of, current))
            elif not _is_own(store, current):
                store.advance(current.name, "reported")
    return results


def needs_recovery(store: Store, record: RunRecord) -> bool:
    """Whether a submission has a next step that recovery can take, if its process is dead."""
    return record.stage != "reported" and (record.stage != "accepted" or not _is_own(store, record))


def _is_own(store: Store, record: RunRecord) -> bool:
    """Whether this very store submitted it. A copied store brings along runs that were asked for, and are reported,
    elsewhere."""
    return record.store in ("", store.salt)


def report_accepted(store: Store, report: Callable[[Sequence[RunRecord]], None]) -> None:
    """Tell the user about every run that was accepted and may not have been reported, and note that it was told."""
    held, locks = list[RunRecord](), list[ProcessLock]()
    try:
        for record in store.unfinished():
            lock = store.lock(record.name)
            if lock is None:
                continue
            locks.append(lock)
            current = store.get(record.name)
            if current is not None and current.stage == "accepted":
                held.append(current)
        report(held)
        for record in held:
            store.advance(record.name, "reported")
    finally:
        for lock in locks:
            lock.release(remove=True)


def _same(store: Store, submission: Submission) -> list[RunRecord]:
    """Unfinished submissions of the same job from this very store: runs that exist before those that may, the newest
    first."""
    wanted = (submission.key, submission.submitter, store.salt)
    found = [item for item in reversed(store.unfinished()) if (item.key, item.submitter, item.store) == wanted]
    return sorted(found, key=lambda item: item.stage != "accepted")


@contextmanager
def _take_over(store: Store, record: RunRecord) -> Iterator[RunRecord | None]:
    """The record as it is now, which may have moved on, held against all other processes; None while its submitter
    lives, or when it has been forgotten."""
    lock = store.lock(record.name)
    if lock is None:
        yield None
        return
    try:
        yield store.get(record.name)
    finally:
        lock.release(remove=True)


def _start(store: Store, submission: Submission, unreported: tuple[RunRecord, ...]) -> Submitted:
    """Start a run under the next number whose name neither the store nor the target has."""
    beyond = 0
    while True:
        counter = max(store.next_counter(submission.key, submission.submitter), beyond + 1)
        plan = submission.plan_of(counter)
        record = _planned(store, submission, plan, counter)
        kept = None if submission.kept_of is None else submission.kept_of(plan)
        lock = store.reserve(record, submission.outputs_of(plan), submission.origin, kept)
        if lock is None:
            beyond = counter if store.get(record.name) is not None else beyond
            continue
        try:
            _send(store, submission, plan, record)
            return _report(store, submission, Submitted(record, unreported=unreported))
        except NameTaken:
            beyond = counter
        finally:
            lock.release(remove=True)


def _planned(store: Store, submission: Submission, plan: Plan, counter: int) -> RunRecord:
    return RunRecord(
        name=plan.run_name,
        target=plan.target,
        place=plan.place,
        job_name=plan.job_name,
        key=submission.key,
        submitter=submission.submitter,
        store=store.salt,
        counter=counter,
        stage="planned",
        state=RunState.PENDING.value,
        reason=None,
        created=store.now(),
        started=None,
        ended=None,
    )


def _send_again(
    store: Store, submission: Submission, record: RunRecord, unreported: tuple[RunRecord, ...]
) -> Submitted:
    """The request of a dead process left and is not there: it may still arrive, or was lost.

    Raises:
        TargetUnreachable: the target would run both; the first has to arrive or be lost for certain.
    """
    left = _may_arrive_for(store, submission.service, record)
    if left > 0 and not submission.service.names_are_unique:
        raise TargetUnreachable(
            f"`{record.name}` was sent by a command that was cut off, and may still arrive",
            hint=f"run the same command again in {math.ceil(left)} s",
        )
    _send(store, submission, submission.plan_of(record.counter), record)
    return _report(store, submission, Submitted(record, unreported=unreported))


def _send(store: Store, submission: Submission, plan: Plan, record: RunRecord) -> None:
    """Take all steps until the target has the run. The lock of the record is held."""
    service = submission.service
    try:
        service.upload(plan, submission.bundle, on_bytes=submission.on_bytes)
        if record.stage == "planned":
            store.advance(record.name, "uploaded")
            if _is_taken(service, plan):
                raise NameTaken(f"`{plan.target}` has another run `{plan.run_name}`", hint="it gets the next name")
        store.advance(record.name, "sent")
        service.submit(plan, again=record.stage == "sent")
    except BaseException as error:
        _forget_if_not_there(store, service, record, error)
        raise


def _is_taken(service: Service, plan: Plan) -> bool:
    try:
        return service.has(plan.ref)
    except NameTaken:
        return True


def _report(store: Store, submission: Submission, submitted: Submitted) -> Submitted:
    """Write down that the target has the run, tell the user, and write that down too. A store that cannot be written
    any more keeps nobody from hearing of a run that costs money."""
    try:
        if not submitted.adopted:
            store.advance(submitted.record.name, "accepted")
    except StoreError:
        submission.report(submitted)
        raise
    submission.report(submitted)
    for record in (submitted.record, *submitted.unreported):
        store.advance(record.name, "reported")
    return submitted


def _forget_if_not_there(store: Store, service: Service, record: RunRecord, error: BaseException) -> None:
    """Before the request left, the name is free again at once; after that, only where it is certain that the target
    does not have it: it has refused, or it has answered and nothing is on its way."""
    current = store.get(record.name)
    if current is None or current.stage in ("accepted", "reported"):
        return
    refused = isinstance(error, TargetError) and not isinstance(error, TargetUnreachable)
    was_sent_before = record.stage == "sent"
    try:
        certain = (refused and not was_sent_before) or not service.in_flight
        is_of_others = isinstance(error, NameTaken) and not was_sent_before
        never_arrived = current.stage != "sent" or is_of_others or (certain and _withdraw(service, record))
    except CloudtrainError:
        return  # the next command asks again
    if never_arrived:
        store.forget(record.name)


def _settle(store: Store, service_of: ServiceOf, record: RunRecord) -> Recovered:
    if record.stage != "sent":
        store.forget(record.name)
        return Recovered(record.name, "forgotten", f"it stopped at `{record.stage}`, so nothing was sent")
    try:
        service = service_of(service_name(record.key, record.target))
        left = _may_arrive_for(store, service, record)
        arrived = service.has(record.ref) if left > 0 else not _withdraw(service, record)
    except CloudtrainError as error:
        return Recovered(record.name, "unknown", f"`{record.target}` could not be asked: {error.message}")
    if arrived:
        store.advance(record.name, "accepted")
        return Recovered(record.name, "finished", f"`{record.target}` has the run")
    if left > 0:
        detail = f"`{record.target}` has no such run yet; its request may arrive within {math.ceil(left)} s"
        return Recovered(record.name, "unknown", detail)
    store.forget(record.name)
    return Recovered(record.name, "forgotten", f"`{record.target}` has no such run")


def _withdraw(service: Service, record: RunRecord) -> bool:
    """A run of that name that somebody else made means that ours can be none any more."""
    try:
        return service.withdraw(record.ref)
    except NameTaken:
        return True


def _may_arrive_for(store: Store, service: Service, record: RunRecord) -> float:
    """How many seconds longer the request may be on its way. After a reboot only what passed since then is certain."""
    return service.in_flight - store.seconds_since(record.name, "sent", at_least=True)
