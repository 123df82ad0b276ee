"""The kinds of submissions, each as a `Sending`: a new job, an earlier run again, a sweep that goes
on, the trial of a sweep, a rehearsal, and a run that has waited. `send_once` sends them all."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from cloudtrain.code.files import Entry
from cloudtrain.code.tree import SourceChanged
from cloudtrain.documents import JsonMapping
from cloudtrain.errors import (
    CloudtrainError,
    JobError,
    PreflightError,
    TargetError,
    UsageError,
    dotted,
    join_names,
)
from cloudtrain.job.file import JobFile, fields_of, model_of_kind
from cloudtrain.job.overrides import override
from cloudtrain.job.training import BUNDLED
from cloudtrain.lifecycle.detached.driven import ensure_sender, watch_interval
from cloudtrain.lifecycle.notifications.channels import check_channels, own_channels
from cloudtrain.lifecycle.past.sent import JobSource, SameCode, code_of, keep_plan, settings_of
from cloudtrain.lifecycle.preparing.hidden import texts_of
from cloudtrain.lifecycle.preparing.prepare import NAMELESS, NAMELESS_SWEEP, Ready, prepare
from cloudtrain.lifecycle.store.records import (
    NOWHERE,
    JobRecord,
    KeptFile,
    Origin,
    Outlay,
    labels_of,
    origin_here,
)
from cloudtrain.lifecycle.store.schema import open_store
from cloudtrain.lifecycle.store.store import RunRecord, Store
from cloudtrain.lifecycle.submission.approval import hash_of
from cloudtrain.lifecycle.submission.once import (
    ANY_PLAN,
    Expected,
    Sending,
    Submitted,
    Watch,
    find_service,
    send_once,
)
from cloudtrain.machines.spending import Spending
from cloudtrain.plans.plan import HIDDEN, Plan, Upload, hide
from cloudtrain.plans.progress import Trial
from cloudtrain.plans.states import AFTER, CAPACITY, TRIAL, TUNER
from cloudtrain.rules.engine import can_be_ignored, plural
from cloudtrain.rules.machines import over_cap, spending_of, without_price
from cloudtrain.rules.values import values_to_hide
from cloudtrain.system.git import Commit, Differences, commit_of, git_timeout
from cloudtrain.targets.common.compiling import run_name, submission_key
from cloudtrain.targets.contract import BundleWriter, Service, Tuner
from cloudtrain.targets.registry import service_of, target_of
from cloudtrain.targets.settings import CAPS, Settings, TargetSettings, load_settings
from cloudtrain.targets.where import Where
from cloudtrain.version import __version__

if TYPE_CHECKING:
    from cloudtrain.job.processing import AnyJob
    from cloudtrain.lifecycle.capacity.plan import ReadyList
    from cloudtrain.lifecycle.detached.waiting import Order, Try
    from cloudtrain.lifecycle.sweeps.plan import ReadySweep
    from cloudtrain.lifecycle.sweeps.service import Specification


def submit(
    sending: Sending, here: Settings, exactly: Plan | JsonMapping | str | None = None
) -> Submitted:
    """Send a job exactly once, through this user's run store. `exactly`: the only plan that may be
    sent, as the public `submit` describes it.

    Raises:
        SettingsError: a mistake in `[notify]` or `[approval]`; nothing was sent.
        PlanDiffers: the plan is another one; nothing was sent.
        PersonNeeded: the user has not approved the plan; nothing was sent.
    """
    sending = replace(sending, expected=_expected(exactly))
    channels = own_channels()
    check_channels(channels, here.environ)
    with open_store(here.state_dir) as store:
        if channels:  # before the run exists, so that it is watched if this process dies
            store.outbox.turn_on(store.now())
            ensure_sender(here)
        began = time.monotonic()
        try:
            submitted = send_once(store, sending, lambda name: find_service(name, here))
        except SourceChanged as error:
            unfinished_keys = {record.key for record in store.unfinished()}
            error.may_plan_again = sending.key not in unfinished_keys
            raise
        # a sender waits longer than this for its first run
        if channels and time.monotonic() - began > watch_interval():
            ensure_sender(here)
        return submitted


def _expected(exactly: Plan | JsonMapping | str | None) -> Expected:
    """Return the plan that may be sent. Raises UsageError if a hash is none (CT909)."""
    if exactly is None:
        return ANY_PLAN
    before: JsonMapping | None = None
    if isinstance(exactly, Plan):
        exactly = replace(exactly, processes=()).to_dict()
    if isinstance(exactly, str):
        sha256 = hash_of(exactly)
    else:
        before = exactly
        sha256 = hash_of(str(exactly.get("sha256")))

    def error(store: Store, plan: Plan) -> CloudtrainError:
        # importing it takes time, and most plans are the expected ones
        from cloudtrain.lifecycle.past.differences import plan_differs

        kept = store.plans.asked(sha256)
        shown = kept[0].shown if before is None and kept else before
        return plan_differs(sha256, shown, plan)

    return Expected(sha256, error)


def make_sending(
    ready: Ready | ReadyList | ReadySweep,
    *,
    file: JobFile | None,
    online: bool,
    watch: Watch,
) -> Sending:
    """Return the submission of a new job or sweep. If the job reads from runs that have not ended,
    a process on this machine will send it."""
    here = ready.where.here
    tree = ready.first.tree
    original = ready.original
    job = cast("AnyJob", getattr(original, "job", original))  # of a sweep, the job of its trials
    is_sweep = ready.first is not ready

    source = JobSource()
    if file is not None:
        source = JobSource(str(Path(file.file).absolute()), file.text, file.overrides)
    differences = None
    # a bundled script is part of cloudtrain, whatever repository that is installed in
    if not (job.source_dir or "").startswith(BUNDLED):
        source = source._replace(commit=commit_of(tree.root) or source.commit)
    if source.commit.commit:
        differences = Differences(tree.root)  # git works while the job is compiled

    service: Service = ready.service
    key = ready.key
    listed = cast("ReadyList", ready) if key.startswith(CAPACITY) else None
    if listed is not None:
        service = listed.service_keeping(source)
    if ready.waits_for:
        from cloudtrain.lifecycle.detached.waiting import ChainService

        # the run waits in a folder of its own until its watcher sends it to the target
        service = ChainService(
            here.environ, here.state_dir, after=ready.waits_for, key=key, submitter=here.submitter
        )
        key = AFTER + key

    def plan_of(store: Store, counter: int) -> Plan:
        plan = ready.plan(counter, store.salt, is_asked=online)
        plan = ready.check_online(plan, ask=online, may_wait=True)
        _approve(plan, watch)
        if listed is not None:  # each entry has the caps of its own target
            for entry, its_plan in zip(listed.entries, listed.plans(plan.run_name), strict=True):
                outlay = _outlay(entry)(its_plan)
                if outlay.check is not None:
                    outlay.check(store.committed(its_plan.target))
        if watch.on_changes is not None and not is_sweep:
            from cloudtrain.lifecycle.past.differences import changes_since_last

            with suppress(CloudtrainError, OSError):
                watch.on_changes(changes_since_last(store, ready.first, plan))
        return plan

    def record(_: Store, plan: Plan) -> tuple[Origin, JobRecord]:
        if listed is not None:
            return origin, listed.record(plan, source)
        return origin, keep_plan(ready.first, original, plan, source)

    def finish(store: Store, name: str) -> None:
        difference = None
        if differences is not None:
            difference = differences.close(git_timeout())
        if difference is not None:  # git has answered in time
            store.keep_difference(name, difference)

    origin = origin_here(project=original.folder, labels=ready.labels)
    return Sending(
        service, key, here.submitter, tree, plan_of, _outlay(ready), record, watch, finish
    )


def make_rerun(
    row: RunRecord,
    old_record: JobRecord,
    here: Settings,
    *,
    name: str | None,
    watch: Watch,
) -> Sending:
    """Return the submission of a run's request under a new run name. The new run belongs to the job
    `name`; None: to the same job.

    Raises:
        UsageError: the run had secrets, which are not kept (CT973).
    """
    if old_record.hidden:
        paths = [path for path in old_record.hidden if path not in ("settings", "request")]
        raise _lost_secrets(row, paths)

    job_name = name or row.job_name
    key = row.key
    old_plan = plan_of_record(row, old_record)
    if job_name != row.job_name or key.startswith(TRIAL):  # a trial becomes an ordinary run
        fields = {**old_record.job, "name": job_name}
        job_name = _make_job(old_record.kind, fields).name  # which checks it
        key = submission_key(replace(old_plan.renamed(NAMELESS), job_name=job_name))
        overrides = (*old_record.overrides, f"name={job_name}")
        old_record = old_record._replace(job=fields, overrides=overrides)
    service = service_of(row.target, here)
    code = SameCode(old_record, row.ref, service)

    def plan_of(store: Store, counter: int) -> Plan:
        new_name = run_name(job_name, key, here.submitter, store.salt, counter)
        with_outputs = replace(old_plan, outputs=store.outputs_of(row.name))
        notes = (f"the code and the request are those of `{row.name}`",)
        plan = replace(with_outputs.renamed(new_name), job_name=job_name, notes=notes)
        _approve(plan, watch)
        return plan

    def record(store: Store, plan: Plan) -> tuple[Origin, JobRecord]:
        return _record_rerun(
            store, row, old_record, plan, {"job_name": plan.job_name, "findings": []}
        )

    outlay = _outlay_of_record(old_record, here)
    return Sending(service, key, here.submitter, code, plan_of, outlay, record, watch)


@contextmanager
def make_changed_rerun(
    row: RunRecord,
    old_record: JobRecord,
    overrides: Sequence[str],
    here: Settings,
    *,
    ignore: Sequence[str],
    online: bool,
    watch: Watch,
) -> Iterator[Sending]:
    """Yield the submission of a run's job with overrides, with the same code and the same settings
    of the target."""
    job = _job_with(overrides, old_record.kind, old_record.prepared or old_record.job)
    record_job = _job_with(overrides, old_record.kind, old_record.job)

    missing = dict[str, None]()
    for path, text in texts_of(fields_of(job)):
        # any other asterisks are the user's own text
        if HIDDEN in text and dotted(path) in old_record.hidden:
            missing[dotted(path)] = None
    settings = settings_of(old_record)
    if missing or settings is None:
        raise _lost_secrets(row, list(missing))

    service = service_of(row.target, here)
    with code_of(old_record, row.ref, service) as tree:
        # under the caps that the settings files hold now
        names = set(CAPS) & type(settings).model_fields.keys()
        uncapped = settings.replace(**dict.fromkeys(names))
        where = Where.of(load_settings().capped(uncapped), here)
        ready = prepare(job, where, ignore=ignore, tree=tree)

        def plan_of(store: Store, counter: int) -> Plan:
            plan = ready.plan(counter, store.salt, is_asked=online)
            plan = ready.check_online(plan, ask=online)
            _approve(plan, watch)
            return plan

        def record(store: Store, plan: Plan) -> tuple[Origin, JobRecord]:
            source = _source_of(old_record)
            source = source._replace(overrides=(*source.overrides, *overrides))
            new_record = keep_plan(ready, record_job, plan, source)
            origin = _origin_of_rerun(store, row)._replace(labels=ready.labels)
            return origin, new_record._replace(rerun_of=row.name)

        code = SameCode(old_record, row.ref, service)
        outlay = _outlay(ready)
        yield Sending(service, ready.key, here.submitter, code, plan_of, outlay, record, watch)


def make_continuation(
    row: RunRecord,
    old_record: JobRecord,
    tuner: Tuner,
    trials: int,
    here: Settings,
    *,
    watch: Watch,
) -> Sending:
    """Return the submission of a sweep that continues the tuner's sweep `row` with `trials`
    additional trials."""
    if old_record.hidden:
        secret = old_record.hidden[0]
        message = f"the store keeps no secrets, and `{row.name}` had one in `{secret}`"
        raise UsageError(message, hint="submit the sweep again", code="CT973")

    trial_count = len(tuner.trials(row.ref))
    old_plan = plan_of_record(row, old_record)

    def plan_as(name: str) -> Plan:
        plan = old_plan.renamed(name)
        request = tuner.continued(plan.request, row.name, trials, trial_count)
        return replace(plan, request=request, summary=())

    def record(store: Store, plan: Plan) -> tuple[Origin, JobRecord]:
        with_trials = old_record._replace(job={**old_record.job, "trials": trials})
        return _record_rerun(store, row, with_trials, plan, {})

    key = TUNER + submission_key(plan_as(NAMELESS_SWEEP))
    code = SameCode(old_record, row.ref, tuner)
    plan_of = _named_by(plan_as, row.job_name, key, here)
    outlay = _outlay_of_record(old_record, here)
    return Sending(tuner, key, here.submitter, code, plan_of, outlay, record, watch)


def make_trial(
    specification: Specification,
    trial: Trial,
    key: str,
    code: BundleWriter,
    *,
    watch: Watch,
) -> Sending:
    """Return the submission of one trial of a sweep. The store's record of the trial contains the
    trial's job, and the job file and commit of the sweep's own record."""
    ready = specification.trial(trial.number, trial.values)
    secrets = values_to_hide(ready.work.view)
    origin = Origin(labels=hide(labels_of(ready.work), secrets))

    def plan_of(_: Store, counter: int) -> Plan:
        return specification.trial_plan(trial.number, trial.values, counter)

    def record(store: Store, plan: Plan) -> tuple[Origin, JobRecord | None]:
        sweep = store.kept(specification.name)
        if sweep is None:
            return origin, None
        files = tuple(Entry(*file) for file in sweep.files)
        with_files = replace(ready, tree=replace(ready.tree, entries=files))
        source = _source_of(sweep)._replace(text=None, overrides=())
        return origin, keep_plan(with_files, ready.work, plan, source)

    submitter = ready.where.here.submitter
    outlay = _outlay(ready, specification.name)
    return Sending(ready.service, key, submitter, code, plan_of, outlay, record, watch)


def make_repetition(
    plan_as: Callable[[str], Plan],
    job_name: str,
    service: Service,
    code: BundleWriter,
    here: Settings,
) -> Sending:
    """Return the submission of a run on this machine that repeats another with changes. `plan_as`
    returns the plan for a run name."""
    key = submission_key(plan_as(NAMELESS))
    plan_of = _named_by(plan_as, job_name, key, here)
    return Sending(service, key, here.submitter, code, plan_of, lambda _: Outlay())


def make_delayed(order: Order, service: Service, code: BundleWriter, *, watch: Watch) -> Sending:
    """Return the submission of a run that has waited for others. It keeps the name that it waited
    under, and its outlay, which was recorded under this name when it began to wait."""
    plan = order.plan

    def plan_of(_: Store, counter: int) -> Plan:
        if counter > 1:
            message = f"`{plan.target}` already has another run named `{plan.run_name}`"
            raise TargetError(message, hint="submit the job again", code="CT945")
        return plan

    return Sending(
        service,
        order.key,
        order.submitter,
        code,
        plan_of,
        lambda _: Outlay(),
        watch=watch,
        has_passed=True,
    )


def make_try(
    item: Try,
    key: str,
    name_of: Callable[[int], str],
    outlay: Outlay,
    submitter: str,
    service: Service,
    code: BundleWriter,
    *,
    watch: Watch,
) -> Sending:
    """Return the submission of a try of a list. `name_of` returns its name for a counter."""

    def plan_of(_: Store, counter: int) -> Plan:
        return item.plan.renamed(name_of(counter))

    def record(_: Store, plan: Plan) -> tuple[Origin, JobRecord]:
        files = tuple(KeptFile(*file) for file in item.record["files"])
        kept = JobRecord(**{**item.record, "files": files})
        # without the secrets that are sent
        shown = replace(item.plan, request=kept.plan["request"]).renamed(plan.run_name)
        fields = {**kept.plan, "run_name": plan.run_name, "request": shown.request}
        return NOWHERE, kept._replace(plan={**fields, "sha256": plan.sha256})

    return Sending(
        service,
        key,
        submitter,
        code,
        plan_of,
        lambda _: outlay,
        record,
        watch,
        has_passed=True,
    )


def outlay_of(spending: Spending, settings: TargetSettings, *, is_asked: bool = False) -> Outlay:
    """Return what a submission takes of the caps in `settings`. `is_asked`: the target was asked
    which machines its computes have.

    Raises:
        UsageError: it can spend more than a cap, or that is not known (CT073).
    """

    def check(spent: float) -> None:
        if spent == inf:
            raise UsageError(
                "what the runs of the last 24 hours can spend is not known",
                hint="`cloudtrain cost` asks for their bills; or remove `max_cost_per_day`",
                code="CT073",
            )
        unpriced = without_price(spending, settings, settings.type, is_asked=is_asked)
        fault = next(unpriced, None) or over_cap(spending, settings, spent)
        if fault is not None:
            raise UsageError(fault.message, hint=fault.hint, code="CT073")

    check(0.0)
    has_cap = getattr(settings, "max_cost_per_day", None) is not None
    return Outlay(spending.most, spending.pool, spending.hourly, check=check if has_cap else None)


def _outlay(ready: Ready | ReadyList | ReadySweep, sweep: str = "") -> Callable[[Plan], Outlay]:
    """Return the `Sending.outlay` of a job or sweep, or of a trial of `sweep`."""
    settings = ready.where.settings

    def outlay(plan: Plan) -> Outlay:
        # the checks of the plan have refused a compute of which the target was not asked
        return outlay_of(ready.spending(plan), settings, is_asked=True)._replace(sweep=sweep)

    return outlay


def _outlay_of_record(record: JobRecord, here: Settings) -> Callable[[Plan], Outlay]:
    """Return the `Sending.outlay` of a request that is sent again as it is in `record`, under the
    caps that the settings files hold now."""

    def outlay(plan: Plan) -> Outlay:
        if not target_of(plan.target).facts.is_paid:
            return Outlay()
        spending = Spending((), None, 0.0)
        with suppress(JobError):  # an earlier version may have had other fields
            where = Where.of(cast("TargetSettings", settings_of(record)), here)
            work = _make_job(record.kind, record.prepared or record.job)
            job = cast("AnyJob", getattr(work, "job", work))
            reading = where.target.read(job.view, where.settings, where.account, plan, None)
            spending = spending_of(reading)
        return outlay_of(spending, load_settings().target(plan.target))

    return outlay


def _named_by(
    plan_as: Callable[[str], Plan], job_name: str, key: str, here: Settings
) -> Callable[[Store, int], Plan]:
    """Return a `Sending.plan_of` that gives `plan_as` the run's name."""

    def plan_of(store: Store, counter: int) -> Plan:
        return plan_as(run_name(job_name, key, here.submitter, store.salt, counter))

    return plan_of


