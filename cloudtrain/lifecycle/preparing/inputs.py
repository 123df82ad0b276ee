"""Jobs that read the output of earlier runs: `run:prep/output/volumes` becomes the location of the
output of `prep`.

All locations come from the store, which records them when a run's name is taken. So a dry run needs
no network and shows the exact URI that a submit sends. The name after `run:` is a run's name, its
beginning, `last`, or a job's name. A job's name stands for the job's newest run that succeeded, or
if none did, for the job's newest unfinished run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, NamedTuple

from cloudtrain.code.data import UnreadableData, read_data
from cloudtrain.code.files import escape_path
from cloudtrain.documents.document import Unreadable, read_document, read_text
from cloudtrain.errors import (
    CloudtrainError,
    JobError,
    Problem,
    RunNotFound,
    TargetError,
    ValuePath,
    did_you_mean,
    join_names,
)
from cloudtrain.job.data import Input, RunInput, is_local_path, run_input
from cloudtrain.job.file import SUFFIXES
from cloudtrain.job.model import format_size
from cloudtrain.lifecycle.store.schema import read_store
from cloudtrain.lifecycle.store.store import NEWEST, SENT, RunRecord, Store
from cloudtrain.plans.plan import Upload
from cloudtrain.plans.states import CAPACITY, SWEEP, TUNER, RunRef, RunState
from cloudtrain.runtime.errors import SetupError
from cloudtrain.runtime.secret_values import VARIABLE, resolved
from cloudtrain.system.plugins import DEFAULT_TARGET, has_part, part
from cloudtrain.targets.contract import DataPlaces, Target
from cloudtrain.targets.registry import service_of, target_of
from cloudtrain.targets.settings import Settings

if TYPE_CHECKING:
    from cloudtrain.job.processing import AnyJob
    from cloudtrain.targets.where import Where


_SEARCHED_RUNS = 200
"""Number of the newest runs that are searched for `last`."""

_SEARCHED_FILES = 200
"""Maximum number of files in a folder that are searched for the job of a name."""


class Awaited(NamedTuple):
    """An input from a run that was unfinished when its state was last recorded."""

    path: ValuePath
    ref: RunRef


def resolve_run_inputs(
    job: AnyJob, target: str, settings: Settings
) -> tuple[AnyJob, tuple[str, ...], tuple[Awaited, ...]]:
    """Return the job with each `run:...` input replaced with a location; notes for the reader of
    the plan; and the inputs from runs that have not ended."""
    inputs = dict(job.inputs)
    problems: list[Problem] = []
    notes: list[str] = []
    awaited: list[Awaited] = []
    with read_store(settings.state_dir) as store:
        search = _Search(store, target, settings, job.folder or settings.cwd)
        for name, item in job.inputs.items():
            reference = item.of(target) or ""
            source = run_input(reference)
            if source is None:
                continue
            path = ("inputs", name, target)
            try:
                row, state = search.find(source.run)
                place = _place_of(store, row, source)
            except CloudtrainError as error:
                problems.append(Problem(path, error.message, error.hint, code=error.code))
                continue

            inputs[name] = item.model_copy(update={target: place})
            notes += _notes(name, reference, row, place, state)
            if not state.is_final:
                awaited.append(Awaited(path, row.ref))
    if problems:
        raise JobError(problems)
    job = job.model_copy(update={"inputs": inputs})
    return job, tuple(notes), tuple(awaited)


def states_of(awaited: Sequence[Awaited], settings: Settings) -> dict[RunRef, RunState | None]:
    """Return the current state of each run; None if the run no longer exists, and `PENDING` if its
    target does not answer."""
    from cloudtrain.lifecycle.detached.waiting import ChainService

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


class _Search(NamedTuple):
    """Resolves the NAME of a `run:NAME` input to a run on one target. `folder` is the folder of the
    job's file."""

    store: Store
    target: str
    settings: Settings
    folder: Path

    def find(self, name: str) -> tuple[RunRecord, RunState]:
        """Return the run that a name stands for, and its last known state. Of the runs of a job,
        this is the newest that has succeeded, or else the newest that goes on."""
        rows, is_job = self._candidates(name)
        if not rows:
            message = f"no run on `{self.target}` is called `{name}`"
            raise CloudtrainError(message, hint=self._suggest(name), code="CT021")
        if len(rows) > 1 and not is_job:
            full_names = join_names([row.name for row in rows[:5]])
            message = f"`{name}` begins the names of {len(rows)} runs"
            hint = f"write one of the full names: {full_names}"
            raise CloudtrainError(message, hint=hint, code="CT021")

        found = []
        for row in rows:
            state = self._state_of(row)
            if state is RunState.SUCCEEDED:
                return row, state
            found.append((row, state))
        for row, state in found:
            if not state.is_final:
                return row, state
        row, state = found[0]
        message = f"the run `{row.name}` is {state}, so its output is incomplete"
        hint = f"`cloudtrain status {row.name}` shows the reason"
        raise CloudtrainError(message, hint=hint, code="CT021")

    def _candidates(self, name: str) -> tuple[list[RunRecord], bool]:
        """Return the runs that match a name, newest first, and whether the name is a job's name."""
        if name == NEWEST:
            return self._on_target(self.store.newest(limit=_SEARCHED_RUNS))[:1], False
        exact = self.store.get(name)
        if exact is not None and self._on_target([exact]):
            return [exact], False
        of_job = self._on_target(self.store.newest(job=name))
        if of_job:
            return of_job, True
        return self._on_target(self.store.starting_with(name)), False

    def _state_of(self, row: RunRecord) -> RunState:
        """Return the run's last recorded state. If that is not final, and runs can wait for other
        runs on the target, ask the target for the state. It is `lost` if the run no longer exists.
        A stopped sweep that has a best trial counts as succeeded."""
        state = RunState(row.state)
        if row.key.startswith((SWEEP, TUNER)):
            has_best = state is RunState.STOPPED and self.store.outputs_of(row.name)
            return RunState.SUCCEEDED if has_best else state
        if state.is_final or not target_of(self.target).facts.waits_for_runs:
            return state
        try:
            return service_of(row.target, self.settings).status(row.ref).state
        except RunNotFound:
            return RunState.LOST

    def _on_target(self, rows: Sequence[RunRecord]) -> list[RunRecord]:
        """Return those of the runs that are on the target and were sent."""
        sent = [row for row in rows if row.target == self.target and row.stage in SENT]
        # which try of a list will write its outputs is not known, and its run can be named
        return [row for row in sent if not row.key.startswith(CAPACITY)]

    def _suggest(self, name: str) -> str:
        """Return a hint for a name that no run has: the file of the job with this name, or similar
        names."""
        file = _file_of_job(name, self.folder)
        if file is not None:
            path = os.path.relpath(file, self.settings.cwd)
            return f"run it there first: `cloudtrain submit {quote(path)} --target {self.target}`"
        rows = self._on_target(self.store.newest(limit=_SEARCHED_RUNS))
        names = [row.job_name for row in rows] + [row.name for row in rows]
        similar = did_you_mean(name, list(dict.fromkeys(names))[:8])
        return similar or f"submit a job of that name with `--target {self.target}`"


