"""When to look at a run that makes no step: how long its pauses have been so far.

A fixed limit is wrong for every run. Of ten rules over 13 traces of steps with evaluations,
checkpoints and compilations, three times the longest pause so far had the fewest false alarms, one
in 4,399 pauses (facts/watch.md 3.2). The times are those at which the ranks reported, so that it
does not matter when somebody looks at them.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

FLOOR = 30.0
"""Seconds without a step that are always fine, as long as the process group's timeout is longer
than twice that."""

_TIMES = 3.0
_FIRST_PAUSES = 5
"""Pauses that tell how long a pause is. Compiling and the first batch come before."""

UNKNOWN_TIMEOUT = 600.0
"""The timeout in seconds of a process group that the script has made itself: the shortest default,
which is NCCL's."""

_RECORD = struct.Struct("<Qdddd")


@dataclass
class StepPace:
    """The reports of one rank.

    Attributes:
        pauses: how many pauses there were between two reports.
        longest: the longest of them, in seconds.
        last: the time of the newest report, in seconds since 1970; 0 before the first.
        timeout: the timeout of the process group in seconds; 0 if it is unknown.
        joined: when the process joined the process group, or registered; 0 if it is unknown.
    """

    pauses: int = 0
    longest: float = 0.0
    last: float = 0.0
    timeout: float = 0.0
    joined: float = 0.0

    def note(self, moment: float) -> None:
        """Record a report at `moment`."""
        if self.last:
            self.pauses += 1
            self.longest = max(self.longest, moment - self.last)
        self.last = moment

    @classmethod
    def read(cls, path: str) -> StepPace | None:
        """Return the pace that `PaceFile` has written; None without one."""
        try:
            with open(path, "rb", buffering=0) as file:
                content = file.read()
        except OSError:
            return None
        return cls(*_RECORD.unpack(content)) if len(content) == _RECORD.size else None


class PaceFile:
    """The file in which a rank keeps its pace, for whoever looks at the run later."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._written = b""

    def write(self, pace: StepPace) -> None:
        """Write the pace if it has changed. A disk that is full, or a folder that is gone, is
        ignored."""
        content = _RECORD.pack(*vars(pace).values())
        if content == self._written:
            return
        with suppress(OSError):
            if self._descriptor is None:
                flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
                self._descriptor = os.open(self._path, flags, 0o600)
            os.pwrite(self._descriptor, content, 0)
            self._written = content


OWN = StepPace()
"""The pace of this process."""

_files: list[PaceFile] = []
"""The file of this process's pace, once it has registered as a rank."""


def keep(path: str) -> None:
    """Keep the pace of this process in a file from now on. A forked process begins anew."""
    OWN.pauses = 0
    OWN.longest = 0.0
    OWN.last = 0.0
    OWN.joined = time.time()
    _files[:] = [PaceFile(path)]
    publish()


def publish() -> None:
    """Write the pace of this process into its file, if it has one and there is something new."""
    for file in _files:
        file.write(OWN)


class Quiet:
    """How long a run has made no step, and how long that is fine.

    Attributes:
        seconds: the seconds since the newest step of any rank, or since the ranks have joined.
        limit: the seconds after which somebody should look.
        timeout: the seconds after which the process group gives up.
    """

    def __init__(self, paces: Iterable[StepPace], now: float, *, began: float) -> None:
        """`began` is when the ranks started, in case none of them has written anything. Both times
        are seconds since 1970."""
        pauses = 0
        longest = 0.0
        newest = 0.0
        timeout = 0.0
        for pace in paces:
            pauses = max(pauses, pace.pauses)
            longest = max(longest, pace.longest)
            newest = max(newest, pace.last, pace.joined)
            timeout = max(timeout, pace.timeout)
        self.seconds: float = now - (newest or began)
        self.timeout: float = timeout or UNKNOWN_TIMEOUT
        self.limit: float = self.timeout / 2
        if pauses >= _FIRST_PAUSES:
            self.limit = min(self.limit, max(FLOOR, _TIMES * longest))

    @property
    def is_long(self) -> bool:
        """Whether somebody should look."""
        return self.seconds > self.limit
