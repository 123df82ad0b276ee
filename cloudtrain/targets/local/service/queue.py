"""The queue of this machine, stored in files. A process changes the queue only while it holds the lock.

    queue/lock          locked while a process changes the table, for about a millisecond
    queue/table.json    the order; replaced in one atomic step
    runs/NAME/waiting   a FIFO that the run's supervisor holds open: a byte written to it wakes the supervisor, and when
                        the supervisor ends, the kernel notifies the readers of the FIFO

The queue needs no daemon. A run is alive as long as its supervisor holds the run's lock. If a run dies, a run that
watches it (`Order.watched`) kills the dead run's processes and finishes the dead run, so that its GPUs or slots become
free. Before a process writes a change, it wakes the supervisors that must act on the change. So if the process dies
before it writes, these supervisors find the old table and make the change themselves.
"""

# Paths are strings here, because this module must start and poll quickly.
# ruff: noqa: PTH105, PTH110, PTH120, PTH123
from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path

from cloudtrain.system.lock import is_held
from cloudtrain.system.private import make_private_folder, open_private
from cloudtrain.targets.local.service.folder import FINAL, RunFolder
from cloudtrain.targets.local.service.order import Order

TYPE_CHECKING = False  # as typing.TYPE_CHECKING, without importing typing
if TYPE_CHECKING:
    from collections.abc import Callable


class Queue:
    """The queue of the runs in one state folder."""

    def __init__(self, state_dir: str) -> None:
        self._state_dir = state_dir
        self._folder = f"{state_dir}/queue"
        self._table = f"{self._folder}/table.json"

    @classmethod
    def of(cls, run_dir: str) -> Queue:
        """Return the queue for the run with the folder `run_dir`."""
        return cls(os.path.dirname(os.path.dirname(run_dir)))

    def run_dir(self, run: str) -> str:
        """Return the folder of a run."""
        return f"{self._state_dir}/runs/{run}"

    def fifo(self, run: str) -> str:
        """Return the path of the FIFO that wakes a run's supervisor."""
        return f"{self.run_dir(run)}/waiting"

    def is_alive(self, run: str) -> bool:
        """Return whether a run has a living supervisor, or another process is finishing it now."""
        return is_held(Path(RunFolder(self.run_dir(run)).lock))

    def is_over(self, run: str) -> bool:
        """Return whether a run has ended completely: its supervisor has ended, and the run has a final status or no
        status at all."""
        if self.is_alive(run):
            return False
        status = RunFolder(self.run_dir(run)).read_status()
        return status is None or status["state"] in FINAL

    def read(self) -> Order:
        """Read the order. Return an empty order if the file is missing or damaged."""
        try:
            with open(self._table, "rb") as file:
                return Order.from_json(json.load(file))
        except (FileNotFoundError, ValueError, LookupError, TypeError):
            return Order()

    def settle(self) -> None:
        """Give the GPUs and slots of ended runs to waiting runs. Do nothing if the queue was never used. If the queue
        cannot be written, the supervisors of the waiting runs do this later."""
        if os.path.exists(self._table):
            try:
                self.change()
            except OSError:
                return

    def change(self, how: Callable[[Order], object] = lambda _order: None) -> Order:
        """Change the order with `how`, start the waiting runs that can start now, and wake the affected supervisors.
        Return the new order.

        Raises:
            OSError: the table cannot be written; the order is unchanged.
        """
        make_private_folder(self._folder)
        lock = open_private(f"{self._folder}/lock", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            order = self.read()
            before, seen = order.to_json(), order.watched()
            order.forget(self.is_over)
            how(order)
            order.grant(time.time())
            after = order.to_json()
            if after != before:
                watched = order.watched()
                for run in [run for run, whom in seen.items() if watched.get(run) != whom]:
                    self._wake(run)
                self._write(json.dumps(after).encode())
            return order
        finally:
            os.close(lock)

    def _write(self, content: bytes) -> None:
        new = f"{self._table}.new"
        with os.fdopen(open_private(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
            file.write(content)
        os.replace(new, self._table)

    def _wake(self, run: str) -> None:
        """Send a byte to the FIFO of a waiting supervisor. Do nothing if the supervisor is dead, or if the FIFO is
        full, because the bytes already in it will wake the supervisor."""
        try:
            descriptor = os.open(self.fifo(run), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return
        try:
            os.write(descriptor, b".")
        except OSError:
            return
        finally:
            os.close(descriptor)
