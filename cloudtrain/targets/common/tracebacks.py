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
    names = [
        (index, match[1]) for index, line in enumerate(lines) if (match := _NAMED_ERROR.match(line))
    ]
    message = errors.find_told(lines)
    if message is not None and all(
        index < message[0] or _CONSEQUENCE.search(text) for index, text in names
    ):
        return shorten_line(message[1])
    return shorten_line(names[-1][1]) if names else None


def shorten_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}..."
