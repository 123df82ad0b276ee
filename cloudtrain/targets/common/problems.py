"""Collect the problems of a job while it is compiled, to report all of them together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from cloudtrain.core.plan import Plan
from cloudtrain.errors import JobError, Problem

Value = TypeVar("Value")
Instead = TypeVar("Instead")


class CompileError(JobError):
    """The target cannot run the job. `plan` is the plan without the faulty parts, or None if no usable plan is left.
    The rules check this plan, so that their findings are reported together with the problems."""

    def __init__(self, problems: Sequence[Problem], plan: Plan | None = None) -> None:
        super().__init__(problems)
        self.plan = plan


class Problems(list[Problem]):
    """The problems of one job, in the order in which they were found."""

    def value(self, make: Callable[[], Value], instead: Instead) -> Value | Instead:
        """Return the result of `make`. If `make` raises a `JobError`, collect its problems and return `instead`."""
        try:
            return make()
        except JobError as error:
            self += [problem for problem in error.problems if problem not in self]
            return instead

    def refuse(self, plan: Plan | None = None) -> None:
        """If any problems were collected, raise an error with these problems and `plan`.

        Raises:
            CompileError: problems were collected.
        """
        if self:
            raise CompileError(self, plan)
