"""Reading of job files. No other module in `cloudtrain.jobfile` reads files."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from os.path import normpath
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from cloudtrain.core.data import Checkpoint, Input, Output
from cloudtrain.core.job import BUNDLED, TrainingJob
from cloudtrain.core.references import is_local_path, is_run_input
from cloudtrain.core.targets import DEFAULT_TARGET, find_usable, target_names
from cloudtrain.documents.document import Format, Unreadable
from cloudtrain.documents.reading import read_text
from cloudtrain.errors import JobError, Problem, UsageError, did_you_mean
from cloudtrain.jobfile.parse import JobFile, ReadJob, parse
from cloudtrain.system.paths import expand_home, why_missing

if TYPE_CHECKING:
    from cloudtrain.core.processing import AnyJob

SUFFIXES: dict[str, Format] = {".yaml": "yaml", ".yml": "yaml", ".toml": "toml", ".json": "json"}
"""Maps the suffix of a job file to its format."""

_Places = TypeVar("_Places", Input, Output, Checkpoint)


def load_job(path: Path, overrides: Sequence[str] = ()) -> JobFile:
    """Read a job file and apply overrides.

    Relative local paths in the file and in the overrides start at the file's folder and become absolute.

    Raises:
        UsageError: the file does not exist, cannot be read, or has an unknown suffix.
        JobError: the job has problems; all are listed.
    """
    return _load(path, overrides, lambda name, changes: _job_of_sweep(path, name, changes))


def _load(path: Path, overrides: Sequence[str], read_job: ReadJob) -> JobFile:
    format = format_of(path)
    found = parse(_read(path), format=format, file=str(path), overrides=overrides, read_job=read_job)
    folder = path.absolute().parent
    if found.sweep is None:
        return found._replace(job=anchored(found.job, folder).from_folder(folder))
    job = anchored(found.sweep.job, folder) if found.inner is None else found.sweep.job
    return found._replace(job=job, sweep=found.sweep.model_copy(update={"job": job}).from_folder(folder))


def _job_of_sweep(sweep: Path, name: str, changes: Sequence[str]) -> JobFile:
    """Read the job file that a sweep names. `name` is its path relative to the sweep's file. `changes` are overrides of
    its fields.

    Raises:
        JobError: the file does not exist, holds no training job, or has problems.
    """
    refused = UsageError(
        f"`{name}` holds no training job, which a sweep needs", hint="name the file of a training job", code="CT060"
    )

    def refuse(_name: str, _changes: Sequence[str]) -> JobFile:
        raise refused  # a sweep of sweeps, or one that names itself

    try:
        found = _load(sweep.parent / expand_home(name), changes, refuse)
        if found.sweep is not None or not isinstance(found.job, TrainingJob):
            raise refused
    except UsageError as error:
        raise JobError([Problem(("job",), error.message, error.hint, code=error.code)]) from None
    return found


def format_of(path: Path) -> Format:
    """Return the format of a job file.

    Raises:
        UsageError: the name has an unknown suffix, or the path is a folder.
    """
    if os.path.isdir(path):  # noqa: PTH112 - a Path raises where the name is too long
        inside = sorted(_job_files(path), key=lambda name: (Path(name).stem != "job", name))
        hint = f"did you mean `{path / inside[0]}`?" if inside else f"{_init(str(path / 'job.yaml'))} writes one"
        raise UsageError(f"`{path}` is a folder, not a job file", hint=hint, code="CT001")
    known = SUFFIXES.get(path.suffix.lower())
    if known is None:
        ends = ", ".join(f"`{suffix}`" for suffix in SUFFIXES)
        what = f"ends in `{path.suffix}`" if path.suffix else "has no suffix"
        hint = f"a job file ends in one of {ends}"
        if path.suffix == ".py":
            hint = f"{_init('--script', str(path))} writes a job file for the script; name that file"
        raise UsageError(f"`{path}` {what}, so its format is unknown", hint=hint, code="CT001")
    return known


def _init(*words: str) -> str:
    """Return the command line `cloudtrain init` with these arguments, quoted for a shell."""
    return f"`{shlex.join(('cloudtrain', 'init', *words))}`"


def anchored(job: AnyJob, folder: Path) -> AnyJob:
    """Return the job with absolute local paths (`source_dir`, `local: ...`). Relative paths start at `folder`."""
    changes: dict[str, Any] = {
        "inputs": {name: _at(_data_at(item, folder), folder) for name, item in job.inputs.items()},
        "outputs": {name: _at(place, folder) for name, place in job.outputs.items()},
    }
    if job.source_dir is not None and not job.source_dir.startswith(BUNDLED):
        changes["source_dir"] = _absolute(job.source_dir, folder)
    checkpoint = getattr(job, "checkpoint", None)
    if checkpoint is not None:
        changes["checkpoint"] = _at(checkpoint, folder)
    return job.model_copy(update=changes)


def _at(place: _Places, folder: Path) -> _Places:
    here = place.of(DEFAULT_TARGET)
    if here is None or is_run_input(here):
        return place
    return place.model_copy(update={DEFAULT_TARGET: _absolute(here, folder)})


def _data_at(item: Input, folder: Path) -> Input:
    """Return the input with absolute paths for its local data, which is uploaded. Relative paths start at `folder`."""
    others = [name for name in target_names() if name != DEFAULT_TARGET]
    paths = {name: place for name in others if is_local_path(place := item.of(name)) and place is not None}
    changes = {
        name: _absolute(path, folder)
        for name, path in paths.items()
        if (target := find_usable(name)) is not None and target.uploads_data
    }
    return item.model_copy(update=changes) if changes else item


def _absolute(text: str, folder: Path) -> str:
    """Return the path `text` as an absolute path without `..`. A relative path starts at `folder`, and `~` is the home
    folder. Links are not followed."""
    try:
        path = expand_home(text)
    except RuntimeError:  # `~name` of an unknown user is an ordinary file name
        path = Path(text)
    return normpath(folder / path)


def _read(path: Path) -> str:
    try:
        return read_text(path)
    except (FileNotFoundError, NotADirectoryError):
        hint = did_you_mean(str(path), [str(path.parent / name) for name in _job_files(path.parent)])
        missing = f"there is no folder `{path.parent}`" if why_missing(str(path.parent)) else None
        raise UsageError(
            f"there is no job file `{path}`", hint=hint or missing or "`cloudtrain init` writes one", code="CT001"
        ) from None
    except Unreadable as error:
        raise JobError([replace(error.problem, file=str(path))]) from None
    except OSError as error:
        hint = "name a plain file that you may read"
        raise UsageError(f"`{path}` cannot be read: {error.strerror}", hint=hint, code="CT001") from None
    except ValueError:  # a NUL character
        raise UsageError(f"{str(path)!r} is not a path", hint="name a job file", code="CT001") from None


def _job_files(folder: Path) -> list[str]:
    try:
        files = [entry.name for entry in folder.iterdir() if entry.suffix.lower() in SUFFIXES and entry.is_file()]
    except OSError:
        return []
    return [name for name in files if not name.endswith(".schema.json")]  # `cloudtrain init` writes one for editors