def _file_of_job(name: str, folder: Path) -> Path | None:
    """Return the first file in a folder that describes a job or a sweep of this name; None if there
    is none."""
    files = []
    with suppress(OSError):
        files = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)
    for file in files[:_SEARCHED_FILES]:
        with suppress(OSError, Unreadable):
            text = read_text(file)
            # a file without the name need not be parsed
            data = read_document(text, SUFFIXES[file.suffix.lower()]).data if name in text else None
            if isinstance(data, dict) and data.get("name") == name:
                return file
    return None


def _place_of(store: Store, row: RunRecord, source: RunInput) -> str:
    """Return the location of what an input names of a run.

    Raises:
        CloudtrainError: the run has no such output, or the input names a part of an archive.
    """
    places = store.outputs_of(row.name)
    place = places.get(source.what.lower())
    if place is None:
        raise _no_output(row, source, places)
    if not source.below:
        return place
    if place.endswith(".tar.gz"):
        message = f"`{place}` is an archive, so no folder in it can be an input"
        raise CloudtrainError(message, hint=f"remove `{source.below}`", code="CT021")
    return place.rstrip("/") + source.below


def _no_output(row: RunRecord, source: RunInput, places: Mapping[str, str]) -> CloudtrainError:
    """Return the error for an output that a run does not have. `places` are the outputs that it
    has."""
    hint: str | None
    if not places and row.key.startswith((SWEEP, TUNER)):
        message = f"the best trial of the sweep `{row.name}` is not known"
        hint = (
            f"name the run of a trial, `run:RUN/model`: `cloudtrain trials {row.name}` lists them"
        )
        if not RunState(row.state).is_final:
            hint = f"wait for it: `cloudtrain wait {row.name}`; or {hint}"
    elif "outputs" in places:
        title = target_of(row.target).title
        message = (
            f"{title} keeps all outputs of the training job `{row.name}` in one archive, "
            f"`{places['outputs']}`"
        )
        hint = (
            f"use `run:{source.run}/model`, or produce `{source.what.partition('/')[2]}` "
            "with a processing job, which does not put its outputs into one archive"
        )
    else:
        message = f"the run `{row.name}` writes no `{source.what}`"
        options = [f"run:{source.run}/{_as_written(name)}" for name in places]
        hint = did_you_mean(f"run:{source.run}/{_as_written(source.what)}", options)
    return CloudtrainError(message, hint=hint, code="CT021")


