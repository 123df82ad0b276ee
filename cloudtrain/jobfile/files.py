"""Job files on disk: the only reader of files here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from os.path import normpath
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from cloudtrain.data import Checkpoint, Input, Output
from cloudtrain.errors import JobError, Problem, UsageError, did_you_mean
from cloudtrain.job import BUNDLED
from cloudtrain.jobfile.document import Format
from cloudtrain.jobfile.parse import JobFile, parse
from cloudtrain.references import is_run_input

if TYPE_CHECKING:
    from cloudtrain.processing import AnyJob

SUFFIXES: dict[str, Format] = {".yaml": "yaml", ".yml": "yaml", ".toml": "toml", ".json": "json"}
"""The format of a job file, by the end of its name."""

_Places = TypeVar("_Places", Input, Output, Checkpoint)


def load_job(path: Path, overrides: Sequence[str] = ()) -> JobFile:
    """Read a job file. Relative local places in it are made absolute against its folder.

    Overrides stand for lines of the file, so their relative places start at the same folder.

    Raises:
        UsageError: there is no such file, it cannot be read, or its name ends in no known suffix.
        JobError: all problems of the job at once.
    """
    format = format_of(path)
    found = parse(_read(path), format=format, file=str(path), overrides=overrides)
    return replace(found, job=anchored(found.job, path.absolute().parent))


def format_of(path: Path) -> Format:
    """The format of a job file.

    Raises:
        UsageError: the name ends in no known suffix, or the path is a folder.
    """
    if path.is_dir():
        inside = sorted(_job_files(path), key=lambda name: (Path(name).stem != "job", name))
        hint = f"did you mean `{path / inside[0]}`?" if inside else f"`cloudtrain init {path / 'job.yaml'}` writes one"
        raise UsageError(f"`{path}` is a folder, not a job file", hint=hint)
    known = SUFFIXES.get(path.suffix.lower())
    if known is None:
        ends = ", ".join(f"`{suffix}`" for suffix in SUFFIXES)
        what = f"ends in `{path.suffix}`" if path.suffix else "has no suffix"
        raise UsageError(f"`{path}` {what}, so its format is unknown", hint=f"a job file ends in one of {ends}")
    return known


def anchored(job: AnyJob, folder: Path) -> AnyJob:
    """The job with its relative local places (`source_dir`, `local: ...`) made absolute against a folder."""
    changes: dict[str, Any] = {
        "inputs": {name: _at(place, folder) for name, place in job.inputs.items()},
        "outputs": {name: _at(place, folder) for name, place in job.outputs.items()},
    }
    if not job.source_dir.startswith(BUNDLED):
        changes["source_dir"] = _absolute(job.source_dir, folder)
    checkpoint = getattr(job, "checkpoint", None)
    if checkpoint is not None:
        changes["checkpoint"] = _at(checkpoint, folder)
    return job.model_copy(update=changes)


def _at(place: _Places, folder: Path) -> _Places:
    if place.local is None or is_run_input(place.local):
        return place
    return place.model_copy(update={"local": _absolute(place.local, folder)})


def _absolute(text: str, folder: Path) -> str:
    """`data/../train` under the folder, without the dots; `~` is the home folder. Links are not followed."""
    try:
        path = Path(text).expanduser()
    except RuntimeError:  # `~somebody`, whom this machine does not know: then it is a name like any other
        path = Path(text)
    return normpath(folder / path)


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        hint = did_you_mean(str(path), [str(path.parent / name) for name in _job_files(path.parent)])
        missing = f"there is no folder `{path.parent}`" if not path.parent.is_dir() else None
        raise UsageError(
            f"there is no job file `{path}`", hint=hint or missing or "`cloudtrain init` writes one"
        ) from None
    except UnicodeDecodeError as error:
        text = error.object[: error.start].decode("utf-8", "replace")
        line, column = text.count("\n") + 1, len(text) - (text.rfind("\n") + 1) + 1
        message = f"the job file is not UTF-8 text: byte 0x{error.object[error.start]:02x}"
        problem = Problem((), message, "save it as UTF-8", str(path), line, column)
        raise JobError([problem]) from None
    except OSError as error:
        raise UsageError(f"`{path}` cannot be read: {error.strerror}") from None


def _job_files(folder: Path) -> list[str]:
    try:
        return [entry.name for entry in folder.iterdir() if entry.suffix.lower() in SUFFIXES and entry.is_file()]
    except OSError:
        return []
