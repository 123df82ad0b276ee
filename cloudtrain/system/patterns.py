"""The job's `metrics`: regular expressions that the supervisor of a run, or the driver of a sweep,
applies to the run's log lines.

The user writes the expressions, and a search that backtracks may take very long. So each search has
a limit of CPU time, which does not depend on how busy the machine is. A pattern whose search
exceeds the limit is dropped.
"""

from __future__ import annotations

import re
import signal
import time
import warnings

TYPE_CHECKING = False  # as typing.TYPE_CHECKING, without importing typing
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import FrameType

_LONGEST = 4096
"""Characters of a line that are searched."""

_LIMIT = 0.2
"""Seconds of processor time for one search."""

_SLOW = 0.01
_MOST_SLOW = 50
"""A pattern may take more than `_SLOW` seconds `_MOST_SLOW` times. A slower pattern would hold up
the output."""

_STEP = re.compile(
    (
        r"(?<![a-z])(?:steps?|"
        r"iter(?:ation)?s?)\b[\s:=#\[(]{0,4}([0-9]+)(?!\.?[0-9])(?:\s?/\s?([0-9]+))?"
    ),
    re.IGNORECASE,
)
_EPOCH = re.compile(
    r"(?i)(?<![a-z])(?:epochs?\b[\s:=#\[(]{0,4}|train:\s?(?=\d+\s?\[\s*\d+/))([0-9]+)(?!\.?[0-9])"
)
_POSITION = re.compile(r"[\[(]\s*([0-9]+)/([0-9]+)")
"""Where in the training a line was written, in the form that scripts print: `step 10`, `Epoch
[2/5], Step [100/600]`, and timm's `Train: 0 [   6/12`."""


class TooSlow(Exception):
    """A search exceeded its limit."""


class MetricPatterns:
    """The metric patterns of one run. `complaints` collects one message for each dropped pattern,
    for the caller to print."""

    def __init__(self, patterns: Mapping[str, str]) -> None:
        self.complaints: list[str] = []
        self._texts = dict(patterns)
        self._patterns: dict[str, re.Pattern[str]] | None = None
        self._slow = dict.fromkeys(patterns, 0)
        self._searching = False
        self._limit = _LIMIT

    def read(self, line: str) -> dict[str, float] | None:
        """Return the metrics in a line, together with the step and the epoch that the line names;
        None if the line has no metrics."""
        if self._patterns is None:
            try:
                signal.signal(signal.SIGVTALRM, self._interrupt)
            except ValueError:  # only the main thread can be interrupted
                self._limit = 0.0
            self._patterns = self._compile()

        line = line[:_LONGEST]
        values: dict[str, float] = {}
        for name, pattern in tuple(self._patterns.items()):
            began = time.thread_time()
            # `_searching` makes a signal that arrives after the search harmless.
            try:
                self._searching = True
                signal.setitimer(signal.ITIMER_VIRTUAL, self._limit)
                match = pattern.search(line)
                self._searching = False
            except TooSlow:
                self._drop(name, f"needs more than {_LIMIT:g} s for a line")
                continue

            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            if time.thread_time() - began > _SLOW:
                self._slow[name] += 1
                if self._slow[name] > _MOST_SLOW:
                    self._drop(name, "is too slow for so many lines")

            value = _number(match)
            if value is not None:
                values[name] = value
        return {**_place(line), **values} if values else None

    def _compile(self) -> dict[str, re.Pattern[str]]:
        """Return the valid patterns, compiled, and complain about the others."""
        patterns: dict[str, re.Pattern[str]] = {}
        for name, text in self._texts.items():
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    patterns[name] = re.compile(text)
            # Before a submit, the rule CT216 reports it as well.
            except (re.error, OverflowError, RecursionError) as error:
                self.complaints.append(
                    f"cloudtrain: metric `{name}` is not read, because its pattern is not "
                    f"valid: {error}"
                )
        return patterns

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        """Handle the timer's signal: end a running search with TooSlow. After the search, the
        signal has no effect."""
        if self._searching:
            self._searching = False
            raise TooSlow

    def _drop(self, name: str, why: str) -> None:
        """Stop reading a metric, and complain. `why` completes the sentence about its pattern."""
        assert self._patterns is not None
        del self._patterns[name]
        self.complaints.append(
            f"cloudtrain: metric `{name}` is no longer read, because its pattern {why}"
        )


def _number(match: re.Match[str] | None) -> float | None:
    """Return the number in the first group of a match; None if there is none."""
    try:
        return None if match is None else float(match[1])
    # There is no group, it did not take part in the match, or it holds no number.
    except (IndexError, TypeError, ValueError):
        return None


def _place(line: str) -> dict[str, float]:
    """Return the step and the epoch that a line names. If steps restart in each epoch and the line
    gives the steps per epoch, return the step counted from the first epoch. If the line names only
    an epoch, the epoch is also the step."""
    step = _STEP.search(line)
    epoch = _EPOCH.search(line)
    if epoch is None:
        return {} if step is None else {"step": float(step[1])}

    number = int(epoch[1])
    counted = step or _POSITION.search(line, epoch.end())
    position = number
    if counted is not None:
        steps_per_epoch = int(counted[2] or 0)
        position = number * steps_per_epoch + int(counted[1])
    return {"step": float(position), "epoch": float(number)}
