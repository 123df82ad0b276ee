"""Pydantic's errors turned into problems: one line each, in the words of the job, with a hint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from cloudtrain.errors import JobError, Problem, did_you_mean


class ProblemsFound(ValueError):
    """Raised inside a validator that finds several problems: carries them, paths and hints, through pydantic."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__(str(JobError(problems)))
        self.problems = tuple(problems)


def problems_of(error: ValidationError, model: type[BaseModel]) -> list[Problem]:
    """Every problem of a validation error, in the order of the fields, with did-you-mean hints."""
    problems: list[Problem] = []
    for item in error.errors(include_url=False):
        cause: Any = item.get("ctx", {}).get("error")
        if isinstance(cause, ProblemsFound):
            problems.extend(cause.problems)
        else:
            problems.append(Problem(tuple(item["loc"]), item["msg"].removeprefix("Value error, "), None))
    return problems
