"""The queue of this machine, stored in files. A process changes the queue only while it holds the
lock.

    queue/lock          locked while a process changes the table, for about a millisecond
    queue/table.json    the order; replaced in one atomic step
    runs/NAME/waiting   a FIFO that the run's supervisor holds open: a byte written to it wakes the
                        supervisor, and when the supervisor ends, the kernel notifies the readers of
                        the FIFO

The queue needs no daemon. A run is alive as long as its supervisor holds the run's lock. If a run
dies, a run that watches it (`QueueOrder.watched`) kills the dead run's processes and finishes the
dead run, so that its GPUs or slots become free. Before a process writes a change, it wakes the
supervisors that must act on the change. So if the process dies before it writes, these supervisors
find the old table and make the change themselves.
"""

# Paths are strings here, because this module must start and poll quickly.
from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from cloudtrain.system.private import make_private_folder, open_private, replace_private
from cloudtrain.system.processes import is_held
from cloudtrain.targets.local.folder import FINAL, RunFolder

# The order of the queue: which runs wait, which GPUs or CPU slots each started run holds, and which
# run starts next.
#
# Runs of the same priority start in the order of their arrival. A waiting run reserves all GPUs
# that it may use, or all CPU slots, so no run behind it gets them. Therefore small runs never delay
# a large run.


@dataclass(frozen=True)
class Waiting:
    """A run that waits for `count` of the GPUs in `gpus`, or of the machine's CPU `slots` if `gpus`
    is empty."""

    run: str
    count: int
    gpus: tuple[str, ...]
    slots: int
    priority: int
    since: float


@dataclass(frozen=True)
class Held:
    """A run that holds the GPUs in `gpus`, or `slots` CPU slots."""

    run: str
    gpus: tuple[str, ...]
    slots: int
    since: float
    priority: int = 0


@dataclass
class QueueOrder:
    """The whole queue. `waiting` is sorted by priority, then by arrival, unless users moved
    runs."""

    waiting: list[Waiting] = field(default_factory=list)
    held: list[Held] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    """Names of runs that were taken out of the queue and have not yet stopped."""

    @classmethod
    def from_json(cls, data: Any) -> QueueOrder:
        order = cls(dropped=list(data["dropped"]))
        for one in (*data["waiting"], *data["held"]):
            one["gpus"] = tuple(one["gpus"])
        order.waiting += [Waiting(**one) for one in data["waiting"]]
        order.held += [Held(**one) for one in data["held"]]
        return order

    def place_of(self, run: str) -> int | None:
        """Return a run's position among the waiting runs, starting at 1; None if the run is not
        waiting."""
        for place, one in enumerate(self.waiting, 1):
            if one.run == run:
                return place
        return None

    def held_by(self, run: str) -> Held | None:
        """Return the GPUs or slots that a run holds; None if it holds none."""
        return next((one for one in self.held if one.run == run), None)

    def enter(self, one: Waiting) -> None:
        """Add a waiting run behind all waiting runs of the same or a higher priority."""
        place = 0
        while place < len(self.waiting) and self.waiting[place].priority >= one.priority:
            place += 1
        self.waiting.insert(place, one)

    def leave(self, run: str) -> None:
        """Remove all entries of a run."""
        self._keep(lambda name: name != run)

    def forget(self, is_over: Callable[[str], bool]) -> None:
        """Remove the runs for which `is_over` returns True. A run whose supervisor was killed keeps
        its GPUs or slots until another process has finished it, because its processes may still use
        them."""
        self._keep(lambda run: not is_over(run))

    def runs(self) -> set[str]:
        """Return the names of all runs in the queue, also of dropped ones."""
        waiting = {one.run for one in self.waiting}
        held = {one.run for one in self.held}
        return waiting | held | {*self.dropped}

    def drop(self, run: str) -> bool:
        """Take a waiting run out of the queue. Return False if the run is not waiting."""
        if self.place_of(run) is None:
            return False
        self.leave(run)
        self.dropped.append(run)
        return True

    def move(self, run: str, before: str | None, *, last: bool = False) -> bool:
        """Move a run before the run `before`, to the front (`before` is None), or to the end. The
        run's priority changes if its new position requires that. Return False if one of the two
        runs is not waiting."""
        place = self.place_of(run)
        if place is None or (before is not None and self.place_of(before) is None):
            return False
        if before == run:
            return True

        one = self.waiting.pop(place - 1)
        index = 0
        if last:
            index = len(self.waiting)
        elif before is not None:
            index = (self.place_of(before) or 1) - 1

        # between its new neighbours' priorities, so that runs which enter later stand in order
        priority = one.priority
        if index > 0:
            priority = min(priority, self.waiting[index - 1].priority)
        if index < len(self.waiting):
            priority = max(priority, self.waiting[index].priority)
        self.waiting.insert(index, replace(one, priority=priority))
        return True

    def grant(self, now: float) -> None:
        """Give each waiting run its GPUs or slots if they are free, in queue order. A run that must
        keep waiting reserves all GPUs that it may use, or all slots, so no later run can take
        them."""
        busy = {gpu for one in self.held for gpu in one.gpus}
        used_slots = sum(one.slots for one in self.held)
        are_slots_reserved = False
        for one in tuple(self.waiting):  # a copy, because runs that start leave the list
            free = tuple(gpu for gpu in one.gpus if gpu not in busy)[: one.count]
            if one.gpus and len(free) == one.count:
                busy.update(free)
                self._start(one, Held(one.run, free, 0, now, one.priority))
            elif one.gpus:
                busy.update(one.gpus)
            elif not are_slots_reserved and used_slots + one.count <= one.slots:
                used_slots += one.count
                self._start(one, Held(one.run, (), one.count, now, one.priority))
            else:
                are_slots_reserved = True

    def watched(self) -> dict[str, frozenset[str]]:
        """Map each waiting run to the runs whose end it watches for. The first waiting run watches
        all runs that hold GPUs or slots; every other waiting run watches its predecessor. So the
        end of a run, for any reason, wakes one process."""
        watched = dict[str, frozenset[str]]()
        ahead = frozenset(one.run for one in self.held)
        for one in self.waiting:
            watched[one.run] = ahead
            ahead = frozenset((one.run,))
        return watched

    def _start(self, one: Waiting, holder: Held) -> None:
        self.waiting.remove(one)
        self.held.append(holder)

    def _keep(self, is_kept: Callable[[str], bool]) -> None:
        self.waiting = [one for one in self.waiting if is_kept(one.run)]
        self.held = [one for one in self.held if is_kept(one.run)]
        self.dropped = [run for run in self.dropped if is_kept(run)]