def _as_written(output: str) -> str:
    """Return an output's name in the store as a job file writes it."""
    return output.replace("outputs/", "output/")


def _notes(name: str, reference: str, row: RunRecord, place: str, state: RunState) -> list[str]:
    """Return what a reader of the plan should know about the input `name` from the run `row`."""
    notes = [f"input `{name}`: `{reference}` is `{place}`, written by `{row.name}`"]
    if not state.is_final:
        note = f"`{row.name}` had not ended at the last check: `cloudtrain status {row.name}`"
        if target_of(row.target).facts.waits_for_runs:
            note = f"the run waits for `{row.name}`, which is {state}"
        notes.append(note)
    if place.endswith(".tar.gz"):
        notes.append(f"input `{name}` is an archive, which the script has to unpack")
    return notes


# Inputs on this machine: `azureml: ./data` becomes the location that a submit uploads the data to.
#
# The location contains the hash of the content, so a plan is complete before anything is sent, and
# the same data is sent only once.

_WORTH_MONEY = 1 << 30
"""Size of data in bytes from which a plan names the price of its storage."""
_MONTHLY = 0.023
"""Approximate price in US dollars for storing one GiB in the clouds' standard storage for a
month."""


def is_uploaded(item: Input, target: Target) -> bool:
    """Return whether an input is data on this machine that a submit uploads for the target."""
    return has_part(target, DataPlaces) and is_local_path(item.of(target.name))


