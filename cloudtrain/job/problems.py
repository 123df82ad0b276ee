"""Conversion of pydantic's errors to problems: for each error one line that names the job's field,
and a hint.

A model's rules (`all_at_once`) check the fields as written, before validation. So problems found by
the rules are reported together with wrong fields, instead of in the next attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError

from cloudtrain.documents.document import load_table
from cloudtrain.errors import Problem
from cloudtrain.job.nodes import KeyProblem, MissingProblem, Source, plain_path

RawFields = Mapping[str, object]
"""The fields of a model as written, any of which may be wrong or missing."""

Rules = Callable[[RawFields], Iterable[Problem]]
"""Checks raw fields, and yields problems with relative paths."""


class ProblemsFound(ValueError):
    """Raised by a validator that finds several problems. Carries their paths and hints through
    pydantic."""

    def __init__(
        self,
        problems: Sequence[Problem],
        fields: tuple[ValidationError, type[BaseModel]] | None = None,
    ):
        self.problems: tuple[Problem, ...] = tuple(problems)
        self._fields = fields
        # pydantic encodes the text as UTF-8, and a message may quote half of a character.
        text = "; ".join(problem.message for problem in problems)
        super().__init__(text.encode(errors="replace").decode())

    def all(self, source: Source) -> list[Problem]:
        """Return the problems of the fields and then the problems found by rules, with their full
        paths."""
        problems: list[Problem] = []
        if self._fields is not None:
            problems = problems_of(*self._fields, source)

        wrong = {problem.path for problem in problems}
        for problem in self.problems:
            path = (*source.under, *problem.path)
            if path not in wrong:
                problems.append(replace(problem, path=path))
        return problems


def wrong(message: str, hint: str, *, code: str) -> ProblemsFound:
    """Return an exception with one problem, which the parser of a field can raise."""
    return ProblemsFound([Problem((), message, hint, code=code)])


def raw_value(data: object, name: str) -> object:
    """Return a field of a model as written: of a mapping, or of a model if the job is written in
    Python; None if it is missing."""
    if isinstance(data, Mapping):
        return data.get(name)
    return getattr(data, name, None)


def mapping_or_empty(value: object) -> Mapping[str, Any]:
    """Return a raw field that must be a mapping; an empty mapping for any other value, which
    validation reports."""
    return value if isinstance(value, Mapping) else {}


def problems_of(
    error: ValidationError, model: type[BaseModel], source: Source | None = None
) -> list[Problem]:
    """Return every problem of a validation error, in the order of the fields, with did-you-mean
    hints."""
    from cloudtrain.job.explain import explain  # costs start-up time, and most jobs are correct

    source = source or Source(model)
    problems: list[Problem] = []
    for item in error.errors(include_url=False):
        if item["type"] == "too_short" and item["input"]:
            continue  # wrong entries, which have errors of their own, are not counted
        below, node, parent = plain_path(tuple(item["loc"]), model)
        path = (*source.under, *below)
        cause = item.get("ctx", {}).get("error")
        if isinstance(cause, ProblemsFound):
            problems += cause.all(source._replace(under=path))
            continue

        wording = explain(item, path, node, parent, source)
        error_type = item["type"]
        is_key = item["loc"][-1:] == ("[key]",)
        problem_type = Problem
        if is_key or error_type == "extra_forbidden":
            problem_type = KeyProblem
        elif error_type == "missing":
            problem_type = MissingProblem
        elif error_type == "union_tag_invalid":
            path = (*path, "type")
        problems.append(problem_type(path, wording.message, wording.hint, code=wording.code))

    distinct = dict.fromkeys(problems)  # every option of a union reports the same problem
    return [problem for problem in distinct if not _is_echo(problem, problems)]


def _is_echo(problem: Problem, problems: Iterable[Problem]) -> bool:
    """Return whether a field is missing because it is there under a misspelt name, which another
    problem reports."""
    if not isinstance(problem, MissingProblem):
        return False
    return any(map(problem.is_echo_of, problems))


# The codes of errors in job files, settings, commands, runs and targets: the table `codes.toml`,
# read on first use.


class ErrorCode(NamedTuple):
    """A type of error: its code, a one-line summary, and an explanation of the cause and the
    correction."""

    code: str
    summary: str
    explanation: str


@cache
def error_codes() -> Mapping[str, ErrorCode]:
    """Return every code that an error of cloudtrain can have."""
    table = load_table(__file__, "codes.toml")
    codes = {}
    for code, entry in table.items():
        explanation = " ".join(entry["explanation"].split())
        codes[code] = ErrorCode(code, entry["summary"], explanation)
    return codes
