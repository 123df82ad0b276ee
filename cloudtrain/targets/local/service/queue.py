"""The queue of this machine, in files. Each process that changes the queue does so under a lock, for all.

    queue/lock          held while the table is changed, for about a millisecond
    queue/table.json    the order; written whole, never in place
    runs/NAME/waiting   a FIFO that the run's supervisor holds open: a byte in it wakes the supervisor, and the kernel
                        tells whoever reads it when the supervisor is gone

There is no daemon. A run lives as long as its supervisor holds the lock of the run. The place of a dead run becomes
free when the run that watches it (`Order.watched`) has finished it and killed its processes. Supervisors that must act
on a change are woken before the change is written. So if the writer dies in between, they find the old table and make
the change themselves.
"""

# Paths are strings here: this has to start, and to poll, in no time.
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
    """The queue of a state folder."""

    def __init__(self, state_dir: str) -> None:
        self._state_dir = state_dir
        self._folder = f"{state_dir}/queue"
        self._table = f"{self._folder}/table.json"

    @classmethod
    def of(cls, run_dir: str) -> Queue:
        """Return the queue in which a run would wait."""
        return cls(os.path.dirname(os.path.dirname(run_dir)))

    def run_dir(self, run: str) -> str:
        """Return the folder of a run."""
        return f"{self._state_dir}/runs/{run}"

    def fifo(self, run: str) -> str:
        """Return the FIFO that wakes a run's supervisor."""
        return f"{self.run_dir(run)}/waiting"

    def is_alive(self, run: str) -> bool:
        """Return whether a run has a supervisor, or is just being finished by another process."""
        return is_held(Path(RunFolder(self.run_dir(run)).lock))

    def is_over(self, run: str) -> bool:
        """Return whether nothing of a run can be left: its supervisor is gone, and it has a final status or never had
        one."""
        if self.is_alive(run):
            return False
        status = RunFolder(self.run_dir(run)).read_status()
        return status is None or status["state"] in FINAL

    def read(self) -> Order:
        """Return the order as it was last written. Empty where the file is missing, or was torn by a power cut, which
        no supervisor survives."""
        try:
            with open(self._table, "rb") as file:
                return Order.from_json(json.load(file))
        except (FileNotFoundError, ValueError, LookupError, TypeError):
            return Order()

    def settle(self) -> None:
        """Give away the places of dead runs. Do nothing where the queue was never used or cannot be written; the
        waiting runs then do it."""
        if os.path.exists(self._table):
            try:
                self.change()
            except OSError:
                return

    def change(self, how: Callable[[Order], object] = lambda _order: None) -> Order:
        """Change the order, give places to the runs that can have them now, and wake the runs that are affected.

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
        """Send a byte to a waiting supervisor. A dead supervisor, or one with a full pipe, needs none."""
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
