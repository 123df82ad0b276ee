"""Exactly-once submission: every step is recorded before it begins, so that recovery is possible
after any crash.

    planned     the run name is taken; nothing has left this machine
    uploaded    the bundle is in place
    sent        the target has no run of that name, and the request is about to leave
    accepted    the target has the run
    reported    cloudtrain has shown the run's name to the user

The next command settles a submission whose process died. Before `sent`, no request has left this
machine, so the submission is forgotten. From `sent` on, cloudtrain asks the target for the run. The
target had no run of that name when the stage was recorded, so a run that exists now comes from this
request. This logic uses neither the target's clock nor this machine's wall clock.

A request may still be in transit when its sender dies. So for `Service.in_flight` seconds, a target
that has no such run may still receive the request. During that time the record stays, and the next
submit of the same job sends the request again under the same name, which the target accepts only
once. A submission that the target refused is forgotten immediately.

A process may die after it printed the name and before it recorded the stage `reported`. Therefore a
run that was accepted and possibly not reported is offered again: the next submit of the same job
within `OFFERED_FOR` reports that run and starts no new one. A later submit starts a new run, and
names the older run as well.

Until a reboot, the time since acceptance is exact. After a reboot it comes from the wall clock. If
that clock was set forward, the run looks older than it is, so a new run starts and the older run is
only named. Counting only the time since the reboot would be worse: a machine that is booted for
each submit would report last week's run and start no new one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from cloudtrain.errors import (
    CloudtrainError,
    NameTaken,
    PersonNeeded,
    PlanDiffers,
    StoreError,
    TargetError,
    TargetUnreachable,
)
from cloudtrain.lifecycle.store.plans import OPEN
from cloudtrain.lifecycle.store.records import NOWHERE, JobRecord, Origin, Outlay
from cloudtrain.lifecycle.store.store import SENT, RunRecord, Store
from cloudtrain.lifecycle.submission.approval import gate_of
from cloudtrain.plans.plan import Plan
from cloudtrain.plans.states import AFTER, CAPACITY, SWEEP, TUNER, RunRef, RunState, service_name
from cloudtrain.system.plugins import part
from cloudtrain.targets.contract import BundleWriter, ByteProgress, Service, TunerMaker
from cloudtrain.targets.registry import ServiceContext, service_of, target_of

if TYPE_CHECKING:
    from cloudtrain.lifecycle.past.differences import Changes

OFFERED_FOR = 24 * 3600.0
"""Seconds for which a run that was possibly not reported is offered to the next submit of the same
job."""

ServiceOf = Callable[[str], Service]
"""Maps the name of a service to the service: a target's, or one of `cloudtrain.plans.states`."""


class Expected(NamedTuple):
    """The only plan that may be sent: its hash or the beginning of it, empty if any may be sent;
    and a function that returns the error for another plan, with what differs."""

    sha256: str = ""
    error: Callable[[Store, Plan], CloudtrainError] | None = None


ANY_PLAN = Expected()


class Recovered(NamedTuple):
    """A submission whose process died, and its outcome after recovery."""

    name: str
    outcome: Literal["finished", "forgotten", "unknown"]
    detail: str


class Watch(NamedTuple):
    """Functions that show a submission to the user while it proceeds.

    Attributes:
        on_plan: called with the plan before anything is sent.
        on_changes: called with the changes since the job's last run, or with None if the job has no
            earlier run.
        on_bytes: called with the number of bytes uploaded so far, and the size of the bundle.
        on_run: called with the run. After it returns, the run is recorded as reported.
    """

    on_plan: Callable[[Plan], None] | None = None
    on_changes: Callable[[Changes | None], None] | None = None
    on_bytes: ByteProgress | None = None
    on_run: Callable[[Submitted], None] = lambda _: None


SILENT = Watch()


@dataclass(frozen=True)
class Sending:
    """A job to submit. `cloudtrain.lifecycle.submission.submit` makes it.

    Attributes:
        service: takes the request and the code.
        key: hash that is equal for submissions of the same job; see `RunRecord.key`.
        plan_of: compiles and checks the plan of the run with a given number.
        outlay: returns what the plan takes of the caps on spending. Raises UsageError if it is more
            than a cap allows (CT073).
        record: returns the folder and terminal that the job is submitted from, with the job's
            labels, and the record of the plan for the store.
        finish: called with the run's name when the run is reported, to complete the record.
        expected: the only plan that may be sent, if the caller names one.
        has_passed: whether the run passed its gate when it began to wait for others.
    """

    service: Service
    key: str
    submitter: str
    code: BundleWriter
    plan_of: Callable[[Store, int], Plan]
    outlay: Callable[[Plan], Outlay]
    record: Callable[[Store, Plan], tuple[Origin, JobRecord | None]] = lambda *_: (NOWHERE, None)
    watch: Watch = SILENT
    finish: Callable[[Store, str], None] | None = None
    expected: Expected = ANY_PLAN
    has_passed: bool = False


