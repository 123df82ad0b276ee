"""Manage a supervisor's entry in the queue: enter the queue, wait for GPUs or slots, hold them, and
leave.

Waiting needs no CPU time: the supervisor sleeps until it receives a byte, or until a run that it
watches ends (`QueueOrder.watched`). It also checks once a minute, in case the kernel does not
report the end of a process, or the run's own folder is gone.
"""

# Paths are strings here, because this module must start and poll quickly.
from __future__ import annotations

import fcntl
import os
import select
import signal
import time

from cloudtrain.targets.local.folder import FINAL, RunFolder
from cloudtrain.targets.local.queueing import Held, Queue, QueueOrder, Waiting
from cloudtrain.targets.local.verdict import finish

TYPE_CHECKING = False  # like typing.TYPE_CHECKING, without importing typing
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from cloudtrain.targets.common.specification import QueueNeed


_LOOK_EVERY = 60.0
"""Seconds between two checks, if nothing wakes the supervisor."""

_FULL_DISK_PAUSE = 1.0
"""Seconds between two attempts to write the table on a full disk."""


class QueuePlace:
    """The entry of one supervisor's run in the queue."""

    def __init__(self, run: str) -> None:
        """The working folder of this process must be the run's folder: it stays that when the state
        folder is moved."""
        self._run = run
        self._queue = Queue.of(".")
        self._fifo = self._queue.fifo(self._run)
        self._need: QueueNeed | None = None
        self._bell: int | None = None
        self._watched: dict[str, int] = {}

    def enter(self, need: QueueNeed) -> None:
        """Add the run to the queue. Raises `OSError` if the queue cannot be written."""
        self._need = need
        self._open_fifo()
        self._queue.change(self._enter)

    def hold(self, gpus: tuple[str, ...]) -> None:
        """Record in the queue which GPUs the run uses without having waited for them. Raises
        `OSError`."""
        self._open_fifo()
        self._queue.change(lambda order: order.held.append(Held(self._run, gpus, 0, time.time())))

    def wait(self, is_asked_to_stop: Callable[[], bool]) -> tuple[str, ...] | None:
        """Return the run's GPUs, empty for CPU slots; None if the run is asked to stop or dropped
        from the queue."""
        try:
            while not is_asked_to_stop():
                try:
                    order = self._queue.change(self._enter)
                except OSError:
                    time.sleep(_FULL_DISK_PAUSE)
                    continue
                holder = order.held_by(self._run)
                if holder is not None:
                    return holder.gpus
                if self._run in order.dropped:
                    return None
                for run in self._sleep(order.watched()[self._run]):
                    try:
                        # its supervisor died; so its GPUs or slots become free
                        finish(self._queue.run_dir(run))
                    except OSError:
                        time.sleep(_FULL_DISK_PAUSE)
            return None
        finally:
            self._watch(frozenset())

    def ring(self) -> None:
        """Wake this supervisor. Its signal handler calls this method."""
        if self._bell is not None:
            try:
                os.write(self._bell, b".")
            except BlockingIOError:  # the FIFO is full, so it wakes the supervisor anyway
                return

    def leave(self) -> None:
        """Take the run out of the queue. If the table cannot be written, waiting runs get the GPUs
        or slots when this process ends."""
        try:
            self._queue.change(lambda order: order.leave(self._run))
            os.unlink(self._fifo)
        except OSError:
            return

    def _enter(self, order: QueueOrder) -> None:
        """Add the run to the order, unless it is there: also after a damaged table was replaced by
        an empty one."""
        need = self._need
        if need is None or self._run in order.runs():
            return
        gpus = tuple(need.gpus)
        since = time.time()
        order.enter(Waiting(self._run, need.count, gpus, need.slots, need.priority, since))

    def _open_fifo(self) -> None:
        """Make the FIFO that wakes this process. When the process ends, the kernel closes the FIFO,
        which wakes the runs that watch this run."""
        os.mkfifo(self._fifo, 0o600)
        self._bell = os.open(self._fifo, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def _sleep(self, runs: frozenset[str]) -> list[str]:
        """Sleep until a byte arrives or a watched run ends. Return the runs that ended without
        leaving the queue."""
        missing = self._watch(runs)
        # If a supervisor died before it was watched, the kernel no longer reports its end.
        missing += [run for run in self._watched if not self._queue.is_alive(run)]
        if missing:
            return missing

        poll = select.poll()
        assert self._bell is not None
        poll.register(self._bell, select.POLLIN)
        for descriptor in self._watched.values():
            poll.register(descriptor, 0)  # report only the end of its writers
        events = dict(poll.poll(_LOOK_EVERY * 1000))
        if self._bell in events:
            os.read(self._bell, 1 << 16)
        return [run for run, descriptor in self._watched.items() if descriptor in events]

    def _watch(self, runs: frozenset[str]) -> list[str]:
        """Watch exactly the given runs. Return the runs that cannot be watched because their FIFO
        is missing."""
        for run in self._watched.keys() - runs:
            os.close(self._watched.pop(run))
        missing = []
        for run in runs - self._watched.keys():
            try:
                flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
                self._watched[run] = os.open(self._queue.fifo(run), flags)
            except OSError:
                missing.append(run)
        return missing


# Wait for the end of another run on this machine without polling: its supervisor holds a lock as
# long as it lives, and the kernel grants a shared lock on the same file when the supervisor ends
# for any reason.


class _Woken(BaseException):
    """Raised by the signal handler if the run is asked to stop while it waits for another run."""


def wait_for_end(run_dir: str, is_asked_to_stop: Callable[[], bool]) -> str | None:
    """Return the run's final state, or `gone` if its folder was deleted; None if the waiting run is
    asked to stop."""
    handler = signal.getsignal(signal.SIGTERM)

    def wake(number: int, frame: FrameType | None) -> None:
        assert callable(handler)
        signal.signal(signal.SIGTERM, handler)  # a second signal must not raise in the cleanup
        handler(number, frame)
        raise _Woken

    try:
        # if the handler returned, Python would continue to wait
        signal.signal(signal.SIGTERM, wake)
        try:
            return None if is_asked_to_stop() else _end_of(RunFolder(run_dir))
        finally:
            signal.signal(signal.SIGTERM, handler)
    except _Woken:
        return None


def _end_of(folder: RunFolder) -> str:
    """Wait until the run has ended, and return its final state, or `gone`."""
    while True:
        if not os.path.exists(folder.lock):
            return "gone"
        descriptor = os.open(folder.lock, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)  # returns when the supervisor has ended
        finally:
            os.close(descriptor)

        status = folder.read_status()
        if status is None:
            return "gone"
        if status["state"] in FINAL:
            return str(status["state"])
        finish(folder.path)  # its supervisor was killed
