"""Reading of job files: the text of a file and overrides become a job, or a list of all problems
with positions."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from os.path import normpath
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from pydantic import ValidationError

from cloudtrain.documents.document import (
    BYTE_ORDER_MARK,
    Content,
    Format,
    Positions,
    Unreadable,
    ValuePath,
    read_document,
    read_text,
)
from cloudtrain.documents.yaml_text import read_scalar
from cloudtrain.errors import JobError, NearName, Problem, UsageError, did_you_mean, quoted
from cloudtrain.job.data import Checkpoint, Input, Output, is_local_path, is_run_input
from cloudtrain.job.nodes import Changes, Source, describe_value, placed
from cloudtrain.job.problems import problems_of
from cloudtrain.job.training import BUNDLED, TrainingJob
from cloudtrain.system.files import expand_home, why_missing
from cloudtrain.system.plugins import DEFAULT_TARGET, find_usable, target_names

if TYPE_CHECKING:
    from cloudtrain.job.processing import AnyJob
    from cloudtrain.job.sweep import Sweep


_START = {
    "yaml": "start with `name: my-job` and `entry_point: train.py`",
    "toml": 'start with `name = "my-job"` and `entry_point = "train.py"`',
    "json": 'start with `{"name": "my-job", "entry_point": "train.py"}`',
}


class JobFile(NamedTuple):
    """The job or sweep of a file, and the position of each value."""

    job: AnyJob
    file: str
    positions: Positions
    changes: Changes = Changes()
    text: str | None = None
    """The text of the file; None without a file."""
    overrides: tuple[str, ...] = ()
    sweep: Sweep | None = None
    """The sweep, if the file holds one; `job` is then the sweep's job."""
    inner: JobFile | None = None
    """The separate file of a sweep's job, if there is one."""

    @property
    def work(self) -> AnyJob | Sweep:
        """The job or sweep in the file."""
        return self.job if self.sweep is None else self.sweep

    def place_of(self, path: ValuePath) -> str | None:
        """Return the position of the value at a path in the job or sweep, such as `job.yaml:9:20`,
        or the override that set it. For a missing value, return the position of its nearest parent;
        None if that is unknown too."""
        if self.inner is not None and path[:1] == ("job",):
            return self.inner.place_of(path[1:])
        origin = self.changes.origin(path)
        if origin is not None:
            return origin
        place = self.positions.of(path)
        return f"{self.file}:{place.line}:{place.column}" if place else None


def parse_job(text: str, *, format: Format, file: str, overrides: Sequence[str] = ()) -> AnyJob:
    """Return the job in a text. `file` names the text in messages. `overrides` such as
    `resources.instance_count=4` take precedence.

    Raises:
        JobError: the job has problems; all are listed, each with `file`, line and column, or with
            the override that caused it.
    """
    return parse(text, format=format, file=file, overrides=overrides).job


ReadJob = Callable[[str, Sequence[str]], JobFile]
"""Reads the job file that a sweep names, with overrides."""


