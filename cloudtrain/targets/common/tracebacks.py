"""Find the line of a program's output that names the error."""

from __future__ import annotations

import re
from collections.abc import Sequence

from cloudtrain.runtime import errors

_LONGEST = 400
_NAMED_ERROR = re.compile(
    r"^\s*(?:\[\w+\d*\]:\s*)?([A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)\b.*)$"
)

PEER_LOST = re.compile(errors.PEER_LOST)
"""Parts of error messages that report the loss of another rank. Such errors are consequences of the
first failure."""

_CONSEQUENCE = re.compile(rf"{errors.PEER_LOST}|ChildFailedError|SignalException")


def error_in(lines: Sequence[str]) -> str | None:
    """Return the last line that names an exception; None without such a line. If the runtime told
    an error and only exceptions follow that are consequences, return the message of this error."""
    told = errors.find_told(lines)

    last: str | None = None
    last_cause = -1  # line of the last exception that is not a consequence
    for number, line in enumerate(lines):
        match = _NAMED_ERROR.match(line)
        if match is not None:
            last = match[1]
            if not _CONSEQUENCE.search(match[1]):
                last_cause = number

    if told is not None and last_cause < told[0]:
        return shorten_line(told[1])
    return None if last is None else shorten_line(last)


def shorten_line(text: str) -> str:
    line = " ".join(text.split())
    if len(line) <= _LONGEST:
        return line
    return f"{line[: _LONGEST - 3]}..."
