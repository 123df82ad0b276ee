"""Conversion of text and overrides to a job, or to a list of all problems with their positions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import ValidationError

from cloudtrain.core.job import TrainingJob
from cloudtrain.documents.document import Document, Format, Path, Positions, Unreadable, read_document
from cloudtrain.errors import JobError, Problem, did_you_mean
from cloudtrain.jobfile.changes import Changes
from cloudtrain.problems.collect import KeyProblem, Source, describe_value, problems_of

if TYPE_CHECKING:
    from cloudtrain.core.processing import AnyJob
    from cloudtrain.core.sweep import Sweep

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

    def place_of(self, path: Path) -> str | None:
        """Return the position of the value at a path in the job or sweep, such as `job.yaml:9:20`, or the override that
        set it. For a missing value, return the position of its nearest parent; None if that is unknown too."""
        if self.inner is not None and path[:1] == ("job",):
            return self.inner.place_of(path[1:])
        origin = self.changes.origin(path)
        if origin is not None:
            return origin
        place = self.positions.of(path)
        return f"{self.file}:{place.line}:{place.column}" if place else None


def parse_job(text: str, *, format: Format, file: str, overrides: Sequence[str] = ()) -> AnyJob:
    """Return the job in a text. `file` names the text in messages. `overrides` such as `resources.instance_count=4`
    take precedence.

    Raises:
        JobError: the job has problems; all are listed, each with `file`, line and column, or with the override that
            caused it.
    """
    return parse(text, format=format, file=file, overrides=overrides).job


ReadJob = Callable[[str, Sequence[str]], JobFile]
"""Reads the job file that a sweep names, with overrides."""


def parse(
    text: str, *, format: Format, file: str, overrides: Sequence[str] = (), read_job: ReadJob | None = None
) -> JobFile:
    """Parse a text and return its job or sweep with positions. `read_job` reads the separate job file of a sweep.

    Raises:
        JobError: the job has problems; all are listed.
    """
    document = _readable(text, format, file)
    model = _model(document, file)
    found, inner = list(document.problems), None
    if read_job is not None and document.data.get("kind") == "sweep" and isinstance(document.data.get("job"), str):
        of_job = [item for item in overrides if item.startswith(_OF_JOB)]
        overrides = [item for item in overrides if item not in of_job]
        try:
            inner = read_job(document.data["job"], [item.removeprefix(_OF_JOB) for item in of_job])
        except JobError as error:
            found += error.problems
    data, changes = _apply_overrides(document.data, overrides, model)
    found += changes.problems
    if inner is not None:
        data = data | {"job": inner.job}
    try:
        job = model.model_validate(data)
    except ValidationError as error:
        of_fields = problems_of(error, model, Source((), model, _written(document.positions, changes)))
        found += [item for item in of_fields if not (isinstance(data.get("job"), str) and item.path == ("job",))]
    if found:
        raise JobError(_place_each([_in_form(item, format) for item in found], file, document.positions, changes))
    if model.__name__ != "Sweep":
        return JobFile(job, file, document.positions, changes, text, tuple(overrides))
    return JobFile(job.job, file, document.positions, changes, text, tuple(overrides), job, inner)


_OF_JOB = "job."
"""Prefix of the overrides for the job of a sweep."""


def _readable(text: str, format: Format, file: str) -> Document:
    """Read the text as a document whose top level is a mapping.

    Raises:
        JobError: the text is not valid in the format, is empty, or holds no mapping.
    """
    try:
        if not text.strip("\ufeff \t\r\n"):
            raise Unreadable("the job file is empty", _START[format], code="CT003")
        document = read_document(text, format)
        if document.data in (None, {}) and not document.problems:
            raise Unreadable("the job file is empty", _START[format], code="CT003")
        if not isinstance(document.data, dict):
            message = f"a job file holds a mapping at the top, not {describe_value(document.data)}"
            raise Unreadable(message, _START[format], document.positions.of(()), code="CT003")
    except Unreadable as error:
        raise JobError([replace(error.problem, file=file)]) from None
    return document


def _model(document: Document, file: str) -> Any:
    """Return the model named by the field `kind`. `kind: training` is allowed although `TrainingJob` lacks the field.

    Raises:
        JobError: the kind of job does not exist.
    """
    if "kind" not in document.data:
        return TrainingJob
    from cloudtrain.core.processing import KINDS  # importing it costs start-up time

    kind = document.data["kind"]
    if kind == "sweep":
        from cloudtrain.core.sweep import Sweep

        return Sweep
    model = KINDS.get(kind) if isinstance(kind, str) else None
    if model is None:
        message, hint = f"there is no kind of job {describe_value(kind)}", did_you_mean(str(kind), [*KINDS, "sweep"])
        raise JobError(
            _place_each([Problem(("kind",), message, hint, code="CT013")], file, document.positions, Changes())
        )
    if model is TrainingJob:
        del document.data["kind"]
    return model


def _apply_overrides(data: dict[str, Any], overrides: Sequence[str], model: Any) -> tuple[dict[str, Any], Changes]:
    if not overrides:
        return data, Changes()
    from cloudtrain.jobfile.overrides import override  # importing it costs start-up time

    return override(data, overrides, model)


def _written(positions: Positions, changes: Changes) -> Any:
    """Return a function that takes a path, and returns the spelling of the value at the path, as in the file or in an
    override. It returns None if there is no plain value at the path."""
    return lambda path: (changes.texts if changes.origin(path) else positions.texts).get(path)


def _in_form(problem: Problem, format: Format) -> Problem:
    """Return the problem with its hint in the syntax of the file. Hints about overrides stay in YAML."""
    if format == "yaml" or problem.file is not None:
        return problem
    from cloudtrain.problems.forms import in_form  # importing it costs start-up time

    return replace(problem, hint=in_form(problem.hint, format))


def _place_each(problems: Sequence[Problem], file: str, positions: Positions, changes: Changes) -> list[Problem]:
    """Return the problems with positions: first the problems of the file in order, then the problems of overrides."""
    placed = [_place(problem, file, positions, changes) for problem in problems]
    distinct = list(dict.fromkeys(placed))
    return sorted(distinct, key=lambda p: (p.file != file, p.line or 0, p.column or 0))


def _place(problem: Problem, file: str, positions: Positions, changes: Changes) -> Problem:
    if problem.file is not None:
        return problem
    if problem.line is not None:
        return replace(problem, file=file)
    origin = changes.origin(problem.path)
    if origin is not None:
        return replace(problem, file=origin)
    place = positions.of(problem.path, key=isinstance(problem, KeyProblem))
    return replace(problem, file=file, line=place.line, column=place.column) if place else replace(problem, file=file)
