"""The queue of this machine, in files: whoever has something to change does it, under a lock, for all.

    queue/lock          held while the table is changed, for about a millisecond
    queue/table.json    the order; written whole, never in place
    runs/NAME/waiting   a FIFO that the run's supervisor holds open: a byte in it wakes the supervisor, and the kernel
                        tells whoever reads it when the supervisor is gone

There is no daemon. A run lives as long as its supervisor holds the lock of the run. What a dead one had is free when
somebody has finished its run, which kills what it had started: the one who watches it does (`Order.watched`). Those who
must act on a change are woken before it is written. So where the one who changes the table dies in the middle, they
find the table as it was, and do it themselves.
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
        """The queue in which a run would be."""
        return cls(os.path.dirname(os.path.dirname(run_dir)))

    def run_dir(self, run: str) -> str:
        """The folder of a run."""
        return f"{self._state_dir}/runs/{run}"

    def fifo(self, run: str) -> str:
        """What wakes a run's supervisor."""
        return f"{self.run_dir(run)}/waiting"

    def is_alive(self, run: str) -> bool:
        """Whether a run has its supervisor, or somebody who is just finishing it."""
        return is_held(Path(RunFolder(self.run_dir(run)).lock))

    def is_over(self, run: str) -> bool:
        """Whether nothing of a run can be left: its supervisor is gone, and has written its end or never a status."""
        if self.is_alive(run):
            return False
        status = RunFolder(self.run_dir(run)).read_status()
        return status is None or status["state"] in FINAL

    def read(self) -> Order:
        """The order as it was written last. Empty where there is none, or where a power cut has torn it: then no
        supervisor is left that could be in it."""
        try:
            with open(self._table, "rb") as file:
                return Order.from_json(json.load(file))
        except (FileNotFoundError, ValueError, LookupError, TypeError):
            return Order()

    def settle(self) -> None:
        """Give away what a dead run had. Nothing where nobody ever used the queue, or where it cannot be written: then
        those who wait do it."""
        if os.path.exists(self._table):
            try:
                self.change()
            except OSError:
                return

    def change(self, how: Callable[[Order], object] = lambda _order: None) -> Order:
        """Change the order, give places to those who can have them now, and wake those whom it concerns.

        Raises:
            OSError: the table cannot be written; the order is what it was.
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
        """A byte for a supervisor that waits; one that is dead, or has enough of them, needs none."""
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
