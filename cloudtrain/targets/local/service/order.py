"""The order of the queue: which runs wait, which GPUs or CPU slots each started run holds, and which run starts next.

Runs of the same priority start in the order of their arrival. A waiting run reserves all GPUs that it may use, or all
CPU slots, so no run behind it gets them. Therefore small runs never delay a large run.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace

TYPE_CHECKING = False  # as typing.TYPE_CHECKING, without importing typing
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from cloudtrain.launch.specification import QueueNeed


@dataclass(frozen=True)
class Waiting:
    """A run that waits for `count` of the GPUs in `gpus`, or for `count` of the machine's CPU `slots` if `gpus` is
    empty."""

    run: str
    count: int
    gpus: tuple[str, ...]
    slots: int
    priority: int
    since: float

    @classmethod
    def of(cls, run: str, need: QueueNeed, since: float) -> Waiting:
        """Return the entry for a run that enters the queue now."""
        return cls(run, need.count, tuple(need.gpus), need.slots, need.priority, since)


@dataclass(frozen=True)
class Held:
    """A run that holds the GPUs in `gpus`, or `slots` CPU slots."""

    run: str
    gpus: tuple[str, ...]
    slots: int
    since: float
    priority: int = 0


@dataclass
class Order:
    """The whole queue. `waiting` is sorted by priority. Runs of the same priority are in the order of their arrival,
    unless users moved them."""

    waiting: list[Waiting] = field(default_factory=list)
    held: list[Held] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    """Names of runs that were taken out of the queue and have not yet stopped."""

    @classmethod
    def from_json(cls, data: Any) -> Order:
        """Convert the result of `to_json` back to an order."""
        return cls(
            [Waiting(**{**one, "gpus": tuple(one["gpus"])}) for one in data["waiting"]],
            [Held(**{**one, "gpus": tuple(one["gpus"])}) for one in data["held"]],
            list(data["dropped"]),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the queue as JSON data."""
        return asdict(self)

    def place_of(self, run: str) -> int | None:
        """Return a run's position among the waiting runs, starting at 1; None if the run is not waiting."""
        return next((number for number, one in enumerate(self.waiting, 1) if one.run == run), None)

    def held_by(self, run: str) -> Held | None:
        """Return the GPUs or slots that a run holds; None if it holds none."""
        return next((one for one in self.held if one.run == run), None)

    def enter(self, one: Waiting) -> None:
        """Add a waiting run behind all waiting runs of the same or a higher priority."""
        behind = (number for number, other in enumerate(self.waiting) if other.priority < one.priority)
        self.waiting.insert(next(behind, len(self.waiting)), one)

    def hold(self, one: Held) -> None:
        """Record a run that uses GPUs without having waited for them."""
        self.held.append(one)

    def leave(self, run: str) -> None:
        """Remove a run from the queue, whether it waits or holds GPUs or slots."""
        self._keep(lambda name: name != run)

    def forget(self, is_over: Callable[[str], bool]) -> None:
        """Remove the runs for which `is_over` returns True. A run whose supervisor was killed keeps its GPUs or slots
        until another process has finished it, because its processes may still use them."""
        over = {run for run in self.runs() if is_over(run)}
        self._keep(lambda run: run not in over)

    def runs(self) -> set[str]:
        """Return the names of all runs in the queue: waiting runs, runs that hold GPUs or slots, and dropped runs."""
        return {one.run for one in self.waiting} | {one.run for one in self.held} | {*self.dropped}

    def drop(self, run: str) -> bool:
        """Take a waiting run out of the queue. Return False if the run is not waiting."""
        if self.place_of(run) is None:
            return False
        self.leave(run)
        self.dropped.append(run)
        return True

    def move(self, run: str, before: str | None, *, last: bool = False) -> bool:
        """Move a run before the run `before`, to the front (`before` is None), or to the end. The run's priority
        changes if its new position requires that. Return False if one of the two runs is not waiting."""
        place = self.place_of(run)
        if place is None or (before is not None and self.place_of(before) is None):
            return False
        if before == run:
            return True
        one = self.waiting.pop(place - 1)
        there = 0
        if last:
            there = len(self.waiting)
        elif before is not None:
            there = (self.place_of(before) or 1) - 1
        priority = one.priority
        if there > 0:
            priority = min(priority, self.waiting[there - 1].priority)
        if there < len(self.waiting):
            priority = max(priority, self.waiting[there].priority)
        self.waiting.insert(there, replace(one, priority=priority))
        return True

    def grant(self, now: float) -> None:
        """Give each waiting run its GPUs or slots if they are free, in queue order.

        A run that must keep waiting reserves all GPUs that it may use, or all slots, so no later run can take them.
        """
        taken = {gpu for one in self.held for gpu in one.gpus}
        used, is_kept = sum(one.slots for one in self.held), False
        for one in tuple(self.waiting):
            free = tuple(gpu for gpu in one.gpus if gpu not in taken)[: one.count]
            if one.gpus and len(free) == one.count:
                taken.update(free)
                self._start(one, Held(one.run, free, 0, now, one.priority))
            elif one.gpus:
                taken.update(one.gpus)
            elif not is_kept and used + one.count <= one.slots:
                used += one.count
                self._start(one, Held(one.run, (), one.count, now, one.priority))
            else:
                is_kept = True

    def watched(self) -> dict[str, frozenset[str]]:
        """Map each waiting run to the runs whose end it watches for. The first waiting run watches all runs that hold
        GPUs or slots; every other waiting run watches its predecessor. So the end of a run, for any reason, wakes one
        process."""
        found, before = dict[str, frozenset[str]](), frozenset(one.run for one in self.held)
        for one in self.waiting:
            found[one.run] = before
            before = frozenset((one.run,))
        return found

    def _start(self, one: Waiting, held: Held) -> None:
        self.waiting.remove(one)
        self.held.append(held)

    def _keep(self, is_kept: Callable[[str], bool]) -> None:
        self.waiting = [one for one in self.waiting if is_kept(one.run)]
        self.held = [one for one in self.held if is_kept(one.run)]
        self.dropped = [run for run in self.dropped if is_kept(run)]
