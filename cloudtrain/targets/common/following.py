"""Follow a job's output until the job has ended and its last line has arrived, despite throttling and lost
connections."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sized
from dataclasses import dataclass, replace
from typing import Protocol

from cloudtrain.core.states import LogLine, RunStatus
from cloudtrain.errors import TargetUnreachable


@dataclass(frozen=True)
class Pace:
    """How often to read a job's log, and how long to wait for a service that does not answer. All values are seconds.

    Attributes:
        every: pause between two reads of the log.
        per_stream: with N streams, the pause is at least N times this value, because CloudWatch allows an account
        only about 25 reads a second.
        settle: how long to wait for another line of an ended job, because services deliver lines late.
        patience: how long the service may be unreachable.
        slowest: longest pause between two attempts while the service is unreachable.
    """

    every: float = 2.0
    per_stream: float = 0.2
    settle: float = 6.0
    patience: float = 600.0
    slowest: float = 30.0


class Log(Protocol):
    """A job's output. Each call of `new_lines` continues where the previous one stopped."""

    @property
    def streams(self) -> Sized:
        """Return the streams of the log. Only their number is used."""
        ...

    def new_lines(self) -> Iterator[LogLine]:
        """Yield the lines written since the last call. If an error occurs in between, no line is lost or
        repeated."""
        ...


_LATE = 120.0
"""Seconds after the end of a job within which lines may still arrive."""


def follow(
    log: Log, status_of: Callable[[], RunStatus], on_status: Callable[[RunStatus], None] | None, pace: Pace
) -> Iterator[LogLine]:
    """Yield the lines of a job as they arrive, until the job has ended and its log has no new lines.

    Raises:
        TargetUnreachable: the service did not answer for `pace.patience` seconds.
    """
    told: RunStatus | None = None
    ended: float | None = None  # when the end was first seen; only silence after it counts
    answered = quiet_since = time.monotonic()
    pause = pace.every
    while True:
        try:
            status = status_of()  # before the log, which may be complete when the status is final
            if on_status is not None and _news(status, told):
                on_status(status)
                told = status
            for line in log.new_lines():
                quiet_since = time.monotonic()
                yield line
        except TargetUnreachable:
            if time.monotonic() - answered > pace.patience:
                raise
            pause = min(pause * 2, pace.slowest)
        else:
            answered, pause = time.monotonic(), max(pace.every, pace.per_stream * len(log.streams))
            if status.state.is_final:
                ended = answered if ended is None else ended
                if _is_settled(status, max(quiet_since, ended), pace):
                    return
        time.sleep(pause)


def _is_settled(status: RunStatus, quiet_since: float, pace: Pace) -> bool:
    if status.ended is not None and time.time() - status.ended > _LATE:
        return True
    return time.monotonic() - quiet_since >= pace.settle


def _news(status: RunStatus, told: RunStatus | None) -> bool:
    """Return whether `status` differs from `told`, the last reported one, in more than cost and billable seconds."""
    if told is None:
        return True
    return replace(status, billable_seconds=None, cost=None) != replace(told, billable_seconds=None, cost=None)