def place_data(job: AnyJob, where: Where) -> tuple[AnyJob, tuple[Upload, ...], tuple[str, ...]]:
    """Return the job with local data replaced by the locations of the uploads, the uploads, and
    notes for the plan."""
    target = where.target
    inputs = dict(job.inputs)
    uploads = {}
    problems = []
    notes = []
    for name, item in job.inputs.items():
        if not is_uploaded(item, target):
            continue
        source = str(item.of(target.name))
        path = ("inputs", name, target.name)
        try:
            data = read_data(source)
        except UnreadableData as error:
            problems.append(Problem(path, error.message, error.hint, code=error.code))
            continue

        is_file = os.path.isfile(source)
        kind = "file" if is_file else "folder"
        if item.type == ("uri_folder" if is_file else "uri_file"):
            message = f"`{source}` is a {kind}, and the input's type is `{item.type}`"
            hint = f"write `type: uri_{kind}` under `inputs.{name}`"
            problems.append(Problem(path, message, hint, code="CT986"))
            continue

        place_of = part(target, DataPlaces)
        assert place_of is not None, "only data for a target with this part is uploaded"
        file_name = os.path.basename(source)
        folder, read = place_of(
            where.settings, where.account, data.sha256, file_name, is_file=is_file
        )
        inputs[name] = item.model_copy(update={target.name: read})
        count = len(data.files)
        uploads[folder] = Upload("data", data.sha256, folder, data.size, count, source=source)
        if data.linked:
            links = join_names([*map(escape_path, data.linked)])
            notes.append(f"links lead out of `{source}`; what they lead to is uploaded: {links}")

    if problems:
        raise JobError(problems)
    job = job.model_copy(update={"inputs": inputs})
    data_uploads = tuple(uploads.values())
    return job, data_uploads, (*map(_upload_note, data_uploads), *notes)


def emulated_here(job: AnyJob, emulated: Target) -> AnyJob:
    """Return `job` for a local run that emulates another target. Inputs that a submit to the
    emulated target would upload are not uploaded: the run reads them from their paths on this
    machine."""
    inputs = dict(job.inputs)
    for name, item in job.inputs.items():
        if is_uploaded(item, emulated):
            here = item.of(DEFAULT_TARGET) or item.of(emulated.name)
            inputs[name] = item.model_copy(update={emulated.name: None, DEFAULT_TARGET: here})
    return job.model_copy(update={"inputs": inputs})


def _upload_note(upload: Upload) -> str:
    what = f"`{upload.source}`, {format_size(upload.size)} of data"
    note = f"{what}, is uploaded once, when the job is submitted"
    if upload.size >= _WORTH_MONEY:
        month = upload.size / 2**30 * _MONTHLY
        note += f", and costs about ${month:,.2f} a month there"
    return note


# How a job's secrets reach a target: cloudtrain sends their locations in one variable, and never
# sends the values.


def with_secret_places(
    job: AnyJob, target: Target, emulated: str | None, environ: Mapping[str, str]
) -> tuple[AnyJob, tuple[str, ...]]:
    """Return the job with the variable that contains the locations of the secrets, and notes about
    secrets that this machine needs but lacks.

    A local run that emulates another target uses a secret's location for `local`, or if there is
    none, the secret's location for the emulated target.
    """
    places = {}
    problems = []
    candidates = [target]
    if emulated is not None:
        candidates.append(target_of(emulated))

    for name, secret in job.environment.secrets.items():
        for candidate in candidates:
            place = secret.of(candidate.name) or ""
            if place.partition(":")[0] in candidate.facts.secrets:
                places[name] = place
                break
        else:
            hint = f"remove it: jobs on {target.title} get no secrets from cloudtrain"
            if target.facts.secrets:
                example = next(iter(target.facts.secrets.values())).replace("NAME", name)
                hint = f'write `environment.secrets.{name}: {{{target.name}: "{example}"}}`'
            message = f"the secret `{name}` has no location that {target.title} can read"
            problems.append(Problem(("environment", "secrets", name), message, hint, code="CT072"))
    if problems:
        raise JobError(problems)

    variables = {**job.environment.variables, VARIABLE: json.dumps(places, sort_keys=True)}
    environment = job.environment.model_copy(update={"variables": variables})
    job = job.model_copy(update={"environment": environment})
    notes = []
    for name, place in places.items():
        if not target.facts.has_secrets_here or not place.startswith(("env:", "file:")):
            continue
        alone = json.dumps({name: place})
        try:
            resolved({**environ, **variables, VARIABLE: alone})
        except SetupError as error:  # a run on this machine could not read it
            notes.append(f"{error.message}: {error.hint}" if error.hint else error.message)
    return job, tuple(notes)