def parse(
    text: str,
    *,
    format: Format,
    file: str,
    overrides: Sequence[str] = (),
    read_job: ReadJob | None = None,
) -> JobFile:
    """Parse a text and return its job or sweep with positions. `read_job` reads the separate job
    file of a sweep.

    Raises:
        JobError: the job has problems; all are listed.
    """
    document = _read_mapping(text, format, file)
    model = _take_model(document, file)
    is_sweep = document.data.get("kind") == SWEEP
    problems = list(document.problems)

    inner = None
    job_name = document.data.get("job")
    if read_job is not None and is_sweep and isinstance(job_name, str):
        overrides, job_overrides = _apart(overrides)
        try:
            inner = read_job(job_name, job_overrides)
        except JobError as error:
            problems += error.problems

    data = document.data
    changes = Changes()
    if overrides:
        from cloudtrain.job.overrides import override  # importing it costs start-up time

        data, changes = override(data, overrides, model)
    problems += changes.problems
    if inner is not None:
        data = data | {"job": inner.job}
    job: Any = None
    try:
        job = model.model_validate(data)
    except ValidationError as error:
        texts = document.positions.texts

        def spelling(path: ValuePath) -> str | None:
            return (changes.texts if changes.origin(path) else texts).get(path)

        for item in problems_of(error, model, Source(model, find_spelling=spelling)):
            # The separate file of a job has problems of its own.
            if item.path != ("job",) or not isinstance(data.get("job"), str):
                problems.append(item)

    if problems:
        from cloudtrain.job.explain import in_form  # importing it costs start-up time

        for index, item in enumerate(problems):
            if item.file is None:  # hints about overrides stay in YAML
                problems[index] = replace(item, hint=in_form(item.hint, format))
        raise JobError(_place_each(problems, file, document.positions, changes))
    parsed = JobFile(job, file, document.positions, changes, text, tuple(overrides))
    if is_sweep:
        return parsed._replace(job=job.job, sweep=job, inner=inner)
    return parsed


_OF_JOB = "job."
"""Prefix of the overrides for the job of a sweep."""


