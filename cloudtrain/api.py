"""The public functions that take a job, such as `load_job`, `plan` and `submit`, for notebooks,
scripts and the CLI.

Each function imports the modules that only it needs when it is called, so that `plan` starts
quickly.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from cloudtrain.code.files import escape_path
from cloudtrain.code.tree import SourceChanged
from cloudtrain.documents import JsonMapping
from cloudtrain.errors import (
    CloudtrainError,
    MissingExtra,
    RunNotFound,
    TargetError,
    TargetUnreachable,
    UsageError,
    shortened,
)
from cloudtrain.job.file import SUFFIXES, JobFile
from cloudtrain.job.file import load_job as load
from cloudtrain.job.model import revalidate
from cloudtrain.job.training import BUNDLED, TrainingJob
from cloudtrain.lifecycle.preparing.prepare import PlaceOf, Ready, nowhere, prepare
from cloudtrain.plans.plan import Plan
from cloudtrain.plans.states import AFTER, CAPACITY, SWEEP
from cloudtrain.rules.job import not_asked
from cloudtrain.system.plugins import has_part
from cloudtrain.system.processes import tell
from cloudtrain.targets.contract import ByteProgress, PinsVersions, RunFolders, Unasked
from cloudtrain.targets.registry import usable_target
from cloudtrain.targets.settings import read_environment
from cloudtrain.targets.where import AnyTarget, Where, where

if TYPE_CHECKING:
    from cloudtrain.estimate.report import FitReport
    from cloudtrain.job.processing import AnyJob
    from cloudtrain.job.sweep import Sweep
    from cloudtrain.lifecycle.capacity.plan import ReadyList
    from cloudtrain.lifecycle.past.differences import Changes, Difference, Side
    from cloudtrain.lifecycle.runs.costs import RunCost
    from cloudtrain.lifecycle.runs.run import Run
    from cloudtrain.lifecycle.submission.once import Submitted
    from cloudtrain.lifecycle.sweeps.plan import ReadySweep


def load_job(path: str | Path, overrides: Sequence[str] = ()) -> AnyJob:
    """Return the job in a YAML, TOML or JSON file, with `a.b=value` overrides. Local paths are
    relative to the file.

    Raises:
        JobError: the job has problems; all are listed with line and column.
        UsageError: the file holds a sweep.
    """
    file = load_job_file(path, overrides)
    if file.sweep is not None:
        raise UsageError(
            f"`{path}` holds a sweep, not a job", hint="read it with `ct.load_sweep`", code="CT001"
        )
    return file.job


def load_sweep(path: str | Path, overrides: Sequence[str] = ()) -> Sweep:
    """Return the sweep in a file with `kind: sweep`, with `a.b=value` overrides. `job.a.b=value`
    changes the sweep's job.

    Raises:
        JobError: the sweep has problems; all are listed with line and column.
        UsageError: the file holds a job.
    """
    file = load_job_file(path, overrides)
    if file.sweep is None:
        raise UsageError(
            f"`{path}` holds a job, not a sweep", hint="read it with `ct.load_job`", code="CT001"
        )
    return file.sweep


def load_job_file(path: str | Path, overrides: Sequence[str] = ()) -> JobFile:
    """Read a job file or a sweep file. Return the job or sweep, and the position of each value in
    the file. The path `bundled:NAME` means the job file of a bundled script."""
    text = str(path)
    if not text.startswith(BUNDLED):
        return load(Path(path), overrides)
    from cloudtrain.code.bundled import script_path

    file = script_path(text.removeprefix(BUNDLED)) / "job.yaml"
    job_file = load(file, [*overrides, f"source_dir={text}"])
    # so that the project of the working directory applies
    return job_file._replace(job=job_file.job.from_folder(None))


def bundled_job(name: str, overrides: Sequence[str] = ()) -> TrainingJob:
    """Return the job of a training script that ships with cloudtrain:
    `ct.bundled_job("digits_ddp")`.

    Raises:
        UsageError: no bundled script has that name.
    """
    job = load_job(BUNDLED + name, overrides)
    assert isinstance(job, TrainingJob), "bundled scripts train"
    return job


def plan(
    job: AnyJob | Sweep,
    target: AnyTarget = None,
    *,
    profile: str | None = None,
    ignore: Sequence[str] = (),
    place_of: PlaceOf | None = None,
) -> Plan:
    """Return the plan: what `submit` would send, and the findings of the checks. Sends nothing and
    writes no file.

    Args:
        job: a job or a sweep. Local paths are relative to the working directory. A job that was
            read from a file uses the settings of the file's project.
        target: the name of a target, or a model with account settings. Default: the default target
            in the settings.
        profile: a profile of `cloudtrain.toml`.
        ignore: codes of rules to skip.
        place_of: returns the position of a value in the job's file, for the findings.

    Raises:
        JobError: the target does not support a field of the job; the hint names an alternative.
        TargetUnavailable: the target cannot be used from this machine.
    """
    job = _checked(job, target)
    return _next_plan(_prepare(job, _where(job, target, profile), ignore, place_of))


def check(
    job: AnyJob | Sweep,
    target: AnyTarget = None,
    *,
    profile: str | None = None,
    ignore: Sequence[str] = (),
    place_of: PlaceOf | None = None,
    online: bool | None = None,
) -> Plan:
    """Return the same plan as `plan`, with further findings from the target about the role, bucket,
    inputs and quota. Submits nothing.

    With `online=None` the target is asked only if you have credentials for it; with `online=False`,
    never. If it is not asked, the finding CT541 says what about, and why. The other arguments are
    as in `plan`.
    """
    job = _checked(job, target)
    ready = _prepare(job, _where(job, target, profile), ignore, place_of)
    unasked = None
    if online is False:
        unasked = Unasked("`--offline` asks nobody", "leave out `--offline`")
    elif online is None:
        unasked = ready.where.service.unasked(ready.where.settings)
    plan = _next_plan(ready, is_asked=unasked is None)
    if plan.errors and online is not False:
        unasked = Unasked("the job has errors", "correct them, and check it again")
    if unasked is None:
        return ready.check_online(plan, may_wait=True)

    asked = ready.where.target
    if not asked.facts.asked or "CT541" in map(str.upper, ignore):
        return plan
    finding = not_asked(asked.title, asked.facts.asked, *unasked)
    return plan.with_findings((*plan.findings, finding))


def submit(
    job: AnyJob | Sweep,
    target: AnyTarget = None,
    *,
    profile: str | None = None,
    ignore: Sequence[str] = (),
    place_of: PlaceOf | None = None,
    online: bool = True,
    file: JobFile | None = None,
    queue: bool | None = None,
    priority: int | None = None,
    exactly: Plan | JsonMapping | str | None = None,
    on_plan: Callable[[Plan], None] | None = None,
    on_changes: Callable[[Changes | None], None] | None = None,
    on_bytes: ByteProgress | None = None,
    on_run: Callable[[Run], None] | None = None,
) -> Run:
    """Compile, check, upload and send a job. Sends exactly the request that `plan` shows, and
    returns when the target has accepted the run.

    If the job reads from a run that has not ended, a process on this machine waits for that run and
    then sends the request. In this case `submit` returns when the waiting process has started.

    If `submit` is killed at any moment and called again with the same job, exactly one run exists.

    If a file of the code changes before the code is uploaded, the job is compiled and checked
    again, at most twice.

    Args:
        job: a job or a sweep. Local paths are relative to the working directory.
        target: as in `plan`.
        profile: as in `plan`.
        ignore: as in `plan`.
        place_of: as in `plan`.
        online: whether to check the role, bucket, inputs and quota with the target first.
        file: the file that the job was read from, which `show` prints later.
        queue: on this machine, wait until enough GPUs or CPU slots are free. Default: the value in
            the settings.
        priority: runs with a higher number leave the queue first.
        exactly: the only plan that may be sent: a plan, its JSON data, or at least 12 digits of its
            hash. If this plan was sent already, its run is returned, with `adopted` set.
        on_plan: called with the plan before anything is sent. The last plan is the one that is
            sent.
        on_changes: called with the changes since the job's last run, or with None if the job has no
            earlier run.
        on_bytes: called with the number of bytes uploaded so far, and the size of the bundle.
        on_run: called with the run, to report it to the user. If the process dies before `on_run`
            returns, the next `submit` of the same job returns the same run, with `adopted` set.

    Raises:
        PreflightError: a check found an error; nothing was sent.
        PlanDiffers: the plan is not the one in `exactly`; nothing was sent.
        PersonNeeded: the target costs money, `[approval]` in your settings asks for your approval,
            and `cloudtrain approve` has not given it; nothing was sent.
        SourceChanged: the code kept changing; nothing was sent.
        TargetError: the target refused the job or could not be reached. The next cloudtrain command
            asks the target whether the run exists nevertheless.
    """
    from cloudtrain.lifecycle.runs.find import kind_of
    from cloudtrain.lifecycle.submission.once import Watch
    from cloudtrain.lifecycle.submission.submit import make_sending
    from cloudtrain.lifecycle.submission.submit import submit as send

    job = _checked(job, target)
    place = _where(job, target, profile).queued(queue, priority)

    def run_of(submitted: Submitted) -> Run:
        run = kind_of(submitted.record).of_submitted(submitted, place.here)
        if submitted.record.key.startswith((AFTER, CAPACITY)):
            with suppress(CloudtrainError):
                run.status()  # which says what it waits for
        return run

    watch = Watch(on_plan, on_changes, on_bytes)
    if on_run is not None:
        watch = watch._replace(on_run=lambda submitted: on_run(run_of(submitted)))
    plans_left = _MORE_PLANS
    while True:
        try:
            ready = _prepare(job, place, ignore, place_of)
            sending = make_sending(ready, file=file, online=online, watch=watch)
            return run_of(send(sending, place.here, exactly))
        except SourceChanged as error:
            if not error.may_plan_again or not plans_left:
                raise

            plans_left -= 1
            path = escape_path(error.path)
            tell(f"`{path}` changed while the job was being planned; planning it again")


_MORE_PLANS = 2
"""How often a job is planned again because its code changed after it was planned."""


def upload(
    job: AnyJob | Sweep,
    target: AnyTarget = None,
    *,
    profile: str | None = None,
    ignore: Sequence[str] = (),
    place_of: PlaceOf | None = None,
    on_bytes: ByteProgress | None = None,
) -> Plan:
    """Upload the code and data of a job to the paths in its plan, so that the target's own tools
    can start the job.

    Submits nothing, so the run name in the returned plan stays unused.

    Args:
        job: a job or a sweep. All arguments are the same as in `submit`.

    Raises:
        PreflightError: a check found an error; nothing was uploaded.
        TargetError: the target refused the upload or could not be reached.
        UsageError: only cloudtrain can start this job.
    """
    from cloudtrain.lifecycle.submission.submit import stop_on_errors

    job = _alone(_checked(job, target))
    place = _where(job, target, profile)
    ready = _prepare(job, place, ignore, place_of)
    plan = _next_plan(ready)

    is_here = has_part(place.target, RunFolders)
    if is_here or ready.key.startswith(SWEEP):
        what = "this machine runs it" if is_here else "cloudtrain drives the sweep"
        message = f"no other tool can start `{job.name}`, because {what}"
        raise UsageError(
            message, hint="remove `--upload-only`, or use another target or job", code="CT977"
        )

    stop_on_errors(plan)
    if plan.uploads:
        ready.service.upload(plan, ready.first.tree, on_bytes=on_bytes)
    return plan


def fit(
    job: AnyJob | Sweep,
    target: AnyTarget = None,
    *,
    profile: str | None = None,
    ignore: Sequence[str] = (),
    place_of: PlaceOf | None = None,
    python: str | None = None,
    steps: int | None = None,
    samples: int | None = None,
    every: bool = False,
    suggest: str | None = None,
    layers: str | None = None,
    config: str | Path | None = None,
    training: Mapping[str, str] | None = None,
    on_run: Callable[[str], None] | None = None,
) -> FitReport:
    """Return an estimate of the memory of a job's ranks, and of the time of a step.

    Runs two steps of the script on this machine, as one rank of the job, with tensors that have a
    shape and no memory. `check` and `submit` of the same job then know whether it fits.

    Args:
        job: a job, or a sweep, of which the first trial is estimated.
        target: as in `plan`.
        profile: as in `plan`.
        ignore: as in `plan`.
        place_of: as in `plan`.
        python: the interpreter that runs the script. Default: that of the local target.
        steps: the steps of the whole training, for its time and cost.
        samples: the same in samples over all ranks.
        every: compare all instance types of the target.
        suggest: the hyperparameter with the batch of a rank: also find its largest value that fits.
        layers: the hyperparameter with the number of equal layers: run two and four of them, and
            extrapolate. Saves time where the job has many.
        config: the `config.json` of a dense decoder, or its folder: estimate by closed formulas,
            and run nothing.
        training: the numbers for the formulas: `batch`, `context`, `zero`, `tensor`, `recompute`.
        on_run: called with what is run, such as `rank 0` or `rank 0 with batch_size=8`.

    Raises:
        UsageError: the script cannot be followed; the message has its line.
    """
    from cloudtrain.lifecycle.fit import Question, estimate

    job = _alone(job)
    ready = _prepare(job, _where(job, target, profile), ignore, place_of)
    file = None if config is None else Path(config)
    question = Question(steps, samples, every, suggest, layers, python, file, training or {})
    return estimate(ready.first, _next_plan(ready), question, on_run=on_run)


def pin(job: AnyJob | Sweep, target: AnyTarget = None, *, profile: str | None = None) -> Any:
    """Return the job or sweep with each label (`azureml:NAME@latest`) replaced by its current
    version. Asks the target.

    Raises:
        TargetError: the target cannot be reached, or has no version for a label.
        UsageError: the target has no labels, or the job contains none.
    """
    job = _checked(job, target)
    place = _where(job, target, profile)
    inner = cast("AnyJob", getattr(job, "job", job))  # of a sweep, the job of its trials
    if not isinstance(place.service, PinsVersions):
        message = f"the target `{place.target.name}` has no labels such as `NAME@latest`"
        raise UsageError(message, hint="remove `--pin`", code="CT987")
    pinned = place.service.pin(inner, place.settings)
    if pinned is inner:
        raise UsageError(
            "the job contains no label `NAME@latest`", hint="remove `--pin`", code="CT987"
        )
    return pinned if inner is job else job.model_copy(update={"job": pinned})


def _checked(job: AnyJob | Sweep, target: AnyTarget) -> AnyJob | Sweep:
    """Return the job with checked values. Those of a command of cloudtrain, which passes a `Where`,
    are checked already."""
    if not hasattr(job, "folder"):  # for example, the name of a job file
        file = shortened(str(job)) if isinstance(job, str | Path) else "job.yaml"
        hint = f'read a job file first: `ct.load_job("{file}")`'
        raise UsageError(f"`{type(job).__name__}` is not a job", hint=hint)
    return job if isinstance(target, Where) else revalidate(job)


def _alone(job: AnyJob | Sweep) -> AnyJob | Sweep:
    """Return the job as it is, without alternatives."""
    if getattr(job, "capacity", None) is None:
        return job
    return job.model_copy(update={"capacity": None})


def _where(job: AnyJob | Sweep, target: AnyTarget, profile: str | None) -> Where:
    """Return where the job runs, with the settings of the job's project, or of the working
    directory."""
    return where(target, near=job.folder, profile=profile)


def _prepare(
    job: AnyJob | Sweep, place: Where, ignore: Sequence[str], place_of: PlaceOf | None
) -> Ready | ReadyList | ReadySweep:
    place_of = place_of or nowhere
    # most commands get a job, and need no module about sweeps
    if getattr(job, "kind", None) != "sweep":
        if getattr(job, "capacity", None) is not None and "capacity" in place.target.parts:
            from cloudtrain.lifecycle.capacity.plan import prepare_list

            job = cast("TrainingJob", job)
            return prepare_list(job, place, ignore=ignore, place_of=place_of)
        return prepare(cast("AnyJob", job), place, ignore=ignore, place_of=place_of)
    from cloudtrain.lifecycle.sweeps.plan import prepare_sweep

    return prepare_sweep(cast("Sweep", job), place, ignore=ignore, place_of=place_of)


def _next_plan(ready: Ready | ReadyList | ReadySweep, *, is_asked: bool = False) -> Plan:
    """Return the plan of the job's next run, without creating a run store; see `Ready.plan`."""
    from cloudtrain.lifecycle.store.records import has_store, salt_of_new_store

    here = ready.where.here
    if not has_store(here.state_dir):
        return ready.plan(1, salt_of_new_store(here.state_dir), is_asked=is_asked)
    from cloudtrain.lifecycle.store.schema import read_store

    with read_store(here.state_dir) as store:
        counter = store.next_counter(ready.key, here.submitter)
        return ready.plan(counter, store.salt, is_asked=is_asked)


