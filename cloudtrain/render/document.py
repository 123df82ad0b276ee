"""The document: a list of blocks with no trace of how they will be shown. Text and HTML are both made from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

Style = Literal["", "strong", "dim", "good", "bad", "warn", "info", "code"]
"""What a piece of text means, not what it looks like: each form has its own table of looks."""


class Span(NamedTuple):
    """A piece of text with one style."""

    text: str
    style: Style = ""


Cell = str | Span


class Heading(NamedTuple):
    """A line that names what follows."""

    text: str


class Text(NamedTuple):
    """A paragraph, wrapped to the width. Literals stand in backticks."""

    text: str


class Pairs(NamedTuple):
    """Labels and values, the values aligned."""

    rows: Sequence[tuple[str, Cell]]


class Table(NamedTuple):
    """Rows under headers. The first column is the key and is never cut; the last may be wrapped."""

    headers: Sequence[str]
    rows: Sequence[Sequence[Cell]]


class Lines(NamedTuple):
    """Lines to be shown exactly as they are, never wrapped: data, output, a request."""

    lines: Sequence[str]


class Command(NamedTuple):
    """A command line that can be copied into a shell. Long ones continue after a backslash."""

    argv: Sequence[str]
    variables: Sequence[tuple[str, str]] = ()


class Notice(NamedTuple):
    """One thing to know, with its code, where it stands, and what to do: an error, a warning, a notice."""

    level: str
    message: str
    code: str | None = None
    place: str | None = None
    details: Sequence[str] = ()
    hint: str | None = None


class Section(NamedTuple):
    """Blocks under a title, which a notebook folds away."""

    title: str
    blocks: Sequence[Heading | Text | Pairs | Table | Lines | Command | Notice]


Block = Heading | Text | Pairs | Table | Lines | Command | Notice | Section


class Document(NamedTuple):
    """Blocks in the order in which a person reads them."""

    blocks: Sequence[Block]