def _apart(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the overrides of a sweep's own fields, and those of its job, without the beginning
    `job.`: they change the separate file of the job."""
    own = []
    of_job = []
    for override in overrides:
        if override.startswith(_OF_JOB):
            of_job.append(override.removeprefix(_OF_JOB))
        else:
            own.append(override)
    return own, of_job


def _read_mapping(text: str, format: Format, file: str) -> Content:
    """Read a text that holds fields. Raises JobError for a text that is empty, cannot be read, or
    holds something else."""
    try:
        empty = Unreadable("the job file is empty", _START[format], code="CT003")
        if not text.strip(f"{BYTE_ORDER_MARK} \t\r\n"):
            raise empty
        document = read_document(text, format)
        if document.data in (None, {}) and not document.problems:
            raise empty
        if not isinstance(document.data, dict):
            message = f"a job file holds a mapping at the top, not {describe_value(document.data)}"
            raise Unreadable(message, _START[format], document.positions.of(()), code="CT003")
    except Unreadable as error:
        raise JobError([replace(error.problem, file=file)]) from None
    return document


def _take_model(document: Content, file: str) -> Any:
    """Return the model that `kind` names. Remove `kind: training` from the data, because
    `TrainingJob` has no such field."""
    if "kind" not in document.data:
        return TrainingJob
    kind = document.data["kind"]
    if kind not in KINDS:
        message = f"there is no kind of job {describe_value(kind)}"
        problem = Problem(("kind",), message, did_you_mean(str(kind), KINDS), code="CT013")
        raise JobError([placed(problem, file, document.positions)])
    if kind == TRAINING:
        del document.data["kind"]
    return model_of_kind(kind)


def _place_each(
    problems: Sequence[Problem], file: str, positions: Positions, changes: Changes
) -> list[Problem]:
    """Return the problems with positions: first the problems of the file in order, then the
    problems of overrides."""

    def order(problem: Problem) -> tuple[bool, int, int]:
        return problem.file != file, problem.line or 0, problem.column or 0

    places = [_place(problem, file, positions, changes) for problem in problems]
    return sorted(dict.fromkeys(places), key=order)


def _place(problem: Problem, file: str, positions: Positions, changes: Changes) -> Problem:
    """Return the problem with its position in the file, or with the override that caused it."""
    if problem.file is not None:
        return problem
    if problem.line is not None:
        return replace(problem, file=file)
    origin = changes.origin(problem.path)
    if origin is not None:
        return replace(problem, file=origin)
    return placed(problem, file, positions)


# The files themselves, and the local paths in them.

SUFFIXES: dict[str, Format] = {".yaml": "yaml", ".yml": "yaml", ".toml": "toml", ".json": "json"}
"""Maps the suffix of a job file to its format."""

_Places = TypeVar("_Places", Input, Output, Checkpoint)


def load_job(path: Path, overrides: Sequence[str] = ()) -> JobFile:
    """Read a job file and apply overrides.

    Relative local paths in the file and in the overrides start at the file's folder and become
    absolute.

    Raises:
        UsageError: the file does not exist, cannot be read, or has an unknown suffix.
        JobError: the job has problems; all are listed.
    """
    return _load(path, overrides, lambda name, changes: _job_of_sweep(path, name, changes))


def _load(path: Path, overrides: Sequence[str], read_job: ReadJob) -> JobFile:
    """Read a job file as `load_job` does. `read_job` reads the separate job file of a sweep."""
    format = format_of(path)
    file = parse(_read(path), format=format, file=str(path), overrides=overrides, read_job=read_job)
    folder = path.absolute().parent
    job = file.job
    if file.inner is None:
        job = anchored(job, folder)
    if file.sweep is None:
        return file._replace(job=job.from_folder(folder))
    sweep = file.sweep.model_copy(update={"job": job})
    return file._replace(job=job, sweep=sweep.from_folder(folder))


def _job_of_sweep(sweep: Path, name: str, changes: Sequence[str]) -> JobFile:
    """Read the job file that a sweep names. `name` is its path, relative to the sweep's file.
    `changes` are overrides of its fields."""
    refused = UsageError(
        f"`{name}` holds no training job, which a sweep needs",
        hint="name the file of a training job",
        code="CT060",
    )

    def refuse(_name: str, _changes: Sequence[str]) -> JobFile:
        raise refused  # a sweep of sweeps, or one that names itself

    try:
        file = _load(sweep.parent / expand_home(name), changes, refuse)
        if file.sweep is not None or not isinstance(file.job, TrainingJob):
            raise refused
    except UsageError as error:
        raise JobError([Problem(("job",), error.message, error.hint, code=error.code)]) from None
    return file


def format_of(path: Path) -> Format:
    """Return the format of a job file.

    Raises:
        UsageError: the name has an unknown suffix, or the path is a folder.
    """
    # `Path.is_dir` raises an error if the name is too long.
    if os.path.isdir(path):
        hint = f"`cloudtrain init {shlex.quote(str(path / 'job.yaml'))}` writes one"
        inside = _job_files(path)
        if inside:
            usual = [name for name in inside if Path(name).stem == "job"]
            hint = NearName.of(str(path / min(usual or inside)))
        raise UsageError(f"`{path}` is a folder, not a job file", hint=hint, code="CT001")

    file_format = SUFFIXES.get(path.suffix.lower())
    if file_format is None:
        what = f"ends in `{path.suffix}`" if path.suffix else "has no suffix"
        message = f"`{path}` {what}, so its format is unknown"
        hint = _CONVERSIONS.get(path.suffix, f"a job file ends in one of {quoted(SUFFIXES)}")
        raise UsageError(message, hint=hint.format(shlex.quote(str(path))), code="CT001")
    return file_format


_CONVERSIONS = {
    ".py": "`cloudtrain init --script {}` writes a job file for the script; name that file",
    ".ipynb": "export the notebook first: `jupyter nbconvert --to script {}`",
    ".sh": "`cloudtrain adopt {}` makes a job of the training that it starts",
}
"""What makes a job file, or a script, of files with these suffixes."""


def anchored(job: AnyJob, folder: Path) -> AnyJob:
    """Return the job with absolute local paths (`source_dir`, `local: ...`). Relative paths start
    at `folder`."""
    inputs = {}
    for name, item in job.inputs.items():
        inputs[name] = _with_path(_with_uploads(item, folder), folder)
    outputs = {name: _with_path(item, folder) for name, item in job.outputs.items()}
    changes: dict[str, object] = {"inputs": inputs, "outputs": outputs}
    if job.source_dir is not None and not job.source_dir.startswith(BUNDLED):
        changes["source_dir"] = _absolute(job.source_dir, folder)
    checkpoint = getattr(job, "checkpoint", None)
    if checkpoint is not None:
        changes["checkpoint"] = _with_path(checkpoint, folder)
    return job.model_copy(update=changes)


def _with_path(item: _Places, folder: Path) -> _Places:
    """Return the item with an absolute path for runs on this machine. Relative paths start at
    `folder`."""
    path = item.of(DEFAULT_TARGET)
    if path is None or is_run_input(path):
        return item
    return item.model_copy(update={DEFAULT_TARGET: _absolute(path, folder)})


def _with_uploads(item: Input, folder: Path) -> Input:
    """Return the input with absolute paths for its local data, which is uploaded. Relative paths
    start at `folder`."""
    changes = {}
    for name in target_names():
        place = item.of(name)
        if name == DEFAULT_TARGET or place is None or not is_local_path(place):
            continue
        target = find_usable(name)
        if target is not None and "data" in target.parts:
            changes[name] = _absolute(place, folder)
    return item.model_copy(update=changes)


def _absolute(text: str, folder: Path) -> str:
    """Return `text` as an absolute path without `..`. `~` is the home folder. Links are not
    followed."""
    try:
        path = expand_home(text)
    except RuntimeError:  # `~name` of an unknown user is an ordinary file name
        path = Path(text)
    return normpath(folder / path)


def _read(path: Path) -> str:
    """Return the text of a job file. The errors are those of `load_job`."""
    try:
        return read_text(path)
    except (FileNotFoundError, NotADirectoryError):
        folder = path.parent
        beside = [str(folder / name) for name in _job_files(folder)]
        hint: str | None = did_you_mean(str(path), beside)
        if hint is None and why_missing(str(folder)):
            hint = f"there is no folder `{folder}`"
        message = f"there is no job file `{path}`"
        hint = hint or "`cloudtrain init` writes one"
        raise UsageError(message, hint=hint, code="CT001") from None
    except Unreadable as error:
        raise JobError([replace(error.problem, file=str(path))]) from None
    except OSError as error:
        message = f"`{path}` cannot be read: {error.strerror}"
        raise UsageError(
            message, hint="name a plain file that you may read", code="CT001"
        ) from None
    except ValueError:  # a NUL character
        raise UsageError(
            f"{str(path)!r} is not a path", hint="name a job file", code="CT001"
        ) from None


def _job_files(folder: Path) -> list[str]:
    """Return the names of the files that may be job files; none for a folder that cannot be
    read."""
    names = []
    try:
        for entry in folder.iterdir():
            # `cloudtrain init` writes a schema for editors beside the job file.
            is_schema = entry.name.endswith(".schema.json")
            if entry.suffix.lower() in SUFFIXES and entry.is_file() and not is_schema:
                names.append(entry.name)
    except OSError:
        return []
    return names


# Conversion between a job and the plain data of a job file.

KINDS = TRAINING, PROCESSING, SWEEP = "training", "processing", "sweep"
"""The possible values of `kind` in a job file. A file without `kind` holds a training job."""


def kind_of_job(job: AnyJob | Sweep) -> str:
    """Return the kind of a job as a job file names it: `training`, `processing` or `sweep`."""
    kind: str = getattr(job, "kind", TRAINING)
    return kind


def fields_of(job: AnyJob | Sweep) -> dict[str, object]:
    """Return the fields of the job as a job file writes them, as JSON data. Fields with default
    values are left out."""
    data = job.model_dump(mode="json", exclude_defaults=True)
    if kind_of_job(job) == SWEEP:
        # mypy does not know that only a sweep is of that kind.
        return {"kind": SWEEP, **data, "job": fields_of(job.job)}  # type: ignore[union-attr]
    if isinstance(job, TrainingJob) and "distribution" in data:
        data["distribution"] = {"type": job.distribution.type, **data["distribution"]}
    if isinstance(job, TrainingJob) and job.has_no_metrics:
        data["metrics"] = "none"
    return data if isinstance(job, TrainingJob) else {"kind": PROCESSING, **data}


def model_of_kind(kind: str) -> Any:
    """Return the model for jobs of a kind. The model can validate the result of `fields_of`."""
    if kind == TRAINING:
        return TrainingJob
    if kind == SWEEP:
        # creating its models costs start-up time, and most jobs are no sweeps
        from cloudtrain.job.sweep import Sweep

        return Sweep
    from cloudtrain.job.processing import ProcessingJob

    return ProcessingJob


# `--each hyperparameters.seed=1,2,3`: one run of a job for each value, as a sweep without an
# objective.

_FIELD = "hyperparameters."


def array_of(file: JobFile, each: Sequence[str], *, parallel: int) -> JobFile:
    """Return a sweep of the job in `file` over every combination of the values. It runs `parallel`
    trials at a time.

    Raises:
        UsageError: the file holds no training job, or a text in `each` is not a hyperparameter with
            values.
        JobError: the values do not form a valid sweep.
    """
    if file.sweep is not None or not isinstance(file.job, TrainingJob):
        raise UsageError(
            f"`--each` works only with training jobs, but `{file.file}` holds none",
            hint="use a training job, or write the values into a sweep's field `search`",
            code="CT902",
        )

    search: dict[str, list[Any]] = {}
    for text in each:
        field, equals, values = text.partition("=")
        field = field.strip()
        name = field.removeprefix(_FIELD)
        if not equals or not field.startswith(_FIELD) or not name or not values:
            example = name if name.isidentifier() else "seed"
            hint = f"write `--each {_FIELD}{example}={values or '1,2,3'}`"
            raise UsageError(
                f"`--each {text}` is not a hyperparameter with values", hint=hint, code="CT902"
            )
        if name in search:
            hint = f"write all values in one option: `--each {_FIELD}{name}=1,2,3`"
            raise UsageError(f"`--each` names `{name}` twice", hint=hint, code="CT902")
        search[name] = _values(text, values)
        other = _other_value(file, name)
        if other is not None:
            message = f"`--each {text}` and {other} both set `{name}`"
            raise UsageError(message, hint="remove one of the two", code="CT069")

    sweep = model_of_kind(SWEEP)(
        name=file.job.name, job=file.job, search=search, strategy="grid", parallel=parallel
    )
    return file._replace(sweep=sweep.from_folder(file.job.folder), inner=file)


def _other_value(file: JobFile, name: str) -> str | None:
    """Return what else on the command line sets a hyperparameter of the job in `file`: an override,
    or the arguments of a script. Return None if the value is the file's own, or if it has none."""
    path: ValuePath = ("hyperparameters", name)
    words = [word.partition("=")[0] for word in getattr(file.job, "arguments", ())]
    if f"--{name}" in words:
        path = ("arguments",)
    elif name not in getattr(file.job, "hyperparameters", ()):
        return None
    origin = file.changes.origin(path)
    if origin is not None:
        return f"`{origin}`"
    return None if file.positions.values else f"the arguments of `{file.file}`"


def _values(text: str, values: str) -> list[object]:
    """Return the values of `text`, the argument of one `--each`, as a list. With brackets or
    quotes, they are read as a YAML list, so that `[1, 2]` is one value."""
    if any(sign in values for sign in "[{\"'"):
        try:
            document = read_document(f"[{values}]", "yaml")
        except Unreadable as error:
            problem = error.problem
        else:
            if not document.problems:
                return list(document.data)
            problem = document.problems[0]
        raise UsageError(f"`--each {text}`: {problem.message}", hint=problem.hint, code="CT902")
    pieces = [piece.strip() for piece in values.split(",")]
    if "" in pieces:
        raise UsageError(
            f"`--each {text}` has an empty value",
            hint="remove the comma; an empty text is written `''`",
            code="CT902",
        )
    return [read_scalar(piece) for piece in pieces]
