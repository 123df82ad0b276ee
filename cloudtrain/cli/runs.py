"""The runs that a command names, and values such as times and durations that a user types."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

import typer

import cloudtrain as ct
from cloudtrain.cli.terminal import say, typed
from cloudtrain.errors import UsageError
from cloudtrain.job.model import parse_duration

if TYPE_CHECKING:
    from cloudtrain.lifecycle.run import Run
    from cloudtrain.plans.states import LogLine


def run_named(name: str) -> Run:
    """Return the run called `name`. If `last` is a run from another folder, name the run on stderr."""
    found = ct.run(name)
    if found.elsewhere is not None:
        place = f"from `{found.elsewhere}`" if found.elsewhere else "from a folder that is not known"
        say(f"no run was submitted from this folder; `{name}` is `{found.name}`, {place}")
    return found


def require_consent(what: str, run: Run) -> None:
    """If the user wrote `last`, and `last` means a run from another folder, ask whether the command `what` may change
    this run.

    Raises:
        UsageError: stdin is not a terminal, or the user answers no.
    """
    if run.elsewhere is not None and not confirm(f"{what} `{run.name}`?"):
        hint = f"to do it, name the run: {typed('cloudtrain', *what.split(), run.name)}"
        raise UsageError(
            f"`{run.name}` was submitted from another folder, so nothing was done", hint=hint, code="CT939"
        )


def confirm(question: str) -> bool:
    """Ask a yes-or-no question and return whether the answer is yes. Without a terminal on stdin, return False."""
    return sys.stdin.isatty() and typer.confirm(question, err=True)


def instance_number(text: str) -> int:
    """Return the number of an instance, counted from 0. The text is that number, or a host name of SageMaker such as
    `algo-1`, which is instance 0.

    Raises:
        UsageError: the text is neither a number nor a host name.
    """
    host = text.removeprefix("algo-")
    if re.fullmatch("[0-9]{1,9}", host) and (host == text or int(host) > 0):
        return int(host) - (host != text)
    raise UsageError(
        f"`{text}` is not a valid instance",
        hint="write the instance's number, counted from 0, or on SageMaker its host name, such as `algo-1`",
    )


def seconds_of(text: str) -> float:
    """Convert a duration such as `10m` to seconds.

    Raises:
        UsageError: the text is not a duration.
    """
    try:
        return float(parse_duration(text))
    except ValueError as error:
        raise UsageError(str(error), hint="write a number with a unit: `90s`, `10m`, `2h`") from None


# Selection of the printed lines of a run's output, by pattern, time or level.


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