class Submitted(NamedTuple):
    """The run that results from a submit.

    Attributes:
        adopted: whether an earlier command submitted the run: an interrupted one, which may not
            have reported it, or one that sent the expected plan.
        unreported: earlier runs of the same job that the user may not have seen, but that are too
            old to be adopted.
    """

    record: RunRecord
    adopted: bool = False
    unreported: tuple[RunRecord, ...] = ()


def send_once(store: Store, sending: Sending, service_of: ServiceOf) -> Submitted:
    """Submit a job so that exactly one run exists, is in the store, and is reported.

    First settles interrupted submissions of earlier commands. Then does one of three things:
    returns an earlier run of this job, if perhaps no command has told the user about it; sends an
    earlier request again; or starts a new run.
    """
    submitted = _send_or_adopt(store, sending, service_of)
    if sending.finish is not None and not submitted.adopted:
        sending.finish(store, submitted.record.name)
    return submitted


def _send_or_adopt(store: Store, sending: Sending, service_of: ServiceOf) -> Submitted:
    """Do all of `send_once` but `sending.finish`."""
    recover(store, service_of)
    found = _sent_as_expected(store, sending)
    if found is not None:
        return found

    expected = sending.expected.sha256
    too_old = list[RunRecord]()
    for record in _unfinished_of(store, sending):
        with _take_over(store, record) as current:
            if current is None:
                continue
            is_meant = not expected or store.plans.run_of(expected) == current.name
            if current.stage == "accepted":
                is_recent = store.seconds_since(current.name, "accepted") < OFFERED_FOR
                if is_meant and is_recent:
                    found = Submitted(current, adopted=True, unreported=tuple(too_old))
                    return _report(store, sending, found)
                too_old.append(current)
            elif current.stage == "sent" and is_meant:
                return _send_again(store, sending, current, tuple(too_old))
    return _start(store, sending, tuple(too_old))


def _sent_as_expected(store: Store, sending: Sending) -> Submitted | None:
    """Return the run that was sent and reported with the expected plan, if there is one.

    Raises:
        TargetUnreachable: another command is sending this plan now.
    """
    expected = sending.expected.sha256
    name = store.plans.run_of(expected) if expected else None
    if name is None:
        return None
    record = store.get(name)
    if record is None:
        message = f"the plan {expected[:12]} was sent as `{name}`, which was removed"
        raise PlanDiffers(message, hint="make a new plan: `cloudtrain plan`")
    with _take_over(store, record) as current:
        if current is None and store.get(name) is not None:
            message = f"another command is sending the plan {expected[:12]} as `{name}`"
            raise TargetUnreachable(message, hint="run the same command again in a few seconds")
        if current is None or current.stage != "reported":
            return None
    submitted = Submitted(current, adopted=True)
    sending.watch.on_run(submitted)
    return submitted


def find_service(name: str, context: ServiceContext) -> Service:
    """Return a service by its name in the store: `local` is the service of that target,
    `sweep:local` cloudtrain's driver of sweeps, `tuner:sagemaker` the tuner of that target,
    `after:local` the service for waiting runs, and `capacity:local` that for lists of
    alternatives."""
    if name.startswith(AFTER):
        from cloudtrain.lifecycle.detached.waiting import ChainService

        return ChainService(context.environ, context.state_dir)
    if name.startswith(CAPACITY):
        from cloudtrain.lifecycle.capacity.service import CapacityService

        return CapacityService(context.environ, context.state_dir)
    if name.startswith(SWEEP):
        from cloudtrain.lifecycle.sweeps.service import SweepService

        return SweepService(context.environ, context.state_dir)
    if name.startswith(TUNER):
        make_tuner = part(target_of(name.removeprefix(TUNER)), TunerMaker)
        assert make_tuner is not None, "the target has submitted a sweep to its tuner"
        return make_tuner(context.environ)
    return service_of(name, context)