# Public functions about past runs: `diff` and `costs`.


def costs(
    *,
    since: float | None = None,
    target: AnyTarget = None,
    profile: str | None = None,
    online: bool = True,
) -> Iterator[RunCost]:
    """Yield the cost of each run, newest first: the runs of this user on this machine, or all runs
    on a target.

    Args:
        since: only runs submitted since this time, in seconds since the epoch.
        target: all runs on this target, by any user. Default: the runs of this user on this
            machine, on every target.
        profile: a profile of `cloudtrain.toml`, for the target's account settings.
        online: ask the targets for unknown bills. If a target does not answer, the cost is an
            estimate.
    """
    from cloudtrain.lifecycle.runs.costs import cost_of
    from cloudtrain.lifecycle.store.schema import read_store

    with read_store(read_environment().state_dir) as store:
        money = store.money()
        tags = store.labels("tag")
    now = time.time()
    silent_targets = set[str]()
    for item in _newest_runs(target, profile):
        if since is not None and item.created < since:
            if target is not None:
                return
            continue  # a clock may have been set back between two runs of this machine

        record = money.get(item.name)
        status = item.last_status
        is_known = record is not None and record.billable_seconds is not None
        is_settled = status.billable_seconds is not None or (is_known and status.state.is_final)
        where = usable_target(item.target)
        is_paid = where is not None and where.facts.is_paid
        if online and is_paid and not is_settled and item.target not in silent_targets:
            try:
                status = item.status()
                item.remember(status)
            except (TargetUnreachable, MissingExtra):
                # after the first failure, every other request would wait as long
                silent_targets.add(item.target)
            except (TargetError, RunNotFound):
                pass
        yield cost_of(item, status, record, tags.get(item.name), now)


