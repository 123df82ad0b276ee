"""The document: a list of blocks, from which both text and HTML are made."""

from __future__ import annotations

import re
import shlex
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


# Escaping of external text, so that it is safe to print on a terminal.
#
# Log lines, names, reasons, file names, variables and a service's messages may contain characters that control a
# terminal or are invisible: control characters, marks that reverse the text direction, characters without width. Such
# characters can forge output, for example a line that was never written, or a command that differs from the one you
# read. They are escaped as in Python and JSON: `\x1b`, `\u202e`. Everything that cloudtrain prints passes through this
# module.

_CHARACTERS = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters
    "\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\uffa0"  # characters without a glyph
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff0-\ufffb"  # width, line ends, direction, annotations
    "\ud800-\udfff"  # undecodable bytes
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"  # more format characters; tags (hidden text)
)

UNSEEN = re.compile(f"[{_CHARACTERS}]")
"""A character that controls a terminal or is invisible, except tab and line feed, which are layout."""

_UNSEEN_OR_LAYOUT = re.compile(f"[{_CHARACTERS}\t\n]")

_REDRAWS = re.compile(r"\x1b\[(?:[012]?K|\d*A|\?25[hl])")
"""Escapes that progress bars write besides carriage returns: erase the line, move up, hide and show the cursor."""

_COLOUR = re.compile(
    r"(\x1b\[(?:(?:0?[0-479]|2[1-9]|[34][0-79]|9[0-7]|10[0-7]|[34]8[;:]5[;:]\d{1,3}"
    r"|[34]8[;:]2(?:[;:]\d{1,3}){3})(?:;(?=\d)|(?=m)))*m)"
)
"""Colours and weights (ECMA-48, SGR), except hidden (8) and blinking (5, 6) text."""

_RESET = "\x1b[0m"


def visible(text: str) -> str:
    """Escape every invisible character in a text except line breaks. Tabs become spaces."""
    if text.isascii() and text.isprintable():
        return text
    return UNSEEN.sub(_escape_match, text.expandtabs(4))


def on_one_line(text: str) -> str:
    """Escape every invisible character in a text, including line breaks and tabs, so that it fits into one line."""
    if text.isascii() and text.isprintable():
        return text
    return _UNSEEN_OR_LAYOUT.sub(_escape_match, text)


def visible_json(text: str) -> str:
    """Escape invisible characters in a JSON document. The result parses to the same data."""
    return UNSEEN.sub(_in_json, text)


def visible_yaml(text: str) -> str:
    """Escape invisible characters in a YAML document. Every string with such characters must already be in double
    quotes.
    """
    return UNSEEN.sub(_in_shell, text)


def visible_output(text: str, *, color: bool) -> str:
    """Escape a line of a program's output for display. Tabs are kept, and with `color`, colours as well. If a progress
    bar was redrawn on the line, only its last state is kept.
    """
    if text.isascii() and text.isprintable():
        return text
    text = _REDRAWS.sub("", text.rstrip("\r").rpartition("\r")[2])
    parts = _COLOUR.split(text)  # text and colours alternate
    written = [part if index % 2 else UNSEEN.sub(_escape_match, part) for index, part in enumerate(parts)]
    if not color or len(parts) == 1:
        return "".join(written[::2])
    return "".join(written) + _RESET


def shell_word(text: str) -> str:
    """Quote a word for a shell. Invisible characters are escaped between `$'` and `'` (bash, zsh)."""
    if on_one_line(text) == text:
        return shlex.quote(text)
    return "$'" + _UNSEEN_OR_LAYOUT.sub(_in_shell, text.replace("\\", "\\\\").replace("'", "\\'")) + "'"


def _escape_match(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()


def _in_json(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[index : index + 2].hex()}" for index in range(0, len(units), 2))


def _in_shell(match: re.Match[str]) -> str:
    code = ord(match[0])
    if 0xDC80 <= code <= 0xDCFF or code < 0x80:  # a byte
        return f"\\x{code & 0xFF:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


# Width and wrapping of text. Literals in backticks are never broken.

_WORD = re.compile(r"(?:`[^`]*`|[^\s`]|`)+")
_LITERAL = re.compile(r"(`[^`]*`)")


def width_of(text: str) -> int:
    """Return the number of terminal columns of `text`: two for wide East Asian characters, none for combining marks."""
    if text.isascii():
        return len(text)
    import unicodedata

    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )


def wrap(text: str, width: int | None, *, first: int = 0, rest: int = 0) -> list[str]:
    """Wrap `text` into lines of at most `width` columns; None: no limit. `first` columns of the first line and `rest`
    columns of the other lines are already used. Words and literals are never broken; one that is too long overflows on
    its own line. Newlines in `text` are kept.
    """
    lines: list[str] = []
    for paragraph in visible(text).split("\n"):
        if width is None:
            lines.append(paragraph)
            continue
        line, used = "", first if not lines else rest
        for word in _WORD.findall(paragraph):
            if line and used + width_of(line) + 1 + width_of(word) > width:
                lines.append(line)
                line, used = word, rest
            else:
                line = f"{line} {word}" if line else word
        lines.append(line)
    return lines


def literals(text: str, style: Style = "") -> list[Span]:
    """Return `text` as spans. Backticked literals have the style of code, the other parts have `style`."""
    return [
        Span(part, "code" if part.startswith("`") and len(part) > 1 else style) for part in _LITERAL.split(text) if part
    ]


def fill(words: Sequence[str], width: int | None, *, indent: int) -> list[str]:
    """Join the words of a shell command into lines that fit into `width` columns after an indent of `indent` columns,
    which the caller adds. Each line except the last ends in a backslash. An option stays on a line with its value.
    """
    lines: list[str] = []
    for word in _with_values(words):
        room = None if width is None else width - indent - 2
        if lines and (room is None or width_of(lines[-1]) + 1 + width_of(word) <= room):
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return [f"{line} \\" for line in lines[:-1]] + lines[-1:]


def _with_values(words: Sequence[str]) -> list[str]:
    units: list[str] = []
    for word in words:
        if units and units[-1].startswith("-") and " " not in units[-1] and not word.startswith("-"):
            units[-1] += f" {word}"
        else:
            units.append(word)
    return units
