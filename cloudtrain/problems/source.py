"""What messages about data need to know: where it came from, how it was written, and how a value is named."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from pydantic import BaseModel

from cloudtrain.errors import Problem, shortened

Path = tuple["str | int", ...]

Written = Callable[[Path], "str | None"]
"""How the value at a path is written in its file: `2.10`, where the value itself is only 2.1."""


class KeyProblem(Problem):
    """A problem with the name of a field, not with its value: its place in a file is that of the key."""


@dataclass(frozen=True)
class MissingProblem(Problem):
    """A field that is not there. It is not worth saying when another problem says that its name is misspelt."""

    alternatives: tuple[str, ...] = ()
    """Other fields of which one would do as well."""

    def is_echo_of(self, other: Problem) -> bool:
        """Whether the other problem is a wrong name whose hint names this field."""
        names = (str(self.path[-1]), *self.alternatives)
        beside = isinstance(other, KeyProblem) and other.path[:-1] == self.path[:-1]
        hint = other.hint or ""
        return beside and not hint.startswith("use one of") and any(f"`{name}" in hint for name in names)


class Source(NamedTuple):
    """Where the data of a model came from: its place in the whole, the model of the whole, how values are written."""

    under: Path = ()
    root: type[BaseModel] | None = None
    written: Written | None = None


def _digits(number: float) -> str:
    try:
        return str(number)
    except ValueError:  # Python writes no number of more than 4300 digits
        return "a number of too many digits"


def describe_value(value: Any, written: str | None = None) -> str:
    """A value as a message names it, short: `"two"`, `2.10`, a list."""
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