def _newest_runs(target: AnyTarget, profile: str | None) -> Iterator[Run]:
    """Yield all runs on `target`, newest first. If `target` is None, yield the runs in this
    machine's store, with their last known status."""
    from cloudtrain.lifecycle.runs.find import recover_if_needed, runs_at
    from cloudtrain.lifecycle.runs.run import Run
    from cloudtrain.lifecycle.store.schema import read_store

    if target is not None:
        place = where(target, profile=profile)
        for item in runs_at(place):
            yield Run.attached(item, place.here)
        return
    settings = read_environment()
    recover_if_needed()
    with read_store(settings.state_dir) as store:
        rows = store.newest(trials=True)
        # the cost of a sweep or list is the cost of its trials or tries
        rows = [row for row in rows if not row.key.startswith((SWEEP, CAPACITY))]
    for row in rows:
        if row.stage in ("accepted", "reported"):
            yield Run(row, settings)


def diff(
    before: Run | Plan | AnyJob | str | Path,
    after: Run | Plan | AnyJob | str | Path,
    target: AnyTarget = None,
    *,
    profile: str | None = None,
) -> Difference:
    """Return the differences between two runs, plans or jobs: the job by field, the request, and
    the code by line.

    Args:
        before: a run, a plan or a job; the name of a run; or the path of a plan's JSON file, a job
            file or a script.
        after: what to compare `before` with, in the same forms.
        target: the target to compile jobs for. Default: the target of the run or plan that the job
            is compared with.
        profile: a profile of `cloudtrain.toml`, for jobs.

    Raises:
        RunNotFound: no run has the given name, or the store has no record of what was sent for it.
    """
    from cloudtrain.lifecycle.past.differences import Side, difference

    old = _resolve(before)
    new = _resolve(after)
    new_target = _target_of_side(new)
    old_target = _target_of_side(old)

    def side(item: Side | AnyJob, argument: object, other: AnyTarget) -> Side:
        if isinstance(item, Side):
            return item
        title = str(argument) if isinstance(argument, str | Path) else item.name
        place = where(other if target is None else target, near=item.folder, profile=profile)
        return Side.of_job(title, prepare(item, place))

    old_side = side(old, before, new_target)
    return difference(old_side, side(new, after, old_target), read_environment())


