"""The verbs: `load_job`, `plan`, `submit`, `run`, `runs`. Everything that a notebook, a script or the CLI needs.

What a plan does not need is imported by the functions that do, because a plan must be there at once.
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
from cloudtrain.store.kinds import SWEEP, TUNER
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
"""Stands for the newest run wherever a run name is asked for."""


def load_job(path: str | Path, overrides: Sequence[str] = ()) -> AnyJob:
    """The job of a YAML, TOML or JSON file, with `a.b=value` overrides. Relative local paths follow the file.

    Raises:
        JobError: every problem of the file, with line and column.
        UsageError: the file holds a sweep.
    """
    found = load_job_file(path, overrides)
    if found.sweep is not None:
        raise UsageError(f"`{path}` holds a sweep", hint="read it with `ct.load_sweep`", code="CT001")
    return found.job


def load_sweep(path: str | Path, overrides: Sequence[str] = ()) -> Sweep:
    """The sweep of a file with `kind: sweep`, with `a.b=value` overrides; `job.a.b=value` changes its job.

    Raises:
        JobError: every problem of the file, with line and column.
        UsageError: the file holds a job.
    """
    found = load_job_file(path, overrides)
    if found.sweep is None:
        raise UsageError(f"`{path}` holds a job, not a sweep", hint="read it with `ct.load_job`", code="CT001")
    return found.sweep


def load_job_file(path: str | Path, overrides: Sequence[str] = ()) -> JobFile:
    """The same, together with where each value stands in the file. `bundled:NAME` is the job of a bundled script."""
    from cloudtrain.jobfile import load_job as load

    text = str(path)
    if not text.startswith(BUNDLED):
        return load(Path(path), overrides)
    from cloudtrain.scripts import script_path

    file = script_path(text.removeprefix(BUNDLED)) / "job.yaml"
    found = load(file, [*overrides, f"source_dir={text}"])
    return found._replace(job=found.job.from_folder(None))  # it has no project: that of the working directory counts


def bundled_job(name: str, overrides: Sequence[str] = ()) -> TrainingJob:
    """The job of a training script that ships with cloudtrain: `ct.bundled_job("digits_ddp")`.

    Raises:
        UsageError: no bundled script has that name.
    """
    job = load_job(BUNDLED + name, overrides)
    assert isinstance(job, TrainingJob), "bundled scripts train"
    return job


def target_named(
    name: str | None = None, *, profile: str | None = None, near: Path | None = None, **flags: Any
) -> TargetSettings:
    """The target with its account settings from `cloudtrain.toml`; flags that are not None override.

    `near` is the folder of the job file, whose project's settings come first.

    Raises:
        SettingsError: no such target or profile, or a wrong settings file.
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
    """What a submit would send, and what the checks say about it. Sends nothing, writes nothing, opens no socket.

    Args:
        job: the job, or a sweep; relative local paths follow the working directory. One that was read from a file
            has the settings of the file's project.
        target: a name, or a model with account settings; the settings' default target unless given.
        profile: a profile of `cloudtrain.toml`.
        ignore: codes of rules that should not speak.
        place_of: tells where a value stands in the job's file, for the findings.

    Raises:
        JobError: the target lacks what the job asks for; the hint names the alternative.
        TargetUnavailable: the target cannot be used from here.
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
    """The plan, with what the target itself says about it: role, bucket, inputs, quota. Sends nothing.

    `online` None asks the target when there are credentials for it; False is the same as `plan`.
    """
    settings = load_settings(job.folder)
    prepared = _prepare(job, target, settings, profile=profile, ignore=ignore, place_of=place_of)
    compiled = _next_plan(prepared, settings)
    wanted = prepared.can_check if online is None else online
    return prepared.check_online(compiled) if wanted else compiled


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
    """Compile, check, upload, send. Sends exactly the request that `plan` shows; returns when the target has the run.

    Killed at any moment and called again with the same job, it leaves exactly one run.

    Args:
        job: the job; relative local paths follow the working directory.
        target: as for `plan`.
        profile: as for `plan`.
        ignore: as for `plan`.
        place_of: as for `plan`.
        online: ask the target about role, bucket, inputs and quota first.
        file: what the job was read from, for `show`.
        queue: on this machine, wait for the GPUs or CPU slots that the run needs; as the settings say unless given.
        priority: in the queue, runs with a higher number come first.
        on_plan: sees the plan before anything is sent.
        on_changes: sees what changed since the job's last run, None where there was none.
        on_bytes: is told how many bytes of the bundle are there, and of how many.
        on_run: tells the user about the run. A process that dies before this returns has told nobody, and the next
            submit of the same job returns the same run, with `adopted` set.

    Raises:
        PreflightError: a check found an error; nothing was sent.
        TargetError: the target refused or could not be reached; the next command finds out whether it has the run.
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
    else:  # its trials, which its driver submits, are kept as the jobs that they are
        trained = anchored(prepared.written_job, settings.cwd)
        keeper = Keeper(prepared.prepared, job.model_copy(update={"job": trained}), file)

    def run_of(submitted: Submitted) -> Run:
        names = tuple(record.name for record in submitted.unreported)
        return _run_of(submitted.record, settings, adopted=submitted.adopted, unreported=names)

    def report(submitted: Submitted) -> None:
        if on_run is not None:
            on_run(run_of(submitted))

    with open_store(settings.state_dir) as store:

        def approved_plan(counter: int) -> Plan:
            compiled = prepared.check_online(prepared.plan(counter, store.salt), ask=online)
            if on_plan is not None:
                on_plan(compiled)
            stop_on_errors(compiled)
            if on_changes is not None and isinstance(prepared, PreparedJob):
                from cloudtrain.lifecycle.since import changes_since_last

                with suppress(CloudtrainError, OSError):
                    on_changes(changes_since_last(store, prepared, cast("AnyJob", keeper.job), compiled))
            return compiled

        submission = Submission(
            service=prepared.service,
            key=prepared.key,
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


def _prepare(job: AnyJob | Sweep, target: AnyTarget, settings: Settings, **words: Any) -> PreparedJob | PreparedSweep:
    if getattr(job, "kind", None) != "sweep":
        return prepare_job(job, target, settings, **words)  # type: ignore[arg-type]  # no sweep, and no import of its model
    from cloudtrain.sweeps.planning import prepare_sweep

    return prepare_sweep(job, target, settings, **words)  # type: ignore[arg-type]  # a sweep


def _service_named(name: str, settings: Settings) -> Service:
    """A target's service, or for a run that is a sweep the service of its kind."""
    if ":" not in name:
        return service_of(name, settings)
    from cloudtrain.sweeps.services import service_named

    return service_named(name, settings)


def _run_of(row: RunRecord, settings: Settings, **words: Any) -> Run:
    """The run of a row of the store; a sweep has more methods."""
    if row.key.startswith((SWEEP, TUNER)):
        from cloudtrain.sweeps.sweep_run import SweepRun

        return SweepRun(row, settings, **words)
    from cloudtrain.lifecycle.run import Run

    return Run(row, settings, **words)


def run(name: str) -> Run:
    """The run of that name, of a unique beginning of a name, of a reference, or `last`.

    `last` is the newest run that was submitted in the working directory or for a job file in it, one of this terminal
    before others; where there is none, the newest of this terminal, and then the newest of all. `run.elsewhere` tells.

    A reference such as `sagemaker://eu-west-1/name` also attaches to a run that this machine did not submit.

    Raises:
        RunNotFound: no run, or more than one, is meant.
    """
    from cloudtrain.lifecycle.run import Run
    from cloudtrain.store.store import read_store

    if not name.strip():  # the beginning of every run's name, as an unset variable of a script is
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
        raise RunNotFound(f"the run `{name}` was removed", hint="`cloudtrain ps` lists those that are there")
    if not rows:
        hint = did_you_mean(name, known[:8]) or "submit a job first: `cloudtrain submit job.yaml`"
        raise RunNotFound(f"there is no run `{name}`", hint=hint)
    if len(rows) > 1:
        names = ", ".join(f"`{row.name}`" for row in rows[:5])
        raise RunNotFound(
            f"`{name}` is the beginning of {len(rows)} runs", hint=f"write more of it: {names}", code="CT932"
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
    """The newest runs of this user on this machine, newest first; those that have not ended are asked for their state.

    Args:
        limit: how many at most; None for all.
        states: only runs in one of these states.
        job: only runs of the job of that name.
        target: the runs that this target has, whoever submitted them, instead of those of this user and machine.
        profile: a profile of `cloudtrain.toml`, for the target's account settings.
        tags: only runs with these tags.
        where: only runs whose hyperparameters compare so: `["learning_rate<0.01", "optimizer=adamw"]`.
        rehearsals: whether the runs of `cloudtrain rehearse` that have ended are among them.
        trials: the trials of sweeps too.

    Raises:
        UsageError: a text of `where` is not a comparison, or `tags` or `where` are asked of a target.
    """
    from cloudtrain.lifecycle.run import Run
    from cloudtrain.store.origin import Condition, condition_of
    from cloudtrain.store.store import read_store

    conditions = [Condition("tag", key, "=", value) for key, value in (tags or {}).items()]
    conditions += [condition_of(text) for text in where]
    if conditions and target is not None:
        hint = "leave out the target: this machine knows the tags and hyperparameters of the runs that it submitted"
        raise UsageError("a target is not asked for tags or hyperparameters", hint=hint, code="CT902")
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
    """Finish or forget every submission whose process died, and report what became of it.

    Runs that no command may have reported are among them. `on_found` tells the user; a process that dies before it
    returns has told nobody, and the runs are reported again.
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
    """The plan of the next run of the job. Nothing is written where there is no store yet."""
    from cloudtrain.store.identity import salt_of_new_store
    from cloudtrain.store.store import read_store

    with read_store(settings.state_dir) as store:
        if store is None:
            return prepared.plan(1, salt_of_new_store(settings.state_dir))
        return prepared.plan(store.next_counter(prepared.key, settings.submitter), store.salt)


def recover_if_needed() -> None:
    """Settle submissions that were cut off before looking. Opens the store for writing only when there are some, and
    where it cannot be written, as on a full disk, looks at what is known."""
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
    """The run that `last` means, and the folder that it is from where that is not the working directory."""
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
"""Settings that say where a target's runs are."""


def runs_at(target: TargetSettings, settings: Settings) -> Iterator[ListedRun]:
    """The runs that a target has, the newest first.

    Raises:
        SettingsError: nothing says where to look.
    """
    name = target.type
    account = target_of(name).account(target, environ=settings.environ, state_dir=settings.state_dir, cwd=settings.cwd)
    missing = [field for field in _WHERE if field in getattr(account, "missing", ())]
    if missing:
        hint = f"set {', '.join(f'`{field}`' for field in missing)} in [{name}] of cloudtrain.toml"
        raise SettingsError(f"it is not known where in `{name}` to look", hint=hint, code="CT915")
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
    """The rows among which the wanted runs are, newest first. Those that had not ended may be in any state by now."""

    def found(**wanted: Any) -> list[RunRecord]:
        return store.newest(job=job, where=where, trials=trials, **wanted)

    if not states:
        return found(limit=limit, rehearsals=rehearsals)
    ended = [state for state in states if state.is_final]
    rows = found(limit=limit, states=ended, rehearsals=rehearsals) if ended else []
    rows += found(states=[state for state in RunState if not state.is_final])
    return sorted(rows, key=lambda row: row.seq or 0, reverse=True)


def _of_reference(store: Store, ref: RunRef) -> list[RunRecord]:
    """The run of a reference, with or without the profile (`research@eu-west-1`) that it was submitted with."""
    row = store.get(ref.name)
    if row is None or row.target != ref.target or ref.place not in (row.place, (row.place or "").rpartition("@")[2]):
        return []
    return [row]


def _refresh(item: Run) -> Run:
    """A run that has not ended is asked for its state; a target that cannot be reached leaves what is known."""
    if not item.last_status.state.is_final:
        with suppress(TargetError, RunNotFound):
            item.status()
    return item