class Queue:
    """The queue of the runs in one state folder."""

    def __init__(self, state_dir: str) -> None:
        self._state_dir = state_dir
        self._folder = f"{state_dir}/queue"
        self._table = f"{self._folder}/table.json"

    @classmethod
    def of(cls, run_dir: str) -> Queue:
        """Return the queue of the state folder that holds a run's folder."""
        return cls(f"{run_dir}/../..")

    def run_dir(self, run: str) -> str:
        return f"{self._state_dir}/runs/{run}"

    def fifo(self, run: str) -> str:
        """Return the path of the FIFO that wakes the run's supervisor."""
        return f"{self.run_dir(run)}/waiting"

    def is_alive(self, run: str) -> bool:
        """Return whether a run has a living supervisor, or another process is finishing it now."""
        return is_held(Path(RunFolder(self.run_dir(run)).lock))

    def is_over(self, run: str) -> bool:
        """Return whether the supervisor has ended, and the run has a final status or no status at
        all."""
        if self.is_alive(run):
            return False
        status = RunFolder(self.run_dir(run)).read_status()
        return status is None or status["state"] in FINAL

    def read(self) -> QueueOrder:
        """Read the order. Return an empty order if the file is missing or damaged."""
        try:
            with open(self._table, "rb") as file:
                return QueueOrder.from_json(json.load(file))
        except (FileNotFoundError, ValueError, LookupError, TypeError):
            return QueueOrder()

    def settle(self) -> None:
        """Give the GPUs and slots of ended runs to waiting runs. If that fails, their supervisors
        do it later."""
        if os.path.exists(self._table):
            try:
                self.change()
            except OSError:
                return

    def change(self, how: Callable[[QueueOrder], object] = lambda _order: None) -> QueueOrder:
        """Change the order with `how`, start the waiting runs that can start now, and wake the
        affected supervisors. Raises `OSError` if the table cannot be written; the order is then
        unchanged."""
        make_private_folder(self._folder)
        lock = open_private(f"{self._folder}/lock", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            order = self.read()
            before = asdict(order)
            watched_before = order.watched()

            order.forget(self.is_over)
            how(order)
            order.grant(time.time())

            after = asdict(order)
            if after != before:
                watched = order.watched()
                # before the table is written: see the head of this module
                for run, runs in watched_before.items():
                    if watched.get(run) != runs:
                        self._wake(run)
                replace_private(self._table, json.dumps(after).encode())
            return order
        finally:
            os.close(lock)

    def _wake(self, run: str) -> None:
        """Write a byte to the FIFO of a run's supervisor. A dead supervisor is left alone. If its
        FIFO is full, the bytes already in it will wake it."""
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