def _resolve(item: Run | Plan | AnyJob | str | Path) -> Side | AnyJob:
    """Load one side of the comparison: a run, a plan, or a job, which may be compiled for the other
    side's target."""
    from cloudtrain.lifecycle.past.differences import Side, results_of
    from cloudtrain.lifecycle.runs.find import run
    from cloudtrain.lifecycle.runs.run import Run

    if isinstance(item, Plan):
        data = item.to_dict()
        return Side(data["run_name"], data)
    if isinstance(item, str | Path):
        text = str(item)
        path = Path(item)
        if path.suffix == ".py" and path.is_file():
            return TrainingJob.from_script(path)
        plan = plan_in(path)
        if plan is not None:
            return Side(text, plan)
        if text.startswith(BUNDLED) or path.suffix.lower() in SUFFIXES or path.is_file():
            return load_job(item)
        item = run(text)
    if not isinstance(item, Run):
        return revalidate(item)  # a job

    record = item.show().kept
    results = results_of(item.last_status, {})
    with suppress(CloudtrainError):  # without an answer of the target, what the last command saw
        status = item.status()
        results = results_of(status, item.metrics().columns(), item.objective)
    return Side(item.name, record.plan, record, ref=item.ref, results=results)


def plan_in(path: Path) -> Mapping[str, Any] | None:
    """Return the plan in a file that `cloudtrain plan --json` wrote; None if the file holds no
    plan."""
    if path.suffix.lower() != ".json":
        return None
    try:
        data = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None  # reading the file as a job gives a better message
    is_plan = isinstance(data, dict) and {"target", "run_name", "request"} <= data.keys()
    return data if is_plan else None


def _target_of_side(item: Side | AnyJob) -> AnyTarget:
    """Return the target of one side of the comparison, for which a job on the other side is
    compiled. None if this side is a job itself."""
    from cloudtrain.lifecycle.past.differences import Side
    from cloudtrain.lifecycle.past.sent import settings_of

    if not isinstance(item, Side):
        return None
    settings = None if item.record is None else settings_of(item.record)
    return settings or item.plan["target"]