def recover(store: Store, service_of: ServiceOf) -> list[Recovered]:
    """Finish or forget every submission whose process died. Submissions of living processes are not
    touched."""
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
    """Return whether a submission must be recovered (finished or forgotten). Assumes that its
    process is dead."""
    if record.stage == "accepted":
        return not _is_own(store, record)
    return record.stage != "reported"


def _is_own(store: Store, record: RunRecord) -> bool:
    """Return whether the submission was made with this store. A copied store also contains
    submissions of the original store, which reports them itself."""
    return record.store in ("", store.salt)


def report_accepted(store: Store, report: Callable[[Sequence[RunRecord]], None]) -> None:
    """Call `report` with all accepted runs that the user may not have seen, and record these runs
    as reported."""
    with ExitStack() as stack:
        records = []
        for record in store.unfinished():
            current = stack.enter_context(_take_over(store, record))
            if current is not None and current.stage == "accepted":
                records.append(current)
        report(records)
        for record in records:
            store.advance(record.name, "reported")


def _unfinished_of(store: Store, sending: Sending) -> list[RunRecord]:
    """Return unfinished submissions of the same job from this store: first the accepted ones, then
    the others. Both groups are ordered newest first. Those with a damaged counter are left out: it
    would give them another name."""

    def is_same_job(item: RunRecord) -> bool:
        if item.submitter != sending.submitter or item.store != store.salt:
            return False
        if item.counter <= 0:
            return False
        if item.stage == "accepted":  # perhaps after a wait for earlier runs
            return item.key.removeprefix(AFTER) == sending.key.removeprefix(AFTER)
        return item.key == sending.key

    newest_first = filter(is_same_job, reversed(store.unfinished()))
    return sorted(newest_first, key=lambda item: item.stage != "accepted")


@contextmanager
def _take_over(store: Store, record: RunRecord) -> Iterator[RunRecord | None]:
    """Lock a record against all other processes and yield its current version. Yield None if its
    submitter is alive, or if the record was forgotten."""
    lock = store.lock(record.name)
    if lock is None:
        yield None
        return
    try:
        yield store.get(record.name)
    finally:
        lock.release(remove=True)


def _start(store: Store, sending: Sending, unreported: tuple[RunRecord, ...]) -> Submitted:
    """Start a new run with the next number whose run name is unused in the store and on the
    target."""
    highest_taken = 0
    while True:
        next_in_store = store.next_counter(sending.key, sending.submitter)
        counter = max(next_in_store, highest_taken + 1)
        plan = sending.plan_of(store, counter)
        if not plan.sha256.startswith(sending.expected.sha256):
            # another command may just have sent the expected plan
            found = _sent_as_expected(store, sending)
            if found is not None:
                return found
            if store.get(plan.run_name) is not None:
                highest_taken = counter
                continue
            assert sending.expected.error is not None, "a hash has one"
            raise sending.expected.error(store, plan)
        record = RunRecord(
            name=plan.run_name,
            target=plan.target,
            place=plan.place,
            job_name=plan.job_name,
            key=sending.key,
            submitter=sending.submitter,
            store=store.salt,
            counter=counter,
            stage="planned",
            state=RunState.PENDING.value,
            created=store.now(),
        )
        # `run:...` ignores case
        outputs = {name.lower(): place for name, place in plan.outputs.items()}
        origin, job_record = sending.record(store, plan)
        outlay = sending.outlay(plan)
        gate = OPEN
        if not sending.has_passed:
            is_expected = bool(sending.expected.sha256)
            gate = gate_of(store, plan, job_record, is_expected=is_expected)
        try:
            lock = store.reserve(record, outputs, origin, job_record, outlay, gate)
        except PersonNeeded:
            if job_record is not None:
                store.plans.ask(plan.sha256, job_record.plan, store.now())
            raise
        if lock is None:
            # without such a run, another process has taken the counter; the store knows the next
            if store.get(record.name) is not None:
                highest_taken = counter
            continue

        try:
            _send(store, sending, plan, record)
            return _report(store, sending, Submitted(record, unreported=unreported))
        except NameTaken:
            highest_taken = counter
        finally:
            lock.release(remove=True)


def _send_again(
    store: Store, sending: Sending, record: RunRecord, unreported: tuple[RunRecord, ...]
) -> Submitted:
    """Send the request of a dead process again. Call this only if the target does not have the run:
    the first request may still arrive, or was lost."""
    seconds = _may_arrive_for(store, sending.service, record)
    if seconds > 0 and not sending.service.names_are_unique:  # the target would run both requests
        message = f"`{record.name}` was sent by an interrupted command and may still arrive"
        raise TargetUnreachable(
            message, hint=f"run the same command again in {math.ceil(seconds)} s"
        )
    plan = sending.plan_of(store, record.counter)
    store.spend(record.name, record.target, sending.outlay(plan))
    _send(store, sending, plan, record)
    return _report(store, sending, Submitted(record, unreported=unreported))


