"""A text with structure: its data, where everything stands, and what is wrong with it before anything is validated."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from cloudtrain.documents.limits import MAX_VALUES
from cloudtrain.errors import Problem

Format = Literal["yaml", "toml", "json"]
Path = tuple["str | int", ...]


class Place(NamedTuple):
    """Line and column, both from 1, in characters."""

    line: int
    column: int


_NOTHING: Mapping[Any, Any] = MappingProxyType({})


class Positions(NamedTuple):
    """Where each key and value stands, and how each plain value is written there (`2.10`, quotes left out)."""

    keys: Mapping[Path, Place] = _NOTHING
    values: Mapping[Path, Place] = _NOTHING
    texts: Mapping[Path, str] = _NOTHING

    def of(self, path: Path, *, key: bool = False) -> Place | None:
        """The place of a value (or of its key); where there is none, the place of what would hold it."""
        if key and path in self.keys:
            return self.keys[path]
        if path in self.values:
            return self.values[path]
        for end in range(len(path) - 1, -1, -1):
            parent = self.keys.get(path[:end]) or self.values.get(path[:end])
            if parent is not None:
                return parent
        return None


class Document(NamedTuple):
    """`data` holds mappings, lists and plain values; `problems` are those that still let the rest be read."""

    data: Any
    positions: Positions
    problems: tuple[Problem, ...] = ()


class Notes:
    """What a reader writes down on its way through a text."""

    def __init__(self) -> None:
        self.keys: dict[Path, Place] = {}
        self.values: dict[Path, Place] = {}
        self.texts: dict[Path, str] = {}
        self.problems: list[Problem] = []

    def document(self, data: Any) -> Document:
        """The finished document."""
        return Document(data, Positions(self.keys, self.values, self.texts), tuple(self.problems))

    def problem(self, path: Path, place: Place, message: str, hint: str, *, code: str = "CT005") -> None:
        """Write down a problem that lets the rest be read."""
        self.problems.append(Problem(path, message, hint, line=place.line, column=place.column, code=code))

    def duplicate(self, path: Path, place: Place) -> None:
        """Write down a key that appears twice."""
        first = self.keys[path]
        message = f"`{path[-1]}` appears twice; the first is on line {first.line}"
        self.problem(path, place, message, "remove one of them", code="CT004")


class Unreadable(Exception):
    """The text is not what its format asks for, so nothing more can be said about it."""

    def __init__(self, message: str, hint: str, place: Place | None = None, *, code: str = "CT002") -> None:
        super().__init__(message)
        line, column = place or (None, None)
        self.problem = Problem((), message, hint, line=line, column=column, code=code)


def too_large(place: Place | None = None, *, what: str = "the text") -> Unreadable:
    """The text is beyond a limit."""
    hint = "put large data into a file in `source_dir`, and pass its name"
    return Unreadable(f"{what} has more values than cloudtrain reads", hint, place, code="CT006")


def too_many_digits(place: Place | None) -> Unreadable:
    """A number is beyond what Python itself reads and writes."""
    return Unreadable("a number has too many digits", "write it as text, in quotes", place, code="CT014")


def too_deep(place: Place | None = None) -> Unreadable:
    """The text is beyond the limit of nesting."""
    return Unreadable("the text is nested too deeply", "use fewer levels: a job has about five", place, code="CT006")


class Lines:
    """From an offset in a text to its place."""

    def __init__(self, text: str) -> None:
        self._starts = [0, *(index + 1 for index, char in enumerate(text) if char == "\n")]

    def place(self, offset: int) -> Place:
        """Line and column of a character."""
        line = bisect_right(self._starts, offset)
        return Place(line, offset - self._starts[line - 1] + 1)


def read_document(text: str, format: Format) -> Document:
    """Read a text. The reader of each format is loaded only when it is needed.

    Raises:
        Unreadable: the text is not of that format.
    """
    if sum(text.count(sign) for sign in _SIGNS[format]) > MAX_VALUES:
        raise too_large()
    reader = import_module(f"cloudtrain.documents.{format}_text")
    try:
        document = reader.read(text.removeprefix("\ufeff"))
    except RecursionError:
        raise too_deep() from None
    assert isinstance(document, Document)
    return document


_SIGNS: dict[Format, tuple[str, ...]] = {
    "json": (",", "[", "{"),
    "toml": ("=", ",", "[", "."),
    "yaml": (",", ": ", ":\n", "[", "{", "- ", "-\n", "? "),
}
"""Every value but the first needs one of these, so that counting them bounds what reading costs. The dots are those of
TOML's keys."""
