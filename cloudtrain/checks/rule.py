"""What a rule is, and the register of all rules."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cloudtrain.bundle.tree import Tree
from cloudtrain.job import TrainingJob
from cloudtrain.plans import Finding, Level, Plan

if TYPE_CHECKING:
    from cloudtrain.processing import ProcessingJob


@dataclass(frozen=True)
class Subject:
    """What the rules look at: the job, the target with its account settings, the plan, and the user's files."""

    job: TrainingJob
    target: Any
    account: Any
    plan: Plan
    tree: Tree
    processing: ProcessingJob | None = None
    """The job as it was written, where it is a processing job; `job` is what it shares with a training job."""


@dataclass(frozen=True)
class Fault:
    """One place where a rule is broken. `path` is the way to the value in the job."""

    message: str
    hint: str | None = None
    path: tuple[str | int, ...] = ()
    details: tuple[str, ...] = ()


Check = Callable[[Subject], Iterable[Fault]]


@dataclass(frozen=True)
class Rule:
    """A registered check. Its function's docstring is its documentation: the first line says what is wrong, the
    rest why it matters and what to do; `cloudtrain explain` and the rules page print it."""

    code: str
    level: Level
    check: Check

    @property
    def summary(self) -> str:
        """What is wrong, in one line."""
        return self._documentation.partition("\n")[0]

    @property
    def explanation(self) -> str:
        """Why it matters and what to do."""
        return self._documentation.partition("\n")[2].strip()

    @property
    def _documentation(self) -> str:
        text = inspect.getdoc(self.check)
        assert text, f"the rule {self.code} has no docstring"
        return text

    def applies_to(self, target: str) -> bool:
        """Portable rules (CT) apply everywhere, the others to their target."""
        return _TARGET_OF[self.code[:2]] in (None, target)

    def findings(self, subject: Subject) -> Iterator[Finding]:
        """What the rule finds."""
        for fault in self.check(subject):
            yield Finding(self.code, self.level, fault.message, fault.hint, fault.path, details=fault.details)


_TARGET_OF = {"CT": None, "SM": "sagemaker", "AZ": "azureml", "LO": "local"}

registered: dict[str, Rule] = {}


def rule(code: str, level: Level) -> Callable[[Check], Check]:
    """Register a check under its code."""

    def register(check: Check) -> Check:
        assert code not in registered, f"two rules are called {code}"
        registered[code] = Rule(code, level, check)
        return check

    return register
