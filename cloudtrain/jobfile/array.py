"""`--each hyperparameters.seed=1,2,3`: one run of a job for each value, as a sweep without an objective."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cloudtrain.core.job import TrainingJob
from cloudtrain.core.sweep import Sweep
from cloudtrain.documents.document import Unreadable, read_document
from cloudtrain.documents.scalars import read_scalar
from cloudtrain.errors import UsageError
from cloudtrain.jobfile.parse import JobFile

_FIELD = "hyperparameters."


def array_of(file: JobFile, each: Sequence[str], *, parallel: int) -> JobFile:
    """Return a sweep of the job in `file` over every combination of the values. It runs `parallel` trials at a time.

    Raises:
        UsageError: the file holds no training job, or a text in `each` is not a hyperparameter with values.
        JobError: the values do not form a valid sweep.
    """
    if file.sweep is not None or not isinstance(file.job, TrainingJob):
        hint = "write the values into the sweep's field `search`" if file.sweep is not None else "use a training job"
        raise UsageError(
            f"`--each` works only with training jobs, but `{file.file}` holds none", hint=hint, code="CT902"
        )
    search: dict[str, list[Any]] = {}
    for text in each:
        field, equals, values = text.partition("=")
        name = field.strip().removeprefix(_FIELD)
        if not equals or not field.strip().startswith(_FIELD) or not name or not values:
            hint = "write `--each hyperparameters.seed=1,2,3`"
            raise UsageError(f"`--each {text}` is not a hyperparameter with values", hint=hint, code="CT902")
        if name in search:
            hint = f"write all values in one option: `--each {_FIELD}{name}=1,2,3`"
            raise UsageError(f"`--each` names `{name}` twice", hint=hint, code="CT902")
        search[name] = _values(text, values)
    name = file.job.name
    sweep = Sweep(name=name, job=file.job, search=search, strategy="grid", parallel=parallel)
    return file._replace(sweep=sweep.from_folder(file.job.folder), inner=file)


def _values(text: str, written: str) -> list[Any]:
    """Return the values that are `written` in `text`, the argument of one `--each`. With brackets or quotes, they are
    read as a YAML list, so that `[1, 2]` is one value.

    Raises:
        UsageError: a value is empty, or the YAML is not valid.
    """
    if any(sign in written for sign in "[{\"'"):
        try:
            document = read_document(f"[{written}]", "yaml")
            problem = next(iter(document.problems), None)
        except Unreadable as error:
            problem = error.problem
        if problem is None:
            return list(document.data)
        raise UsageError(f"`--each {text}`: {problem.message}", hint=problem.hint, code="CT902")
    pieces = [piece.strip() for piece in written.split(",")]
    if "" in pieces:
        hint = "remove the comma; an empty text is written `''`"
        raise UsageError(f"`--each {text}` has an empty value", hint=hint, code="CT902")
    return [read_scalar(piece) for piece in pieces]
