"""The verbs: `load_job`, `plan`, `submit`, `run`, `runs`. Everything that a notebook, a script or the CLI needs.

What a plan does not need is imported by the functions that do, because a plan must be there at once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudtrain.backends.base import OnBytes
from cloudtrain.backends.registry import backend_of
from cloudtrain.draft import Draft, PlaceOf
from cloudtrain.errors import PreflightError, RunNotFound, SettingsError, TargetError, did_you_mean
from cloudtrain.job import BUNDLED, TrainingJob
from cloudtrain.plans import Plan
from cloudtrain.settings import Settings, load_settings
from cloudtrain.states import Listed, RunRef, RunState
from cloudtrain.store import FILE_NAME as STORE_FILE
from cloudtrain.targets import AzureML, Local, SageMaker

if TYPE_CHECKING:
    from cloudtrain.handle import Run
    from cloudtrain.jobfile import JobFile
    from cloudtrain.processing import AnyJob
    from cloudtrain.store.store import Row, Store
    from cloudtrain.submission import Recovered

AnyTarget = str | Local | SageMaker | AzureML | None

NEWEST = "last"
"""Stands for the newest run wherever a run name is asked for."""


def load_job(path: str | Path, overrides: Sequence[str] = ()) -> AnyJob:
    """The job of a YAML, TOML or JSON file, with `a.b=value` overrides. Relative local paths follow the file.

    Raises:
        JobError: every problem of the file, with line and column.
    """
    return load_job_file(path, overrides).job


def load_job_file(path: str | Path, overrides: Sequence[str] = ()) -> JobFile:
    """The same, together with where each value stands in the file. `bundled:NAME` is the job of a bundled script."""
    from cloudtrain.jobfile import load_job as load

    text = str(path)
    if not text.startswith(BUNDLED):
        return load(Path(path), overrides)
    from cloudtrain.scripts import script_path

    file = script_path(text.removeprefix(BUNDLED)) / "job.yaml"
    return load(file, [*overrides, f"source_dir={text}"])


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
) -> Local | SageMaker | AzureML:
    """The target with its account settings from `cloudtrain.toml`; flags that are not None override.

    `near` is the folder of the job file, whose project's settings come first.

    Raises:
        SettingsError: no such target or profile, or a wrong settings file.
    """
    return load_settings(near).target(name, profile=profile, **flags)


def plan(
    job: AnyJob,
    target: AnyTarget = None,
    *,
    profile: str | None = None,
    ignore: Sequence[str] = (),
    place_of: PlaceOf | None = None,
) -> Plan:
    """What a submit would send, and what the checks say about it. Sends nothing, writes nothing, opens no socket.

    Args:
        job: the job; relative local paths follow the working directory.
        target: a name, or a model with account settings; the settings' default target unless given.
        profile: a profile of `cloudtrain.toml`.
        ignore: codes of rules that should not speak.
        place_of: tells where a value stands in the job's file, for the findings.

    Raises:
        JobError: the target lacks what the job asks for; the hint names the alternative.
        TargetUnavailable: the target cannot be used from here.
    """
    settings = load_settings()
    draft = Draft.of(job, target, settings, profile=profile, ignore=ignore, place_of=place_of)
    return draft.plan(_next_counter(draft, settings))


def check(
    job: AnyJob,
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
    settings = load_settings()
    draft = Draft.of(job, target, settings, profile=profile, ignore=ignore, place_of=place_of)
    compiled = draft.plan(_next_counter(draft, settings))
    wanted = draft.backend.can_check(draft.target) if online is None else online
    return draft.asked(compiled) if wanted else compiled


def submit(
    job: AnyJob,
    target: AnyTarget = None,
    *,
    profile: str | None = None,
    ignore: Sequence[str] = (),
    place_of: PlaceOf | None = None,
    on_plan: Callable[[Plan], None] | None = None,
    on_bytes: OnBytes | None = None,
) -> Run:
    """Compile, check, upload, send. Sends exactly the request that `plan` shows; returns when the target has the run.

    Killed at any moment and called again with the same job, it leaves exactly one run. `on_plan` sees the plan
    before anything is sent; `on_bytes` is told how many bytes of the bundle are there, and of how many.

    Raises:
        PreflightError: a check found an error; nothing was sent.
        TargetError: the target refused or could not be reached; the next command finds out whether it has the run.
    """
    from cloudtrain.handle import Run
    from cloudtrain.store.store import open_store
    from cloudtrain.submission import Submission, adopt, resume, submit_once
    from cloudtrain.submission import recover as recover_submissions

    settings = load_settings()
    draft = Draft.of(job, target, settings, profile=profile, ignore=ignore, place_of=place_of)

    def approved(counter: int) -> Plan:
        compiled = draft.asked(draft.plan(counter))
        if on_plan is not None:
            on_plan(compiled)
        _stop_on_errors(compiled)
        return compiled

    with open_store(settings.state_dir) as store:
        recover_submissions(store, settings)
        row = adopt(
            store,
            target=draft.target.type,
            place=draft.account.place,
            key=draft.key,
            submitter=settings.submitter,
        )
        if row is not None:
            return Run(row, settings, adopted=True)
        submission = Submission(draft.backend, draft.key, settings.submitter, approved, draft.tree, on_bytes)
        row = resume(store, submission, place=draft.account.place) or submit_once(store, submission)
    return Run(row, settings)


def run(name: str) -> Run:
    """The run of that name, of a unique beginning of a name, of a reference, or `last` for the newest.

    A reference such as `sagemaker://eu-west-1/name` also attaches to a run that this machine did not submit.

    Raises:
        RunNotFound: no run, or more than one, is meant.
    """
    from cloudtrain.handle import Run
    from cloudtrain.store.store import read_store

    if not name.strip():  # the beginning of every run's name, as an unset variable of a script is
        raise RunNotFound("the name of the run is empty", hint="`cloudtrain ps` lists the runs; `last` is the newest")
    settings = load_settings()
    _recover_if_needed()
    with read_store(settings.state_dir) as store:
        rows = [] if store is None else _matching(store, name)
        known = [] if store is None else [row.name for row in store.newest(limit=200)]
    if not rows and "://" in name:
        ref = RunRef.parse(name)
        return Run.attached(Listed(ref, backend_of(ref.target, settings).status(ref)), settings)
    if not rows:
        hint = did_you_mean(name, known[:8]) or "submit a job first: `cloudtrain submit job.yaml`"
        raise RunNotFound(f"there is no run `{name}`", hint=hint)
    if len(rows) > 1:
        names = ", ".join(f"`{row.name}`" for row in rows[:5])
        raise RunNotFound(f"`{name}` is the beginning of {len(rows)} runs", hint=f"write more of it: {names}")
    return Run(rows[0], settings)


def runs(
    *,
    limit: int | None = 20,
    states: Sequence[RunState] = (),
    job: str | None = None,
    target: AnyTarget = None,
    profile: str | None = None,
) -> list[Run]:
    """The newest runs of this user on this machine, newest first; those that have not ended are asked for their state.

    Args:
        limit: how many at most; None for all.
        states: only runs in one of these states.
        job: only runs of the job of that name.
        target: the runs that this target has, whoever submitted them, instead of those of this user and machine.
        profile: a profile of `cloudtrain.toml`, for the target's account settings.
    """
    from cloudtrain.handle import Run
    from cloudtrain.store.store import read_store

    settings, limit = load_settings(), None if limit is None else min(limit, sys.maxsize)
    if target is not None:
        model = settings.target(target, profile=profile) if isinstance(target, str) else target
        there = (Run.attached(item, settings) for item in _at(model, settings))
        return list(islice((item for item in there if _wanted(item, states, job)), limit))
    _recover_if_needed()
    with read_store(settings.state_dir) as store:
        rows = [] if store is None else _perhaps(store, states, job, limit)
    here = (_refreshed(Run(row, settings)) for row in rows)
    return list(islice((item for item in here if _wanted(item, states, job)), limit))


def recover() -> list[Recovered]:
    """Finish or forget every submission whose process died, and report what became of it."""
    from cloudtrain.store.store import open_store
    from cloudtrain.submission import Recovered, adopt
    from cloudtrain.submission import recover as recover_submissions

    settings = load_settings()
    with open_store(settings.state_dir) as store:
        results = recover_submissions(store, settings)
        waiting = [row for row in store.unfinished() if row.stage == "accepted"]
        adopted = [
            adopt(store, target=row.target, place=row.place, key=row.plan_sha256, submitter=row.submitter)
            for row in waiting
        ]
    told = {result.name for result in results}
    late = [row for row in adopted if row is not None and row.name not in told]
    return [*results, *(Recovered(row.name, "finished", f"`{row.target}` has the run") for row in late)]


def _next_counter(draft: Draft, settings: Settings) -> int:
    """The number of the next run of a plan. Nothing is written where there is no store yet."""
    if not (settings.state_dir / STORE_FILE).exists():
        return 1
    from cloudtrain.store.store import read_store

    with read_store(settings.state_dir) as store:
        return store.next_counter(draft.target.type, draft.key, settings.submitter) if store else 1


def _stop_on_errors(plan: Plan) -> None:
    if plan.errors:
        count, code = len(plan.errors), plan.errors[0].code
        raise PreflightError(
            f"{count} check{'s' if count > 1 else ''} found an error, so nothing was sent",
            findings=plan.findings,
            hint=f"`cloudtrain explain {code}` says more, `--ignore {code}` goes on anyway",
        )


def _recover_if_needed() -> None:
    """Mend broken submissions before looking; only opens the store for writing when there is something to mend."""
    from cloudtrain.store.store import open_store, read_store
    from cloudtrain.submission import recover as recover_submissions

    settings = load_settings()
    with read_store(settings.state_dir) as store:
        broken = store is not None and bool(store.unfinished())
    if broken:
        with open_store(settings.state_dir) as store:
            recover_submissions(store, settings)


def _matching(store: Store, name: str) -> list[Row]:
    if name == NEWEST:
        return store.newest(limit=1)
    if "://" in name:
        return _of_reference(store, RunRef.parse(name))
    exact = store.get(name)
    return [exact] if exact is not None else store.starting_with(name)


_WHERE = ("region", "subscription_id", "resource_group", "workspace")
"""Settings that say where a target's runs are."""


