"""Jobs that read the output of earlier runs: `run:prep/output/volumes` becomes the location of the output of `prep`.

All locations come from the store, which records them when a run's name is taken. So a dry run needs no network and
shows the exact URI that a submit sends. The name after `run:` is a run's name, its beginning, `last`, or a job's name.
A job's name stands for the job's newest run that succeeded, or if none did, for the job's newest unfinished run.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, NamedTuple

from cloudtrain.core.plan import Plan
from cloudtrain.core.references import RunInput, is_run_input, run_input
from cloudtrain.core.states import RunRef, RunState
from cloudtrain.errors import CloudtrainError, JobError, Problem, RunNotFound, TargetError, did_you_mean
from cloudtrain.settings import Settings
from cloudtrain.store.kinds import SWEEP, TUNER
from cloudtrain.store.opening import read_store
from cloudtrain.store.store import RunRecord, Store
from cloudtrain.targets.registry import service_of, target_of

if TYPE_CHECKING:
    from cloudtrain.core.processing import AnyJob

NEWEST = "last"

_SENT = ("accepted", "reported")
"""Stages of submissions that created a run."""

_BAD = (RunState.FAILED, RunState.STOPPED, RunState.LOST)

_LOOKED_AT = 200
"""Number of the newest runs that are searched for `last`."""

_MOST_FILES = 200
"""Maximum number of files in a folder that are searched for the job of a name."""


def outputs_of(plan: Plan) -> dict[str, str]:
    """Return the location of each output of a plan. Names are in lower case, because `run:...` ignores case."""
    return {name.lower(): place for name, place in plan.outputs.items()}


class Awaited(NamedTuple):
    """An input from a run that was unfinished when its state was last recorded."""

    path: tuple[str | int, ...]
    ref: RunRef


class Resolved(NamedTuple):
    """A job whose `run:...` inputs are replaced with locations.

    Attributes:
        notes: notes for the reader of the plan.
        awaited: runs to ask the target about before the job is sent.
        after: runs that the target will wait for.
    """

    job: AnyJob
    notes: tuple[str, ...] = ()
    awaited: tuple[Awaited, ...] = ()
    after: tuple[str, ...] = ()


def resolve_run_inputs(job: AnyJob, target: str, settings: Settings) -> Resolved:
    """Return the job with each `run:...` input replaced with a location.

    Raises:
        JobError: a run does not exist, has failed, or has no such output.
    """
    inputs, problems, notes, awaited = dict(job.inputs), list[Problem](), list[str](), list[Awaited]()
    after = dict[str, None]()
    with read_store(settings.state_dir) as store:
        for name, item in job.inputs.items():
            written, path = item.of(target), ("inputs", name, target)
            if written is None or not is_run_input(written):
                continue
            wanted = run_input(written)
            assert wanted is not None, "the model has checked it"
            try:
                row, state = _Search(store, target, settings, job.folder or settings.cwd).row(wanted.run)
                place = _place(store, row, wanted)
            except CloudtrainError as error:
                problems.append(Problem(path, error.message, error.hint, code=error.code))
                continue
            inputs[name] = item.model_copy(update={target: place})
            notes += _notes(name, written, row, place, state)
            if state.is_final:
                continue
            if target_of(target).waits_for_runs:
                after[row.name] = None
            else:
                awaited.append(Awaited(path, row.ref))
    if problems:
        raise JobError(problems)
    return Resolved(job.model_copy(update={"inputs": inputs}), tuple(notes), tuple(awaited), tuple(after))


def states_of(awaited: Sequence[Awaited], settings: Settings) -> dict[RunRef, RunState | None]:
    """Return the current state of each run; None if the run no longer exists, and `PENDING` if its target does not
    answer.
    """
    from cloudtrain.chains.service import ChainService

    service = ChainService(settings.environ, settings.state_dir)
    states: dict[RunRef, RunState | None] = {}
    for ref in dict.fromkeys(item.ref for item in awaited):
        try:
            states[ref] = service.status(ref).state
        except RunNotFound:
            states[ref] = None
        except TargetError:
            states[ref] = RunState.PENDING
    return states


class _Search:
    """Resolves the NAME of a `run:NAME` input to a run on one target. `folder` is the folder of the job's file."""

    def __init__(self, store: Store | None, target: str, settings: Settings, folder: Path) -> None:
        self._store = store
        self._target = target
        self._settings = settings
        self._folder = folder

    def row(self, name: str) -> tuple[RunRecord, RunState]:
        """Return the run that a name stands for, and the run's last known state.

        Raises:
            CloudtrainError: the name matches no run or several runs, or the run did not succeed.
        """
        found, is_job = self._candidates(name)
        if not found:
            raise CloudtrainError(f"no run on `{self._target}` is called `{name}`", hint=self._near(name), code="CT021")
        if is_job:
            return self._best(found)
        if len(found) > 1:
            names = ", ".join(f"`{row.name}`" for row in found[:5])
            message = f"`{name}` begins the names of {len(found)} runs"
            raise CloudtrainError(message, hint=f"write one of the full names: {names}", code="CT021")
        state = self._state(found[0])
        if state in _BAD:
            raise _unusable(found[0], f"is {state}")
        return found[0], state

    def _candidates(self, name: str) -> tuple[list[RunRecord], bool]:
        """Return the runs that match a name, newest first, and whether the name is a job's name."""
        if self._store is None:
            return [], False
        if name == NEWEST:
            return self._here(self._store.newest(limit=_LOOKED_AT))[:1], False
        exact = self._store.get(name)
        if exact is not None and self._here([exact]):
            return [exact], False
        of_job = self._here(self._store.newest(job=name))
        return (of_job, True) if of_job else (self._here(self._store.starting_with(name)), False)

    def _best(self, rows: Sequence[RunRecord]) -> tuple[RunRecord, RunState]:
        states = list[tuple[RunRecord, RunState]]()
        for row in rows:
            state = self._state(row)
            if state is RunState.SUCCEEDED:
                return row, state
            states.append((row, state))
        for row, state in states:
            if not state.is_final:
                return row, state
        row, state = states[0]
        raise _unusable(row, f"is {state}, as are the others of `{row.job_name}`" if rows[1:] else f"is {state}")

    def _state(self, row: RunRecord) -> RunState:
        """Return the run's last recorded state. If that is not final, and runs can wait for other runs on the target,
        ask the target for the state. It is `lost` if the run no longer exists. A stopped sweep that has a best trial
        counts as succeeded.
        """
        state = RunState(row.state)
        if row.key.startswith((SWEEP, TUNER)):  # a stopped sweep still has a best trial
            has_best = state is RunState.STOPPED and self._store is not None and self._store.outputs_of(row.name)
            return RunState.SUCCEEDED if has_best else state
        if state.is_final or not target_of(self._target).waits_for_runs:
            return state
        try:
            return service_of(row.target, self._settings).status(row.ref).state
        except RunNotFound:
            return RunState.LOST

    def _here(self, rows: Sequence[RunRecord]) -> list[RunRecord]:
        return [row for row in rows if row.target == self._target and row.stage in _SENT]

    def _near(self, name: str) -> str:
        rows = self._here(self._store.newest(limit=_LOOKED_AT)) if self._store is not None else []
        known = dict.fromkeys([row.job_name for row in rows] + [row.name for row in rows])
        file = _file_of_job(name, self._folder)
        if file is None:
            return did_you_mean(name, list(known)[:8]) or f"submit a job of that name with `--target {self._target}`"
        shown = os.path.relpath(file, self._settings.cwd)
        return f"run it there first: `cloudtrain submit {quote(shown)} --target {self._target}`"


