"""Operations on the queue for users: list the runs, show a run's position, and move or drop waiting runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from cloudtrain.core.states import QueuedRun, RunRef
from cloudtrain.errors import TargetError, UsageError
from cloudtrain.launch.specification import QueueNeed
from cloudtrain.targets.local.service.order import Held, Order, Waiting
from cloudtrain.targets.local.service.queue import Queue


def standing(run_dir: str) -> dict[str, Any]:
    """Return the fields of a queued run's status that come from the queue. For a waiting run, they are its position and
    a reason that says what it waits for. For a run that holds GPUs or slots, or that was dropped, the only field is
    the state that its supervisor will record next. Return an empty dict if the run is not in the queue."""
    queue, name = Queue.of(run_dir), run_dir.rpartition("/")[2]
    order = queue.read()
    place = order.place_of(name)
    if place is not None:
        return {"queue_place": place, "reason": f"waits for {_need(order.waiting[place - 1])}"}
    if order.held_by(name) is not None:
        return {"state": "preparing"}
    return {"state": "stopping"} if name in order.dropped else {}


def listed(state_dir: str, ref_of: Callable[[str], RunRef]) -> Iterator[QueuedRun]:
    """Yield the runs that hold GPUs or slots, then the waiting runs, both in queue order.

    Raises:
        TargetError: the queue cannot be read.
    """
    queue = Queue(state_dir)
    try:
        order = queue.read()
    except OSError as error:
        raise TargetError(f"the queue cannot be read: {error}", hint=_elsewhere(state_dir)) from error
    order.forget(queue.is_over)
    for held in order.held:
        yield QueuedRun(ref_of(held.run), None, "", _has(held), held.priority, held.since)
    for place, one in enumerate(order.waiting, 1):
        yield QueuedRun(ref_of(one.run), place, _need(one), "", one.priority, one.since)


def move(state_dir: str, run: str, before: str | None, *, last: bool) -> None:
    """Move a waiting run before the run `before`, to the front (`before` is None), or to the end.

    Raises:
        UsageError: one of the two runs is not waiting.
        TargetError: the queue cannot be written.
    """
    order = _change(state_dir, lambda order: order.move(run, before, last=last))
    if order is not None:
        _refuse(order, run if order.place_of(run) is None or before is None else before)


def drop(state_dir: str, run: str) -> None:
    """Stop a waiting run.

    Raises:
        UsageError: the run is not waiting.
        TargetError: the queue cannot be written.
    """
    order = _change(state_dir, lambda order: order.drop(run))
    if order is not None:
        _refuse(order, run)


def _change(state_dir: str, how: Callable[[Order], bool]) -> Order | None:
    """Change the queue with `how`. Return None if `how` returned True; otherwise the order, which is unchanged."""
    done = False

    def change(order: Order) -> None:
        nonlocal done
        done = how(order)

    try:
        order = Queue(state_dir).change(change)
    except OSError as error:
        raise TargetError(
            f"the queue cannot be written: {error}", hint=f"make room, or {_elsewhere(state_dir)}"
        ) from error
    return None if done else order


def _elsewhere(state_dir: str) -> str:
    return f"move the state folder: CLOUDTRAIN_STATE_DIR (now `{state_dir}`)"


def _refuse(order: Order, run: str) -> None:
    hint = f"`cloudtrain stop {run}` ends it" if order.held_by(run) else "`cloudtrain queue` lists the runs that wait"
    raise UsageError(f"`{run}` is not waiting in the queue", hint=hint, code="CT940")


def _need(one: Waiting) -> str:
    return str(QueueNeed(one.count, one.gpus, one.slots))


def _has(held: Held) -> str:
    if held.gpus:
        return f"GPU{'s' if len(held.gpus) > 1 else ''} {', '.join(held.gpus)}"
    return f"{held.slots} CPU slot{'s' if held.slots > 1 else ''}"
