"""The line of a program's output that says what went wrong."""

from __future__ import annotations

import re
from collections.abc import Sequence

_LONGEST = 400
_NAMED_ERROR = re.compile(r"^\s*(?:\[\w+\d*\]:\s*)?([A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)\b.*)$")


def error_in(lines: Sequence[str]) -> str | None:
    """The last line that names an exception."""
    found = [match[1] for line in lines if (match := _NAMED_ERROR.match(line))]
    return bounded(found[-1]) if found else None


def bounded(text: str) -> str:
    """One line, of a length that can be read."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}..."