def _file_of_job(name: str, folder: Path) -> Path | None:
    """Return the first file in a folder that describes a job or a sweep of this name; None if there is none."""
    from cloudtrain.documents.document import Unreadable, read_document
    from cloudtrain.documents.reading import read_text
    from cloudtrain.jobfile.files import SUFFIXES

    try:
        files = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)
    except OSError:
        return None
    for file in files[:_MOST_FILES]:
        with suppress(OSError, Unreadable):
            text = read_text(file)
            if name in text:
                data = read_document(text, SUFFIXES[file.suffix.lower()]).data
                if isinstance(data, dict) and data.get("name") == name:
                    return file
    return None


def _unusable(row: RunRecord, why: str) -> CloudtrainError:
    return CloudtrainError(
        f"the run `{row.name}` {why}, so its output is incomplete",
        hint=f"`cloudtrain status {row.name}` shows the reason",
        code="CT021",
    )


def _place(store: Store | None, row: RunRecord, wanted: RunInput) -> str:
    assert store is not None, "the run came from it"
    places = store.outputs_of(row.name)
    place = places.get(wanted.what.lower())
    if not places and row.key.startswith((SWEEP, TUNER)):
        hint = f"name the run of a trial, `run:RUN/model`: `cloudtrain trials {row.name}` lists them"
        if not RunState(row.state).is_final:
            hint = f"wait for it: `cloudtrain wait {row.name}`; or {hint}"
        raise CloudtrainError(f"the best trial of the sweep `{row.name}` is not known", hint=hint, code="CT021")
    if place is None and "outputs" in places:
        raise CloudtrainError(
            f"{target_of(row.target).title} keeps all outputs of the training job `{row.name}` in one archive, "
            f"`{places['outputs']}`",
            hint=f"use `run:{wanted.run}/model`, or produce `{wanted.what.partition('/')[2]}` with a processing job, "
            "which does not put its outputs into one archive",
            code="CT021",
        )
    if place is None:
        options = [f"run:{wanted.run}/{name.replace('outputs/', 'output/')}" for name in places]
        asked = f"run:{wanted.run}/{wanted.what.replace('outputs/', 'output/')}"
        raise CloudtrainError(
            f"the run `{row.name}` writes no `{wanted.what}`", hint=did_you_mean(asked, options), code="CT021"
        )
    if not wanted.below:
        return place
    if place.endswith(".tar.gz"):
        raise CloudtrainError(
            f"`{place}` is an archive, so no folder in it can be an input",
            hint=f"remove `{wanted.below}`",
            code="CT021",
        )
    return place.rstrip("/") + wanted.below


def _notes(name: str, written: str, row: RunRecord, place: str, state: RunState) -> list[str]:
    notes = [f"input `{name}`: `{written}` is `{place}`, written by `{row.name}`"]
    if not state.is_final and target_of(row.target).waits_for_runs:
        notes.append(f"the run waits for `{row.name}`, which is {state}")
    elif not state.is_final:
        notes.append(f"`{row.name}` had not ended at the last check: `cloudtrain status {row.name}`")
    if place.endswith(".tar.gz"):
        notes.append(f"input `{name}` is an archive, which the script has to unpack")
    return notes
