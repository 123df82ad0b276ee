"""The public functions, such as `load_job`, `plan`, `submit`, `run` and `runs`, for notebooks, scripts and the CLI.

Each function imports the modules that only it needs when it is called, so that `plan` starts quickly.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from cloudtrain.core.job import BUNDLED, TrainingJob
from cloudtrain.core.plan import Plan
from cloudtrain.core.states import REHEARSAL, ListedRun, RunRef, RunState
from cloudtrain.errors import (
    CloudtrainError,
    RunNotFound,
    SettingsError,
    StoreError,
    TargetError,
    UsageError,
    did_you_mean,
)
from cloudtrain.jobfile.files import anchored
from cloudtrain.lifecycle.planning import PlaceOf, PreparedJob, prepare_job
from cloudtrain.settings import Settings, load_settings
from cloudtrain.store.kinds import AFTER, SWEEP, TUNER
from cloudtrain.targets.base import ByteProgress, Service
from cloudtrain.targets.registry import service_of, target_of
from cloudtrain.targets.settings import TargetSettings

if TYPE_CHECKING:
    from cloudtrain.core.processing import AnyJob
    from cloudtrain.core.sweep import Sweep
    from cloudtrain.jobfile import JobFile
    from cloudtrain.lifecycle.run import Run
    from cloudtrain.lifecycle.since import Since
    from cloudtrain.lifecycle.submission import Recovered, Submitted
    from cloudtrain.store.origin import Condition
    from cloudtrain.store.store import RunRecord, Store
    from cloudtrain.sweeps.planning import PreparedSweep

AnyTarget = str | TargetSettings | None

NEWEST = "last"
"""The name that stands for the newest run."""


def load_job(path: str | Path, overrides: Sequence[str] = ()) -> AnyJob:
    """Return the job in a YAML, TOML or JSON file, with `a.b=value` overrides. Local paths are relative to the file.

    Raises:
        JobError: the job has problems; all are listed with line and column.
        UsageError: the file holds a sweep.
    """
    found = load_job_file(path, overrides)
    if found.sweep is not None:
        raise UsageError(f"`{path}` holds a sweep, not a job", hint="read it with `ct.load_sweep`", code="CT001")
    return found.job


def load_sweep(path: str | Path, overrides: Sequence[str] = ()) -> Sweep:
    """Return the sweep in a file with `kind: sweep`, with `a.b=value` overrides. `job.a.b=value` changes the sweep's
    job.

    Raises:
        JobError: the sweep has problems; all are listed with line and column.
        UsageError: the file holds a job.
    """
    found = load_job_file(path, overrides)
    if found.sweep is None:
        raise UsageError(f"`{path}` holds a job, not a sweep", hint="read it with `ct.load_job`", code="CT001")
    return found.sweep


def load_job_file(path: str | Path, overrides: Sequence[str] = ()) -> JobFile:
    """Read a job file or a sweep file. Return the job or sweep, and the position of each value in the file. The path
    `bundled:NAME` means the job file of a bundled script."""
    from cloudtrain.jobfile import load_job as load

    text = str(path)
    if not text.startswith(BUNDLED):
        return load(Path(path), overrides)
    from cloudtrain.scripts import script_path

    file = script_path(text.removeprefix(BUNDLED)) / "job.yaml"
    found = load(file, [*overrides, f"source_dir={text}"])
    return found._replace(job=found.job.from_folder(None))  # so that the project of the working directory applies


def bundled_job(name: str, overrides: Sequence[str] = ()) -> TrainingJob:
    """Return the job of a training script that ships with cloudtrain: `ct.bundled_job("digits_ddp")`.

    Raises:
        UsageError: no bundled script has that name.
    """
    job = load_job(BUNDLED + name, overrides)
    assert isinstance(job, TrainingJob), "bundled scripts train"
    return job


def target_named(
    name: str | None = None, *, profile: str | None = None, near: Path | None = None, **flags: Any
) -> TargetSettings:
    """Return a target with its account settings from `cloudtrain.toml`. Flags that are not None override the settings.

    `near` is the folder of the job file. The settings of its project are used instead of those of the working
    directory.

    Raises:
        SettingsError: the target or profile does not exist, or a settings file is wrong.
    """
    return load_settings(near).target(name, profile=profile, **flags)


def plan(
    job: AnyJob | Sweep,
    target: AnyTarget = None,
    *,
    profile: str | None = None,
    ignore: Sequence[str] = (),
    place_of: PlaceOf | None = None,
) -> Plan:
    """Return the plan: what `submit` would send, and the findings of the checks. Sends nothing and writes no file.

    Args:
        job: a job or a sweep. Local paths are relative to the working directory. A job that was read from a file uses
            the settings of the file's project.
        target: the name of a target, or a model with account settings. Default: the default target in the settings.
        profile: a profile of `cloudtrain.toml`.
        ignore: codes of rules to skip.
        place_of: returns the position of a value in the job's file, for the findings.

    Raises:
        JobError: the target does not support a field of the job; the hint names an alternative.
        TargetUnavailable: the target cannot be used from this machine.
    """
    settings = load_settings(job.folder)
    prepared = _prepare(job, target, settings, profile=profile, ignore=ignore, place_of=place_of)
    return _next_plan(prepared, settings)


def check(
    job: AnyJob | Sweep,
    target: AnyTarget = None,
    *,
    profile: str | None = None,
    ignore: Sequence[str] = (),
    place_of: PlaceOf | None = None,
    online: bool | None = None,
) -> Plan:
    """Return the same plan as `plan`, with further findings from the target about the role, bucket, inputs and quota.
    Submits nothing.

    With `online=None` the target is asked only if you have credentials for it; with `online=False`, never. The other
    arguments are as in `plan`.
    """
    settings = load_settings(job.folder)
    prepared = _prepare(job, target, settings, profile=profile, ignore=ignore, place_of=place_of)
    compiled = _next_plan(prepared, settings)
    wanted = prepared.can_check if online is None else online
    return prepared.check_online(compiled, may_wait=True) if wanted else compiled


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
    on_plan: Callable[[Plan], None] | None = None,
    on_changes: Callable[[Since | None], None] | None = None,
    on_bytes: ByteProgress | None = None,
    on_run: Callable[[Run], None] | None = None,
) -> Run:
    """Compile, check, upload and send a job. Sends exactly the request that `plan` shows, and returns when the target
    has accepted the run.

    If the job reads from a run that has not ended, a process on this machine waits for that run and then sends the
    request. In this case `submit` returns when the waiting process has started.

    If `submit` is killed at any moment and called again with the same job, exactly one run exists.

    Args:
        job: a job or a sweep. Local paths are relative to the working directory.
        target: as in `plan`.
        profile: as in `plan`.
        ignore: as in `plan`.
        place_of: as in `plan`.
        online: whether to check the role, bucket, inputs and quota with the target first.
        file: the file that the job was read from, which `show` prints later.
        queue: on this machine, wait until enough GPUs or CPU slots are free. Default: the value in the settings.
        priority: runs with a higher number leave the queue first.
        on_plan: called with the plan before anything is sent.
        on_changes: called with the changes since the job's last run, or with None if the job has no earlier run.
        on_bytes: called with the number of bytes uploaded so far, and the size of the bundle.
        on_run: called with the run, to report it to the user. If the process dies before `on_run` returns, the next
            `submit` of the same job returns the same run, with `adopted` set.

    Raises:
        PreflightError: a check found an error; nothing was sent.
        TargetError: the target refused the job or could not be reached. The next cloudtrain command asks the target
            whether the run exists nevertheless.
    """
    from cloudtrain.lifecycle.inputs import outputs_of
    from cloudtrain.lifecycle.keeping import Keeper
    from cloudtrain.lifecycle.sending import stop_on_errors
    from cloudtrain.lifecycle.submission import Submission, submit_once
    from cloudtrain.store.origin import origin_here
    from cloudtrain.store.store import open_store

    settings = load_settings(job.folder)
    if queue is not None or priority is not None:
        from cloudtrain.lifecycle.queue import queued_settings

        named = settings.target(target, profile=profile) if target is None or isinstance(target, str) else target
        target = queued_settings(named, queue, priority)
    prepared = _prepare(job, target, settings, profile=profile, ignore=ignore, place_of=place_of)

    if isinstance(prepared, PreparedJob):
        keeper = Keeper(prepared, anchored(cast("AnyJob", job), settings.cwd), file)
    else:  # the trials, which the sweep's driver submits, are stored as ordinary jobs
        trained = anchored(prepared.written_job, settings.cwd)
        keeper = Keeper(prepared.prepared, job.model_copy(update={"job": trained}), file)

    def run_of(submitted: Submitted) -> Run:
        names = tuple(record.name for record in submitted.unreported)
        run = _run_of(submitted.record, settings, adopted=submitted.adopted, unreported=names)
        if submitted.record.key.startswith(AFTER):
            with suppress(CloudtrainError):
                run.status()  # which says what it waits for
        return run

    def report(submitted: Submitted) -> None:
        if on_run is not None:
            on_run(run_of(submitted))

    service, key = prepared.service, prepared.key
    if isinstance(prepared, PreparedJob) and prepared.waits_for:
        from cloudtrain.chains.service import ChainService

        service = ChainService(
            settings.environ, settings.state_dir, after=prepared.waits_for, key=key, submitter=settings.submitter
        )
        key = AFTER + key

    with open_store(settings.state_dir) as store:

        def approved_plan(counter: int) -> Plan:
            compiled = prepared.check_online(prepared.plan(counter, store.salt), ask=online, may_wait=True)
            if on_plan is not None:
                on_plan(compiled)
            stop_on_errors(compiled)
            if on_changes is not None and isinstance(prepared, PreparedJob):
                from cloudtrain.lifecycle.since import changes_since_last

                with suppress(CloudtrainError, OSError):
                    on_changes(changes_since_last(store, prepared, cast("AnyJob", keeper.job), compiled))
            return compiled

        submission = Submission(
            service=service,
            key=key,
            submitter=settings.submitter,
            plan_of=approved_plan,
            outputs_of=outputs_of,
            bundle=prepared.tree,
            report=report,
            on_bytes=on_bytes,
            origin=origin_here(Path.cwd(), project=job.folder, labels=prepared.labels),
            kept_of=keeper.kept_of,
        )
        submitted = submit_once(store, submission, lambda name: _service_named(name, settings))
        if not submitted.adopted:
            keeper.finish(store, submitted.record.name)
        return run_of(submitted)


def upload(
    job: AnyJob | Sweep,
    target: AnyTarget = None,
    *,
    profile: str | None = None,
    ignore: Sequence[str] = (),
    place_of: PlaceOf | None = None,
    on_bytes: ByteProgress | None = None,
) -> Plan:
    """Upload the code and data of a job to the paths in its plan, so that the target's own tools can start the job.

    Submits nothing, so the run name in the returned plan stays unused.

    Args:
        job: a job or a sweep. All arguments are the same as in `submit`.

    Raises:
        PreflightError: a check found an error; nothing was uploaded.
        TargetError: the target refused the upload or could not be reached.
        UsageError: only cloudtrain can start this job.
    """
    from cloudtrain.lifecycle.sending import stop_on_errors

    settings = load_settings(job.folder)
    prepared = _prepare(job, target, settings, profile=profile, ignore=ignore, place_of=place_of)
    compiled = _next_plan(prepared, settings)
    is_here = target_of(compiled.target).run_folder(compiled.run_name, settings.state_dir) is not None
    if is_here or prepared.key.startswith(SWEEP):
        what = "this machine runs it" if is_here else "cloudtrain drives the sweep"
        message = f"no other tool can start `{job.name}`, because {what}"
        raise UsageError(message, hint="remove `--upload-only`, or use another target or job", code="CT977")
    stop_on_errors(compiled)
    if compiled.uploads:
        prepared.service.upload(compiled, prepared.tree, on_bytes=on_bytes)
    return compiled


def pin(job: AnyJob | Sweep, target: AnyTarget = None, *, profile: str | None = None) -> Any:
    """Return the job or sweep with each label (`azureml:NAME@latest`) replaced by its current version. Asks the target.

    Raises:
        TargetError: the target cannot be reached, or has no version for a label.
        UsageError: the target has no labels, or the job contains none.
    """
    from cloudtrain.targets.base import PinsVersions

    settings = load_settings(job.folder)
    own = settings.target(target, profile=profile) if target is None or isinstance(target, str) else target
    service, inner = service_of(own.type, settings), cast("AnyJob", getattr(job, "job", job))
    if not isinstance(service, PinsVersions):
        raise UsageError(
            f"the target `{own.type}` has no labels such as `NAME@latest`", hint="remove `--pin`", code="CT987"
        )
    pinned = service.pin(inner, own)
    if pinned is inner:
        raise UsageError("the job contains no label `NAME@latest`", hint="remove `--pin`", code="CT987")
    return pinned if inner is job else job.model_copy(update={"job": pinned})


def _prepare(job: AnyJob | Sweep, target: AnyTarget, settings: Settings, **words: Any) -> PreparedJob | PreparedSweep:
    if getattr(job, "kind", None) != "sweep":
        return prepare_job(job, target, settings, **words)  # type: ignore[arg-type]  # no sweep, and no import of its model
    from cloudtrain.sweeps.planning import prepare_sweep

    return prepare_sweep(job, target, settings, **words)  # type: ignore[arg-type]  # a sweep


def _service_named(name: str, settings: Settings) -> Service:
    """Return the service called `name`. `local` is the service of the target `local`, `sweep:local` the service for
    sweeps on that target, and a name that begins with `after:` the service for waiting runs."""
    if ":" not in name:
        return service_of(name, settings)
    from cloudtrain.sweeps.services import service_named

    return service_named(name, settings)


def _run_of(row: RunRecord, settings: Settings, **words: Any) -> Run:
    """Return the run that a row of the store describes: a `SweepRun` for a sweep, a `ChainedRun` for a waiting run,
    else a `Run`. `words` are further arguments for the constructor of the run, such as `adopted`."""
    if row.key.startswith((SWEEP, TUNER)):
        from cloudtrain.sweeps.sweep_run import SweepRun

        return SweepRun(row, settings, **words)
    if row.key.startswith(AFTER):
        from cloudtrain.chains.run import ChainedRun

        return ChainedRun(row, settings, **words)
    from cloudtrain.lifecycle.run import Run

    return Run(row, settings, **words)


def run(name: str) -> Run:
    """Return a run by its name, the unique beginning of a name, a reference, or `last`.

    `last` is the newest run that was submitted from the working directory or for a job file in it; runs of this
    terminal take precedence. Without such a run, `last` is the newest run of this terminal, else the newest run of all.
    In these two cases the `elsewhere` of the returned run holds the folder that the run was submitted from.

    A reference such as `sagemaker://eu-west-1/name` also attaches to a run that this machine did not submit.

    Raises:
        RunNotFound: the name matches no run, or more than one.
    """
    from cloudtrain.lifecycle.run import Run
    from cloudtrain.store.store import read_store

    if not name.strip():  # every run's name starts with the empty text, which an unset variable of a script would give
        raise RunNotFound("the name of the run is empty", hint="`cloudtrain ps` lists the runs; `last` is the newest")
    settings = load_settings()
    recover_if_needed()
    elsewhere = None
    with read_store(settings.state_dir) as store:
        if store is not None and name == NEWEST:
            rows, elsewhere = _last(store)
        else:
            rows = [] if store is None else _matching(store, name)
        known = [] if store is None else [row.name for row in store.newest(limit=200)]
        removed = store is not None and not rows and store.was_removed(name)
    if not rows and "://" in name:
        ref = RunRef.parse(name)
        return Run.attached(ListedRun(ref, service_of(ref.target, settings).status(ref)), settings)
    if removed:
        raise RunNotFound(f"the run `{name}` was removed", hint="`cloudtrain ps` lists the remaining runs")
    if not rows:
        hint = did_you_mean(name, known[:8]) or "submit a job first: `cloudtrain submit job.yaml`"
        raise RunNotFound(f"there is no run `{name}`", hint=hint)
    if len(rows) > 1:
        names = ", ".join(f"`{row.name}`" for row in rows[:5])
        raise RunNotFound(
            f"the names of {len(rows)} runs begin with `{name}`",
            hint=f"write one of the full names: {names}",
            code="CT932",
        )
    return _run_of(rows[0], settings, elsewhere=elsewhere)


def runs(
    *,
    limit: int | None = 20,
    states: Sequence[RunState] = (),
    job: str | None = None,
    target: AnyTarget = None,
    profile: str | None = None,
    tags: Mapping[str, str] | None = None,
    where: Sequence[str] = (),
    rehearsals: bool = True,
    trials: bool = False,
) -> list[Run]:
    """Return the newest runs of this user on this machine, newest first. Targets are asked for the state of unfinished
    runs.

    Args:
        limit: maximum number of runs; None for all.
        states: only runs in one of these states.
        job: only runs of the job with this name.
        target: list all runs on this target, by any user and machine, instead of the runs of this user and machine.
        profile: a profile of `cloudtrain.toml`, for the target's account settings.
        tags: only runs with these tags.
        where: only runs whose hyperparameters meet these conditions: `["learning_rate<0.01", "optimizer=adamw"]`.
        rehearsals: include finished runs of `cloudtrain rehearse`.
        trials: include the trials of sweeps.

    Raises:
        UsageError: a text in `where` is not a comparison, or `tags` or `where` is combined with `target`.
    """
    from cloudtrain.lifecycle.run import Run
    from cloudtrain.store.origin import Condition, condition_of
    from cloudtrain.store.store import read_store

    conditions = [Condition("tag", key, "=", value) for key, value in (tags or {}).items()]
    conditions += [condition_of(text) for text in where]
    if conditions and target is not None:
        hint = "remove the target, because only this machine stores tags and hyperparameters of its runs"
        raise UsageError("runs on a target cannot be selected by tags or hyperparameters", hint=hint, code="CT902")
    settings, limit = load_settings(), None if limit is None else min(limit, sys.maxsize)
    if target is not None:
        model = settings.target(target, profile=profile) if isinstance(target, str) else target
        there = (Run.attached(item, settings) for item in runs_at(model, settings))
        return list(islice((item for item in there if _is_wanted(item, states, job, rehearsals)), limit))
    recover_if_needed()
    with read_store(settings.state_dir) as store:
        rows = [] if store is None else _perhaps(store, states, job, limit, conditions, rehearsals, trials=trials)
    here = (_refresh(_run_of(row, settings)) for row in rows)
    return list(islice((item for item in here if _is_wanted(item, states, job, rehearsals)), limit))


def recover(on_found: Callable[[list[Recovered]], None] | None = None) -> list[Recovered]:
    """Clean up after every submission whose process died: keep its run if the target has it, else forget the
    submission. Return the outcomes.

    The outcomes include runs that perhaps no command has reported yet. `on_found` is called with the outcomes, to
    report them to the user. If the process dies before `on_found` returns, the next `recover` reports the runs again.
    """
    from cloudtrain.lifecycle.submission import Recovered, report_accepted
    from cloudtrain.lifecycle.submission import recover as recover_submissions
    from cloudtrain.store.store import open_store

    settings = load_settings()
    found: list[Recovered] = []

    def report(accepted: Sequence[RunRecord]) -> None:
        known = {item.name for item in found}
        late = [item for item in accepted if item.name not in known]
        found.extend(Recovered(item.name, "finished", f"`{item.target}` has the run") for item in late)
        if on_found is not None:
            on_found(found)

    with open_store(settings.state_dir) as store:
        found += recover_submissions(store, lambda name: _service_named(name, settings))
        report_accepted(store, report)
    return found


def _next_plan(prepared: PreparedJob | PreparedSweep, settings: Settings) -> Plan:
    """Return the plan of the job's next run, without creating a run store."""
    from cloudtrain.store.identity import salt_of_new_store
    from cloudtrain.store.presence import has_store

    if not has_store(settings.state_dir):
        return prepared.plan(1, salt_of_new_store(settings.state_dir))
    from cloudtrain.store.store import read_store

    with read_store(settings.state_dir) as store:
        if store is None:
            return prepared.plan(1, salt_of_new_store(settings.state_dir))
        return prepared.plan(store.next_counter(prepared.key, settings.submitter), store.salt)