def _at(model: Local | SageMaker | AzureML, settings: Settings) -> Iterator[Listed]:
    backend = backend_of(model.type, settings)
    account = backend.account(model)
    missing = [name for name in _WHERE if name in getattr(account, "missing", ())]
    if missing:
        hint = f"set {', '.join(f'`{name}`' for name in missing)} in [{model.type}] of cloudtrain.toml"
        raise SettingsError(f"it is not known where in `{model.type}` to look", hint=hint)
    return backend.runs(account.place)


def _wanted(item: Run, states: Sequence[RunState], job: str | None) -> bool:
    return (not states or item.last_status.state in states) and job in (None, item.job_name)


def _perhaps(store: Store, states: Sequence[RunState], job: str | None, limit: int | None) -> list[Row]:
    """The rows among which the wanted runs are, newest first. Those that had not ended may be in any state by now."""
    if not states:
        return store.newest(limit=limit, job=job)
    ended = [state for state in states if state.is_final]
    rows = store.newest(limit=limit, states=ended, job=job) if ended else []
    rows += store.newest(states=[state for state in RunState if not state.is_final], job=job)
    return sorted(rows, key=lambda row: (-row.created, row.name))


def _of_reference(store: Store, ref: RunRef) -> list[Row]:
    """The run of a reference, with or without the profile (`research@eu-west-1`) that it was submitted with."""
    row = store.get(ref.name)
    if row is None or row.target != ref.target or ref.place not in (row.place, (row.place or "").rpartition("@")[2]):
        return []
    return [row]


def _refreshed(item: Run) -> Run:
    """A run that has not ended is asked for its state; a target that cannot be reached leaves what is known."""
    if not item.last_status.state.is_final:
        with suppress(TargetError, RunNotFound):
            item.status()
    return item
