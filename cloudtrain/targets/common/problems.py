"""Collect the problems of a job while it is compiled, so that all are reported together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from cloudtrain.core.plan import Plan
from cloudtrain.errors import JobError, Problem

Value = TypeVar("Value")
Instead = TypeVar("Instead")


class CompileError(JobError):
    """The target cannot run the job as it is. `plan` is the plan without the faulty parts; None where nothing sensible
    is left. The rules check that plan, so that their findings are reported together with the problems."""

    def __init__(self, problems: Sequence[Problem], plan: Plan | None = None) -> None:
        super().__init__(problems)
        self.plan = plan


class Problems(list[Problem]):
    """Problems of one job, in the order in which they were found."""

    def value(self, make: Callable[[], Value], instead: Instead) -> Value | Instead:
        """Return what `make` returns. Where it raises a `JobError`, collect its problems and return `instead`."""
        try:
            return make()
        except JobError as error:
            self += [problem for problem in error.problems if problem not in self]
            return instead

    def refuse(self, plan: Plan | None = None) -> None:
        """Raise an error if any problems were collected.

        Raises:
            CompileError: with all problems.
        """
        if self:
            raise CompileError(self, plan)
