"""What is wrong with a job, gathered while it is compiled, so that all of it is said at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from cloudtrain.core.plan import Plan
from cloudtrain.errors import JobError, Problem

Value = TypeVar("Value")
Instead = TypeVar("Instead")


class CompileError(JobError):
    """The target cannot run the job as it is. `plan` is what it would be without what is wrong; None where nothing
    sensible is left. The rules look at it, so that their findings come together with the problems."""

    def __init__(self, problems: Sequence[Problem], plan: Plan | None = None) -> None:
        super().__init__(problems)
        self.plan = plan


class Problems(list[Problem]):
    """Problems of one job, in the order in which they were met."""

    def value(self, make: Callable[[], Value], instead: Instead) -> Value | Instead:
        """What `make` makes; where it raises a `JobError`, that one's problems are taken, and `instead` stands in."""
        try:
            return make()
        except JobError as error:
            self += [problem for problem in error.problems if problem not in self]
            return instead

    def refuse(self, plan: Plan | None = None) -> None:
        """End here if there are any.

        Raises:
            CompileError: with all of them.
        """
        if self:
            raise CompileError(self, plan)
