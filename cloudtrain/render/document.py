"""The document: a list of blocks, independent of how they are shown. Text and HTML are both made from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

Style = Literal["", "strong", "dim", "good", "bad", "warn", "info", "code"]
"""The meaning of a piece of text. Each output format has its own table of colours and styles."""


class Span(NamedTuple):
    """A piece of text with one style."""

    text: str
    style: Style = ""


Cell = str | Span


class Heading(NamedTuple):
    """A line that names the blocks after it."""

    text: str


class Text(NamedTuple):
    """A paragraph, wrapped to the width. Literals stand in backticks."""

    text: str


class Pairs(NamedTuple):
    """Labels and values, the values aligned."""

    rows: Sequence[tuple[str, Cell]]


class Table(NamedTuple):
    """Rows under headers. The first column is the key and is never cut; the last column may be wrapped."""

    headers: Sequence[str]
    rows: Sequence[Sequence[Cell]]


class Lines(NamedTuple):
    """Lines that are shown unchanged and never wrapped: data, output, a request."""

    lines: Sequence[str]


class Command(NamedTuple):
    """A command line to copy into a shell. Long command lines continue after a backslash."""

    argv: Sequence[str]
    variables: Sequence[tuple[str, str]] = ()


class Notice(NamedTuple):
    """An error, warning or notice, with its code, its position, and a hint."""

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
    """Blocks in reading order."""

    blocks: Sequence[Block]
