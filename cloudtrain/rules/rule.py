"""The class of a rule, and the registry of all rules."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from cloudtrain.core.plan import Finding, Level
from cloudtrain.rules.subject import Subject as Subject


class Fault(NamedTuple):
    """One violation of a rule. `path` is the path of the value in the job."""

    message: str
    hint: str | None = None
    path: tuple[str | int, ...] = ()
    details: tuple[str, ...] = ()


Check = Callable[[Subject], Iterable[Fault]]


class Rule(NamedTuple):
    """A registered check. The docstring of the check is the rule's documentation: the first line states the problem,
    and the rest explains why it matters and what to do. `cloudtrain explain` and the rules page show this text.
    """

    code: str
    level: Level
    check: Check | None
    """None for a rule that only the target can check, in `Service.check`."""
    text: str = ""
    """The documentation of a rule without a check."""

    @property
    def summary(self) -> str:
        """The first line of the documentation, which states the problem."""
        return self._documentation.partition("\n")[0]

    @property
    def explanation(self) -> str:
        """The rest of the documentation, which explains why the problem matters and what to do."""
        return self._documentation.partition("\n")[2].strip()

    @property
    def _documentation(self) -> str:
        text = inspect.cleandoc(self.text) if self.check is None else inspect.getdoc(self.check)
        assert text, f"the rule {self.code} has no text"
        return text

    @property
    def module(self) -> str | None:
        """The name of the module that defines the check; None if the rule has no check."""
        return None if self.check is None else self.check.__module__

    def findings(self, subject: Subject) -> Iterator[Finding]:
        """Yield the rule's findings for a job; none if the rule has no check."""
        for fault in self.check(subject) if self.check is not None else ():
            path, hint = subject.view.locate(subject, fault.path), fault.hint
            if path != fault.path and not re.match(_IN_PLACE, hint or ""):
                told = f"remove `{'.'.join(map(str, path[1:]))}` from `{path[0]}`"
                hint = told if hint is None or hint.startswith("remove ") else f"{told}, and {hint}"
            yield Finding(self.code, self.level, fault.message, hint, path, details=fault.details)


_IN_PLACE = r"add |call |did you mean|write(?: for example)? `(?!\w+: )[^`]+`$"
"""Hints that also fit a value in the overrides: a field to add beside it, or another value."""

PORTABLE = "CT"
"""Prefix of the codes of rules for all targets."""

registered: dict[str, Rule] = {}


def rule(code: str, level: Level) -> Callable[[Check], Check]:
    """Return a decorator that registers a check under its code."""

    def register(check: Check) -> Check:
        assert code not in registered, f"two rules are called {code}"
        registered[code] = Rule(code, level, check)
        return check

    return register


def declare(code: str, level: Level, text: str) -> None:
    """Register a rule without a check function: other code finds its violations. `text` is the rule's documentation,
    which a check would have as its docstring.
    """
    assert code not in registered, f"two rules are called {code}"
    registered[code] = Rule(code, level, None, text)


def level_of(code: str) -> Level:
    """Return the severity of findings with the given code."""
    return registered[code].level