def _approve(plan: Plan, watch: Watch) -> None:
    """Show the plan, then raise PreflightError if it has errors."""
    if watch.on_plan is not None:
        watch.on_plan(plan)
    stop_on_errors(plan)


def stop_on_errors(plan: Plan) -> None:
    """Raise PreflightError if the plan has errors, so that it is not sent."""
    if not plan.errors:
        return

    texts = []
    for error in plan.errors:
        advice = f"\n  hint: {error.hint}" if error.hint else ""
        texts.append(f"{error.message} [{error.code}]{advice}")
    message = f"{plural(len(texts), 'check')} found an error, so nothing was sent"
    code = plan.errors[0].code
    hint = f"`cloudtrain explain {code}` explains it"
    if can_be_ignored(code):
        hint += f", and `--ignore {code}` ignores it"
    raise PreflightError(message, findings=plan.findings, errors=texts, hint=hint)


def _origin_of_rerun(store: Store, row: RunRecord) -> Origin:
    """Return the origin of a run that repeats `row`: this folder and terminal, and the project and
    labels of `row`."""
    old_origin = store.origin_of(row.name)
    return origin_here()._replace(project=old_origin.project, labels=old_origin.labels)


def _record_rerun(
    store: Store, row: RunRecord, old_record: JobRecord, plan: Plan, changes: Mapping[str, object]
) -> tuple[Origin, JobRecord]:
    """Return the origin and the record of a run that sends the request of `row` under the name of
    `plan`. `changes` are further fields of the plan's record that differ."""
    fields = {**old_record.plan, "run_name": plan.run_name, "request": plan.request}
    fields |= {"sha256": plan.sha256, **changes}
    record = old_record._replace(plan=fields, version=__version__, rerun_of=row.name)
    return _origin_of_rerun(store, row), record


