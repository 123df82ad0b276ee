"""What the processes of a run are doing: the stacks of their main threads, and the time that they
have used a processor. Names and lines only, never values, which may be secrets.

A rank that has registered writes its own stack when it gets a signal. py-spy reads that of any
other Python process, and of one that does not answer, where it is installed and allowed to.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple

from cloudtrain.runtime.proc import child_pids, stat_fields, state_of
from cloudtrain.runtime.ranks import END, WRITER, RegisteredRank


class Frame(NamedTuple):
    """A frame of a stack."""

    function: str
    file: str
    line: int


# Read the two formats.

_STACK = "Stack (most recent call first):"
_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')


def main_of_faulthandler(text: str) -> list[Frame] | None:
    """Return the frames of the last stack in a file that faulthandler wrote for a main thread, the
    innermost first; None without a stack."""
    _, head, stack = text.rpartition(_STACK)
    if not head:
        return None
    frames = []
    for line in stack.splitlines():
        match = _FRAME.match(line)
        if match is not None and match[3] != WRITER:
            frames.append(Frame(match[3], match[1], int(match[2])))
    return frames


def main_of_py_spy(text: str) -> list[Frame] | None:
    """Return the frames of the main thread in the answer of `py-spy dump --json`, the innermost
    first; None if it is no such answer."""
    try:
        for thread in json.loads(text):
            if thread["thread_name"] in ("MainThread", None):
                frames = thread["frames"]
                return [Frame(one["name"], one["filename"], int(one["line"])) for one in frames]
    except (ValueError, TypeError, KeyError):
        pass
    return None


# Ask processes.

_ANSWER = 2.0
"""Seconds that a process has to begin its answer to a signal. It takes 0.1 ms where the main thread
runs Python code, and does not come where it is in C code, as in a collective."""

_SETTLED = 0.05
"""Seconds after which a dump that faulthandler wrote by itself and that does not grow is whole."""

_PY_SPY = 10.0
"""Seconds that py-spy has for all threads of a process. It takes 0.06."""


def find_py_spy() -> str | None:
    """Return the path of py-spy, beside this interpreter or on the PATH."""
    beside = os.path.join(os.path.dirname(sys.executable), "py-spy")
    return beside if os.access(beside, os.X_OK) else shutil.which("py-spy")


def read_stacks(
    pids: Mapping[int, int], registered: Iterable[RegisteredRank]
) -> dict[int, list[Frame] | None]:
    """Return for each rank the frames of its main thread, the innermost first; None where nothing
    can be read.

    Args:
        pids: maps ranks to the ids of their processes on this machine.
        registered: the ranks that have registered.
    """
    stacks: dict[int, list[Frame] | None] = dict.fromkeys(pids)
    waiting = [rank for rank in registered if pids.get(rank.rank) == rank.pid]
    for after_first in (0, 1):
        asked = [_Asked(rank, after_first) for rank in waiting if rank.can_dump()]
        deadline = time.monotonic() + _ANSWER
        for one in asked:
            stacks[one.rank] = one.wait(deadline)
        waiting = [rank for rank in waiting if stacks[rank.rank] is None]

    py_spy = find_py_spy()
    for number, pid in pids.items():
        if stacks[number] is None and py_spy is not None:
            stacks[number] = _ask_py_spy(py_spy, pid)
    return stacks


class _Asked:
    """A rank that has got a signal for its stack."""

    def __init__(self, rank: RegisteredRank, after_first: int) -> None:
        assert rank.signal is not None
        assert rank.stacks is not None
        self.rank = rank.rank
        self._path = rank.stacks
        self._is_second = bool(after_first)
        self._start = 0
        with suppress(OSError):  # nothing was written yet
            self._start = os.stat(self._path).st_size
        with suppress(OSError):  # it has just ended
            os.kill(rank.pid, rank.signal + after_first)

    def wait(self, deadline: float) -> list[Frame] | None:
        """Return the frames; None if there is no whole stack at the deadline."""
        content = self._read()
        while not self._is_whole(content):
            if time.monotonic() > deadline:
                return None
            time.sleep(0.005)
            content = self._read()
        return main_of_faulthandler(content.decode("utf-8", "replace"))

    def _is_whole(self, content: bytes) -> bool:
        """Return whether the main thread has written its stack to the end. faulthandler, which
        answers the second signal by itself, marks no end."""
        if content.endswith(b"\n" + END):
            return True
        if not content or not self._is_second:
            return False
        time.sleep(_SETTLED)
        return self._read() == content

    def _read(self) -> bytes:
        """Return what was written after the signal."""
        with suppress(OSError), open(self._path, "rb") as file:
            file.seek(self._start)
            return file.read()
        return b""


def _ask_py_spy(program: str, pid: int) -> list[Frame] | None:
    command = [program, "dump", "--json", "--nonblocking", "--pid", str(pid)]
    nothing = subprocess.DEVNULL
    try:
        answer = subprocess.check_output(command, stdin=nothing, stderr=nothing, timeout=_PY_SPY)
    except (OSError, subprocess.SubprocessError):
        return None
    return main_of_py_spy(answer.decode("utf-8", "replace"))


# What a process uses.

_TICKS = os.sysconf("SC_CLK_TCK")


class Usage(NamedTuple):
    """What Linux shows of a process.

    Attributes:
        state: the letter of its state, such as `S` for one that sleeps and `T` for one that a
            signal has stopped; empty for one that has ended.
        seconds: the seconds of processor time of it and of all that it has started.
    """

    state: str
    seconds: float


ENDED = Usage("", 0.0)


def usage_of(pid: int) -> Usage:
    """Return what a process uses. The work of data loaders and other helpers counts."""
    ticks = 0
    waiting = [pid]
    while waiting:
        process = waiting.pop()
        waiting += child_pids(process) or ()
        # of the process, and of those children that have ended
        ticks += sum(map(int, stat_fields(process)[11:15]))
    return Usage(state_of(stat_fields(pid)), ticks / _TICKS)
