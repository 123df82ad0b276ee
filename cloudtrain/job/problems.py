"""Conversion of pydantic's errors to problems: for each error one line that names the job's field,
and a hint.

A model's rules (`all_at_once`) check the fields as written, before validation. So problems found by
the rules are reported together with wrong fields, instead of in the next attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, ValidationError

from cloudtrain.errors import Problem
from cloudtrain.job.nodes import KeyProblem, MissingProblem, Source, ValuePath, plain_path

Rules = Callable[[Mapping[str, Any]], Iterable[Problem]]
"""Checks the raw fields of a model, any of which may be wrong or missing, and yields problems with
relative paths."""


class ProblemsFound(ValueError):
    """Raised by a validator that finds several problems. Carries their paths and hints through
    pydantic."""

    def __init__(
        self,
        problems: Sequence[Problem],
        fields: tuple[ValidationError, type[BaseModel]] | None = None,
    ):
        self.problems = tuple(problems)
        self._fields = fields
        # pydantic encodes the text as UTF-8, and a message may quote half of a character.
        super().__init__(
            "; ".join(problem.message for problem in problems).encode(errors="replace").decode()
        )

    def all(self, source: Source | None = None) -> list[Problem]:
        """Return the problems of the fields and then the problems found by rules, with their full
        paths."""
        source = source or Source()
        of_fields = problems_of(*self._fields, source) if self._fields else []
        wrong = {problem.path for problem in of_fields}
        of_rules = [
            replace(problem, path=(*source.under, *problem.path)) for problem in self.problems
        ]
        return [*of_fields, *(problem for problem in of_rules if problem.path not in wrong)]


def wrong(message: str, hint: str, path: ValuePath = (), *, code: str) -> ProblemsFound:
    """Return an exception with one problem, which the parser of a field can raise."""
    return ProblemsFound([Problem(path, message, hint, code=code)])


def validate_with_rules(
    rules: Rules, cls: type[BaseModel], data: object, handler: Callable[[object], object]
) -> object:
    """Validate `data`, and also apply `rules` to `data` as written. This is the body of a model's
    wrap validator.

    Raises:
        ProblemsFound: fields are wrong or rules are broken; all problems together.
    """
    problems = list(rules(data)) if isinstance(data, Mapping) else []
    try:
        value = handler(data)
    except ValidationError as error:
        if not problems:
            raise
        raise ProblemsFound(problems, (error, cls)) from None
    if problems:
        raise ProblemsFound(problems)
    return value


def problems_of(
    error: ValidationError, model: type[BaseModel], source: Source | None = None
) -> list[Problem]:
    """Return every problem of a validation error, in the order of the fields, with did-you-mean
    hints."""
    from cloudtrain.job.explain import explain  # costs start-up time, and most jobs are correct

    source = source or Source(root=model)
    problems: list[Problem] = []
    for item in error.errors(include_url=False):
        below, node, parent = plain_path(tuple(item["loc"]), model)
        path = (*source.under, *below)
        cause = item.get("ctx", {}).get("error")
        if isinstance(cause, ProblemsFound):
            problems += cause.all(source._replace(under=path))
        else:
            wording = explain(item, path, node, parent, source)
            at_type = item["type"] == "union_tag_invalid"
            about_key = item["type"] == "extra_forbidden" or item["loc"][-1:] == ("[key]",)
            kind = (
                KeyProblem
                if about_key
                else MissingProblem
                if item["type"] == "missing"
                else Problem
            )
            problems.append(
                kind(
                    (*path, "type") if at_type else path,
                    wording.message,
                    wording.hint,
                    code=wording.code,
                )
            )
    # A missing field that is there under a misspelt name is left out, because another problem
    # reports the misspelling.
    return [
        problem
        for problem in dict.fromkeys(problems)  # every option of a union reports the same problem
        if not (
            isinstance(problem, MissingProblem)
            and any(problem.is_echo_of(other) for other in problems)
        )
    ]