def recover_if_needed() -> None:
    """Clean up after interrupted submissions, as `recover` does, before a command reads the run store.

    Without interrupted submissions, the store is not opened for writing. If the store cannot be written, for example on
    a full disk, the submissions stay as they are.
    """
    from cloudtrain.lifecycle.submission import needs_recovery
    from cloudtrain.lifecycle.submission import recover as recover_submissions
    from cloudtrain.store.store import open_store, read_store

    settings = load_settings()
    with read_store(settings.state_dir) as store:
        cut_off = store is not None and any(needs_recovery(store, record) for record in store.unfinished())
    if cut_off:
        with suppress(StoreError), open_store(settings.state_dir) as store:
            recover_submissions(store, lambda name: _service_named(name, settings))


def _last(store: Store) -> tuple[list[RunRecord], str | None]:
    """Return a list with the run that `last` means, and the folder that the run was submitted from. The list is empty
    if no run exists. The folder is None if `last` means a run of the working directory."""
    from cloudtrain.store.origin import origin_here

    here = origin_here(Path.cwd())
    found = store.newest_from(here)
    if found is not None:
        return [found], None
    others = [record for record in (store.newest_in(here.terminal), *store.newest(limit=1)) if record is not None]
    return others[:1], store.origin_of(others[0].name).folder if others else None


