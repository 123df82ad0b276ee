"""Width and wrapping of text. Literals in backticks are never broken."""

from __future__ import annotations

import re
from collections.abc import Sequence

from cloudtrain.render.document import Span, Style
from cloudtrain.render.escape import visible

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
