"""The document: a list of blocks, from which both text and HTML are made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

Style = Literal["", "strong", "dim", "good", "bad", "warn", "info", "code"]
"""The meaning of a piece of text. Each output format has its own table of colours and styles."""


class Span(NamedTuple):
    """A piece of text with a style."""

    text: str
    style: Style = ""


Cell = str | Span


class Heading(NamedTuple):
    """The title of the blocks that follow."""

    text: str


class Text(NamedTuple):
    """A paragraph, wrapped to the width of the output. Literals are in backticks."""

    text: str


class Pairs(NamedTuple):
    """Rows of a label and a value. The values are aligned in a column."""

    rows: Sequence[tuple[str, Cell]]


class Table(NamedTuple):
    """Rows under headers. The first column identifies the row and is never shortened. Only the last column is
    wrapped.
    """

    headers: Sequence[str]
    rows: Sequence[Sequence[Cell]]


class Lines(NamedTuple):
    """Lines that are shown unchanged and never wrapped, such as data, output or a request."""

    lines: Sequence[str]


class Command(NamedTuple):
    """A command line to copy into a shell. A long command line is split into lines that end in a backslash."""

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
    """Blocks under a title. A notebook shows them folded."""

    title: str
    blocks: Sequence[Heading | Text | Pairs | Table | Lines | Command | Notice]


Block = Heading | Text | Pairs | Table | Lines | Command | Notice | Section


class Document(NamedTuple):
    """Blocks in reading order."""

    blocks: Sequence[Block]