def _matching(store: Store, name: str) -> list[RunRecord]:
    if "://" in name:
        return _of_reference(store, RunRef.parse(name))
    exact = store.get(name)
    return [exact] if exact is not None else store.starting_with(name)


_WHERE = ("region", "subscription_id", "resource_group", "workspace")
"""Settings without which a target's runs cannot be located."""


def runs_at(target: TargetSettings, settings: Settings) -> Iterator[ListedRun]:
    """Yield the runs on a target, the newest first.

    Raises:
        SettingsError: the settings that locate the runs are missing.
    """
    name = target.type
    account = target_of(name).account(target, environ=settings.environ, state_dir=settings.state_dir, cwd=settings.cwd)
    missing = [field for field in _WHERE if field in getattr(account, "missing", ())]
    if missing:
        hint = f"set {', '.join(f'`{field}`' for field in missing)} in [{name}] of cloudtrain.toml"
        raise SettingsError(f"the settings lack the location of the runs on `{name}`", hint=hint, code="CT915")
    return service_of(name, settings).runs(account.place)


def _is_wanted(item: Run, states: Sequence[RunState], job: str | None, rehearsals: bool) -> bool:
    state = item.last_status.state
    is_hidden = not rehearsals and state.is_final and item.job_name.endswith(REHEARSAL)
    return not is_hidden and (not states or state in states) and job in (None, item.job_name)