def _send(store: Store, sending: Sending, plan: Plan, record: RunRecord) -> None:
    """Upload the code and data, and send the request. The caller holds the lock of the record."""
    service = sending.service
    try:
        service.upload(plan, sending.code, on_bytes=sending.watch.on_bytes)
        if record.stage == "planned":
            store.advance(record.name, "uploaded")
            if _or_taken(service.has, plan.ref):
                message = f"`{plan.target}` already has another run named `{plan.run_name}`"
                raise NameTaken(message, hint="this run gets the next free name")
        store.advance(record.name, "sent")
        service.submit(plan, again=record.stage == "sent")
    except BaseException as error:
        _forget_if_not_there(store, service, record, error)
        raise


def _report(store: Store, sending: Sending, submitted: Submitted) -> Submitted:
    """Record that the target has the run, show the run to the user, and record it as reported. The
    run is shown even if the store can no longer be written, because the run costs money."""
    try:
        if not submitted.adopted:
            store.advance(submitted.record.name, "accepted")
    except StoreError:
        sending.watch.on_run(submitted)
        raise
    sending.watch.on_run(submitted)
    for record in (submitted.record, *submitted.unreported):
        store.advance(record.name, "reported")
    return submitted


def _forget_if_not_there(
    store: Store, service: Service, record: RunRecord, error: BaseException
) -> None:
    """Forget a record if its run cannot exist: the request was not sent yet, the target refused it,
    or the target has no such run and no request can be in transit any more."""
    current = store.get(record.name)
    if current is None or current.stage in SENT:
        return
    if current.stage == "sent":
        try:
            if not _never_arrived(service, record, error):
                return
        except CloudtrainError:
            return  # the next command asks again
    store.forget(record.name)


def _never_arrived(service: Service, record: RunRecord, error: BaseException) -> bool:
    """Return whether `error` shows that the request, which has left this machine, created no run
    and cannot create one any more. If that is not certain, ask the target to withdraw it."""
    is_first_attempt = record.stage != "sent"  # of an earlier request nothing is known
    if is_first_attempt and isinstance(error, NameTaken):
        return True
    refused = isinstance(error, TargetError) and not isinstance(error, TargetUnreachable)
    if service.in_flight and not (refused and is_first_attempt):
        return False
    return _or_taken(service.withdraw, record.ref)


def _settle(store: Store, service_of: ServiceOf, record: RunRecord) -> Recovered:
    """Finish or forget a submission that is not accepted, and return the outcome. The caller holds
    the lock of the record."""
    if record.stage != "sent":
        store.forget(record.name)
        detail = f"it stopped at `{record.stage}`, so nothing was sent"
        return Recovered(record.name, "forgotten", detail)

    try:
        service = service_of(service_name(record.key, record.target))
        seconds = _may_arrive_for(store, service, record)
        if seconds > 0:
            arrived = service.has(record.ref)
        else:
            arrived = not _or_taken(service.withdraw, record.ref)
    except CloudtrainError as error:
        detail = f"`{record.target}` could not be asked: {error.message}"
        return Recovered(record.name, "unknown", detail)

    if arrived:
        store.advance(record.name, "accepted")
        return Recovered(record.name, "finished", f"`{record.target}` has the run")
    if seconds > 0:
        detail = (
            f"`{record.target}` has no such run yet; its request may arrive within "
            f"{math.ceil(seconds)} s"
        )
        return Recovered(record.name, "unknown", detail)
    store.forget(record.name)
    return Recovered(record.name, "forgotten", f"`{record.target}` has no such run")


def _or_taken(ask: Callable[[RunRef], bool], ref: RunRef) -> bool:
    """Return the answer of `Service.has` or `Service.withdraw`; True if another user's run has the
    name, because names are unique: no request can create a run of this name from now on."""
    try:
        return ask(ref)
    except NameTaken:
        return True


def _may_arrive_for(store: Store, service: Service, record: RunRecord) -> float:
    """Return for how many more seconds the request may be in transit. If this machine was rebooted
    after the request was sent, only the time since the reboot counts as elapsed."""
    return service.in_flight - store.seconds_since(record.name, "sent", at_least=True)
