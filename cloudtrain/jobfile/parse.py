"""Text and overrides into a job, or into every problem at once, each with its place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import ValidationError

from cloudtrain.core.job import TrainingJob
from cloudtrain.documents.document import Document, Format, Path, Positions, Unreadable, read_document
from cloudtrain.errors import JobError, Problem, did_you_mean
from cloudtrain.jobfile.changes import Changes
from cloudtrain.problems.collect import KeyProblem, Source, describe_value, problems_of

if TYPE_CHECKING:
    from cloudtrain.core.processing import AnyJob, ProcessingJob

_START = {
    "yaml": "start with `name: my-job` and `entry_point: train.py`",
    "toml": 'start with `name = "my-job"` and `entry_point = "train.py"`',
    "json": 'start with `{"name": "my-job", "entry_point": "train.py"}`',
}


class JobFile(NamedTuple):
    """A job, and where everything in it was written."""

    job: AnyJob
    file: str
    positions: Positions
    changes: Changes = Changes()
    text: str | None = None
    """What stands in the file; None where there is none."""
    overrides: tuple[str, ...] = ()

    def place_of(self, path: Path) -> str | None:
        """`job.yaml:9:20` for a path into the job, or the override that set it; the nearest place that is known."""
        origin = self.changes.origin(path)
        if origin is not None:
            return origin
        place = self.positions.of(path)
        return f"{self.file}:{place.line}:{place.column}" if place else None


def parse_job(text: str, *, format: Format, file: str, overrides: Sequence[str] = ()) -> AnyJob:
    """A job from text; `file` names it in messages, `overrides` are `resources.instance_count=4` and win.

    Raises:
        JobError: all problems at once, each with `file`, line and column, or with the override that caused it.
    """
    return parse(text, format=format, file=file, overrides=overrides).job


def parse(text: str, *, format: Format, file: str, overrides: Sequence[str] = ()) -> JobFile:
    """As `parse_job`, with the positions.

    Raises:
        JobError: all problems at once.
    """
    document = _readable(text, format, file)
    model = _model(document, file)
    data, changes = _changed(document.data, overrides, model)
    found = [*document.problems, *changes.problems]
    try:
        job = model.model_validate(data)
    except ValidationError as error:
        found += problems_of(error, model, Source((), model, _written(document.positions, changes)))
    if found:
        raise JobError(_placed([_in_form(item, format) for item in found], file, document.positions, changes))
    return JobFile(job, file, document.positions, changes, text, tuple(overrides))


def _readable(text: str, format: Format, file: str) -> Document:
    """The document, a mapping at the top.

    Raises:
        JobError: the text is not of the format, is empty, or holds something else than a job.
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


def _model(document: Document, file: str) -> type[TrainingJob] | type[ProcessingJob]:
    """The model that `kind` names. `kind: training` may stand there, and is no field of the job.

    Raises:
        JobError: there is no such kind of job.
    """
    if "kind" not in document.data:
        return TrainingJob
    from cloudtrain.core.processing import KINDS  # costs start-up time

    kind = document.data["kind"]
    model = KINDS.get(kind) if isinstance(kind, str) else None
    if model is None:
        message, hint = f"there is no kind of job {describe_value(kind)}", did_you_mean(str(kind), KINDS)
        raise JobError(_placed([Problem(("kind",), message, hint, code="CT013")], file, document.positions, Changes()))
    if model is TrainingJob:
        del document.data["kind"]
    return model


def _changed(
    data: dict[str, Any], overrides: Sequence[str], model: type[TrainingJob] | type[ProcessingJob]
) -> tuple[dict[str, Any], Changes]:
    if not overrides:
        return data, Changes()
    from cloudtrain.jobfile.overrides import override  # costs start-up time

    return override(data, overrides, model)


def _written(positions: Positions, changes: Changes) -> Any:
    """How the value at a path is written, where it stands in the file or in an override."""
    return lambda path: (changes.texts if changes.origin(path) else positions.texts).get(path)


def _in_form(problem: Problem, format: Format) -> Problem:
    """The problem with a hint that can be typed into the file; an override is typed as YAML."""
    if format == "yaml" or problem.file is not None:
        return problem
    from cloudtrain.problems.forms import in_form  # costs start-up time

    return replace(problem, hint=in_form(problem.hint, format))


def _placed(problems: Sequence[Problem], file: str, positions: Positions, changes: Changes) -> list[Problem]:
    """The problems with their places: those of the file in its order, then those of the overrides."""
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
