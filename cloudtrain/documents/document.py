"""The content of a YAML, TOML or JSON text: data, positions of the values, and mistakes found before validation."""

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
    """A line and a column, both counted from 1 in characters."""

    line: int
    column: int


_NOTHING: Mapping[Any, Any] = MappingProxyType({})


class Positions(NamedTuple):
    """The position of each key and value, and the spelling of each plain value (`2.10`, without quotes)."""

    keys: Mapping[Path, Place] = _NOTHING
    values: Mapping[Path, Place] = _NOTHING
    texts: Mapping[Path, str] = _NOTHING

    def of(self, path: Path, *, key: bool = False) -> Place | None:
        """Return the position of the value at a path, or with `key` the position of its key. For a missing value,
        return the position of its nearest parent; None if that is unknown too."""
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
    """The content of a text. `data` holds mappings, lists and plain values. `problems` are mistakes that do not prevent
    reading, such as a duplicate key."""

    data: Any
    positions: Positions
    problems: tuple[Problem, ...] = ()


class Notes:
    """Collects positions and problems while a text is read."""

    def __init__(self) -> None:
        self.keys: dict[Path, Place] = {}
        self.values: dict[Path, Place] = {}
        self.texts: dict[Path, str] = {}
        self.problems: list[Problem] = []

    def document(self, data: Any) -> Document:
        """Return a document with `data` and the collected positions and problems."""
        return Document(data, Positions(self.keys, self.values, self.texts), tuple(self.problems))

    def problem(self, path: Path, place: Place, message: str, hint: str, *, code: str = "CT005") -> None:
        """Record a problem. Reading continues."""
        self.problems.append(Problem(path, message, hint, line=place.line, column=place.column, code=code))

    def duplicate(self, path: Path, place: Place) -> None:
        """Record a duplicate key."""
        first = self.keys[path]
        message = f"`{path[-1]}` appears twice; the first is on line {first.line}"
        self.problem(path, place, message, "remove one of them", code="CT004")


class Unreadable(Exception):
    """The text does not conform to its format and cannot be read."""

    def __init__(self, message: str, hint: str, place: Place | None = None, *, code: str = "CT002") -> None:
        super().__init__(message)
        line, column = place or (None, None)
        self.problem = Problem((), message, hint, line=line, column=column, code=code)


def too_large(place: Place | None = None, *, what: str = "the text") -> Unreadable:
    """Return the error for a document with too many values. `what` names the document in the message."""
    hint = "put large data into a file in `source_dir`, and pass its name"
    return Unreadable(f"{what} has more values than cloudtrain reads", hint, place, code="CT006")


def too_many_digits(place: Place | None) -> Unreadable:
    """Return the error for a number with more digits than Python reads and writes."""
    return Unreadable("a number has too many digits", "write it as text, in quotes", place, code="CT014")


def too_deep(place: Place | None = None) -> Unreadable:
    """Return the error for a text that is nested too deeply."""
    return Unreadable("the text is nested too deeply", "use fewer levels: a job has about five", place, code="CT006")


class Lines:
    """Converts offsets in a text to lines and columns."""

    def __init__(self, text: str) -> None:
        self._starts = [0, *(index + 1 for index, char in enumerate(text) if char == "\n")]

    def place(self, offset: int) -> Place:
        """Return the line and column of the character at `offset`."""
        line = bisect_right(self._starts, offset)
        return Place(line, offset - self._starts[line - 1] + 1)


def read_document(text: str, format: Format) -> Document:
    """Read a text in the given format. The reader of a format is imported on first use.

    Raises:
        Unreadable: the text is not valid in that format.
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
"""Every value except the first needs one of these signs, so their number limits the cost of reading. TOML needs the dot
for its keys (`a.b`)."""