def _source_of(record: JobRecord) -> JobSource:
    commit = Commit(record.commit, record.branch, record.dirty, record.difference)
    return JobSource(record.file, record.text, record.overrides, commit)


def plan_of_record(row: RunRecord, record: JobRecord) -> Plan:
    """Return the plan that was sent for a run: its request, uploads and summary."""
    uploads = tuple(Upload(**item) for item in record.plan["uploads"])
    return Plan(
        target=row.target,
        run_name=row.name,
        job_name=row.job_name,
        request=record.plan["request"],
        uploads=uploads,
        summary=tuple(record.plan["summary"].items()),
        place=row.place or "",
    )


def _lost_secrets(row: RunRecord, paths: Sequence[str]) -> UsageError:
    """Return the error for a rerun that lacks secrets. `paths` are their fields in the job; empty
    if none is in the job."""
    what = "an address in the settings or the request"
    hint = "submit the job again"
    if paths:
        what = join_names(paths, len(paths))
        options = " ".join(f"--set {path}=VALUE" for path in paths)
        hint = f"give it again: `cloudtrain rerun {row.name} {options}`"
    message = f"the store does not keep secrets, and `{row.name}` had a secret in {what}"
    return UsageError(message, hint=hint, code="CT973")


def _job_with(overrides: Sequence[str], kind: str, fields: Any) -> AnyJob:
    data, changes = override(deepcopy(dict(fields)), overrides, model_of_kind(kind))
    if changes.problems:
        raise JobError(changes.problems)
    return _make_job(kind, data)


def _make_job(kind: str, fields: Any) -> AnyJob:
    job: AnyJob = model_of_kind(kind)(**fields)
    return job