def _perhaps(
    store: Store,
    states: Sequence[RunState],
    job: str | None,
    limit: int | None,
    where: Sequence[Condition],
    rehearsals: bool,
    *,
    trials: bool = False,
) -> list[RunRecord]:
    """Return the rows of all runs that may meet these conditions, newest first. With `states`, all unfinished runs are
    included, because their recorded state may be outdated."""

    def found(**wanted: Any) -> list[RunRecord]:
        return store.newest(job=job, where=where, trials=trials, **wanted)

    if not states:
        return found(limit=limit, rehearsals=rehearsals)
    ended = [state for state in states if state.is_final]
    rows = found(limit=limit, states=ended, rehearsals=rehearsals) if ended else []
    rows += found(states=[state for state in RunState if not state.is_final])
    return sorted(rows, key=lambda row: row.seq or 0, reverse=True)


def _of_reference(store: Store, ref: RunRef) -> list[RunRecord]:
    """Return a list with the row of the run that `ref` names; empty if the store has no such row. `ref` may omit the
    run's profile (`research@` in `research@eu-west-1`)."""
    row = store.get(ref.name)
    if row is None or row.target != ref.target or ref.place not in (row.place, (row.place or "").rpartition("@")[2]):
        return []
    return [row]


def _refresh(item: Run) -> Run:
    """Ask the target for the state of an unfinished run, and return the run. If the target cannot be reached, the run
    keeps its last known state."""
    if not item.last_status.state.is_final:
        with suppress(TargetError, RunNotFound):
            item.status()
    return item
