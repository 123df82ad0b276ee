"""Selection of the printed lines of a run's output, by pattern, time or level."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from cloudtrain.core.states import LogLine


class LogLevel(str, Enum):
    """The lowest severity of printed lines."""

    warning = "warning"
    error = "error"


_WORDS = {
    LogLevel.warning: re.compile(r"\b(?:WARN|WARNING|ERROR|CRITICAL|FATAL)\b|\b\w*(?:Warning|Error|Exception)\b:"),
    LogLevel.error: re.compile(r"\b(?:ERROR|CRITICAL|FATAL)\b|\b\w*(?:Error|Exception)\b:"),
}
"""The levels as Python's logging, warnings and exceptions write them."""

_TRACEBACK = "Traceback (most recent call last)"


class Selection(NamedTuple):
    """The conditions that a line must meet to be printed. Default: no condition."""

    pattern: re.Pattern[str] | None = None
    since: float | None = None
    """Seconds since the epoch."""
    level: LogLevel | None = None

    def of(self, lines: Iterable[LogLine]) -> Iterator[LogLine]:
        """Yield the lines that meet all conditions. All lines of a traceback count as an error."""
        open_tracebacks: set[tuple[int, int | None, str]] = set()
        for line in lines:
            if (
                (self.since is None or line.time >= self.since)
                and (self.pattern is None or self.pattern.search(line.text))
                and (self.level is None or _is_grave(line, self.level, open_tracebacks))
            ):
                yield line


EVERY_LINE = Selection()


def _is_grave(line: LogLine, level: LogLevel, open_tracebacks: set[tuple[int, int | None, str]]) -> bool:
    source = (line.instance, line.rank, line.stream)
    if _TRACEBACK in line.text:
        open_tracebacks.add(source)
        return True
    if source in open_tracebacks:
        if line.text[:1] not in (" ", "\t", ""):  # the exception itself ends it
            open_tracebacks.discard(source)
        return True
    return _WORDS[level].search(line.text) is not None


def pattern_of(text: str) -> re.Pattern[str]:
    """Compile a regular expression that the user typed.

    Raises:
        UsageError: the text is not a regular expression.
    """
    from cloudtrain.errors import UsageError

    try:
        return re.compile(text)
    except re.error as error:
        hint = f"to search for the text itself, put a backslash before special characters: `{re.escape(text)}`"
        raise UsageError(f"`{text}` is not a regular expression: {error}", hint=hint, code="CT901") from None


def moment_of(text: str) -> float:
    """Convert a time that the user typed to seconds since the epoch: `10m` (ago), or `2026-11-22T10:00` (local time,
    unless the text contains a time zone).

    Raises:
        UsageError: the text is not a time.
    """
    from cloudtrain.core.units import parse_duration
    from cloudtrain.errors import UsageError

    try:
        return time.time() - parse_duration(text)
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone(timezone.utc).timestamp()
    except (ValueError, OverflowError, OSError):
        hint = "write how long ago, for example `10m`, or a time, for example `2026-11-22T10:00`"
        raise UsageError(f"`{text}` is not a time", hint=hint, code="CT901") from None
