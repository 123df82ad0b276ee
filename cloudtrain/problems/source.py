"""Helpers for messages about values in a job: the origin of a value, its original spelling, and a short form."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from pydantic import BaseModel

from cloudtrain.errors import Problem, shortened

Path = tuple["str | int", ...]

Written = Callable[[Path], "str | None"]
"""Returns the spelling of the value at a path in its file: `2.10` for the value 2.1."""


class KeyProblem(Problem):
    """A problem with the name of a field. The reported position is the position of the key instead of the value."""


@dataclass(frozen=True)
class MissingProblem(Problem):
    """A problem for a missing field. It is dropped if another problem reports that the field's name is misspelt."""

    alternatives: tuple[str, ...] = ()
    """Other fields, each of which is an alternative to this one."""

    def is_echo_of(self, other: Problem) -> bool:
        """Return whether the other problem reports a misspelt name, with a hint that names this missing field or a
        field that can be given instead.
        """
        names = (str(self.path[-1]), *self.alternatives)
        beside = isinstance(other, KeyProblem) and other.path[:-1] == self.path[:-1]
        hint = other.hint or ""
        return beside and not hint.startswith("use one of") and any(f"`{name}" in hint for name in names)


class Source(NamedTuple):
    """The origin of a model's data: its path under the root model, the root model, and a function that returns the
    original spelling of a value.
    """

    under: Path = ()
    root: type[BaseModel] | None = None
    written: Written | None = None


def _digits(number: float) -> str:
    try:
        return str(number)
    except ValueError:  # Python does not write numbers of more than 4300 digits
        return "a number of too many digits"


def describe_value(value: Any, written: str | None = None) -> str:
    """Return a short form of a value for a message: `"two"`, `2.10`, a list. `written` is the original spelling of a
    number.
    """
    if isinstance(value, str):
        text = json.dumps(value, ensure_ascii=False)
        return f"`{text[:37]}...`" if len(text) > 40 else f"`{text}`"
    if value is None or isinstance(value, bool):
        return f"`{json.dumps(value)}`"
    if isinstance(value, int | float):
        return f"`{shortened(written or _digits(value))}`"
    if isinstance(value, Mapping | BaseModel):
        return "a mapping"
    return "a list" if isinstance(value, list | tuple) else f"`{type(value).__name__}`"
