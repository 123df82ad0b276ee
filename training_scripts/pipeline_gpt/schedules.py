"""The schedules of pipelines. A schedule is the order in which each process computes microbatches of its stages. This
module only plans and computes no microbatch.

A stage is a part of the model; a process holds one stage or several. For each microbatch a stage has a forward (F) and
a backward (B). Zero-bubble schedules cut the backward in two: gradients of the inputs (I), which the stage before waits
for, and gradients of the weights (W), for which no stage waits, so that they can fill the bubbles.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from types import SimpleNamespace
from typing import NamedTuple


class Action(NamedTuple):
    """One piece of work of a process."""

    kind: str  # F, B, I or W
    stage: int
    microbatch: int


class Event(NamedTuple):
    """An action and when it ran, in seconds."""

    action: Action
    start: float
    end: float


Order = list[list[Action]]
"""The actions of each process, in order."""

KINDS = {
    "FORWARD": "F",
    "FULL_BACKWARD": "B",
    "BACKWARD": "B",
    "BACKWARD_INPUT": "I",
    "BACKWARD_WEIGHT": "W",
}
"""torch's names of the kinds. Their values are letters from torch 2.10 on, and were numbers before."""


@dataclass(frozen=True)
class Schedule:
    """A row of the table.

    Attributes:
        torch_name: the schedule's class in torch.distributed.pipelining.
        chunks: stages per process where the schedule fixes them; None where the user may choose.
        placement: which stages a process holds. `loop`: every processes-th one. `v`: one going down, one coming back.
        formula: the bubble as a share of the step, of processes, microbatches and chunks, where a backward takes twice
            as long as a forward and sending takes no time. None where there is no closed form.
        single: torch's class takes one stage, not a list.
    """

    torch_name: str
    chunks: int | None
    placement: str
    formula: Callable[[int, int, int], float] | None
    single: bool = False


def _fill_and_drain(processes: int, microbatches: int, chunks: int) -> float:
    """Return the bubble of schedules in which every process waits for the first microbatch to arrive and for the last
    one to leave, a chunk at a time."""
    return (processes - 1) / (chunks * microbatches + processes - 1)


SCHEDULES = {
    "simple": Schedule("GPipe", 1, "loop", _fill_and_drain, single=True),
    "1f1b": Schedule("1F1B", 1, "loop", _fill_and_drain, single=True),
    "interleaved": Schedule("Interleaved1F1B", None, "loop", _fill_and_drain),
    "zero-bubble": Schedule("InterleavedZeroBubble", None, "loop", None),
    "zero-bubble-v": Schedule("ZBVZeroBubble", 2, "v", None),
}


def chunks_of(name: str, asked: int) -> int:
    """Return the number of stages per process: the schedule's fixed number, else `asked`."""
    return SCHEDULES[name].chunks or asked


def stages_of(name: str, process: int, processes: int, chunks: int) -> list[int]:
    """Return the stages that a process holds, first to last."""
    if SCHEDULES[name].placement == "v":
        return [process, 2 * processes - 1 - process]
    return [process + turn * processes for turn in range(chunks)]


def order_of(name: str, processes: int, microbatches: int, chunks: int) -> Order:
    """Return the work of all processes, without starting any."""
    if name == "simple":
        return [
            _all_forward_then_all_backward(process, microbatches) for process in range(processes)
        ]
    if name == "1f1b":
        return [
            _one_forward_one_backward(process, processes, microbatches)
            for process in range(processes)
        ]
    return _order_of_torch(SCHEDULES[name].torch_name, processes, microbatches, chunks)


def _all_forward_then_all_backward(process: int, microbatches: int) -> list[Action]:
    return [
        Action(kind, process, microbatch) for kind in "FB" for microbatch in range(microbatches)
    ]


def _one_forward_one_backward(process: int, processes: int, microbatches: int) -> list[Action]:
    """Return 1F1B: forwards until the first backward can have come back, then in turn, so that no further activations
    are held."""
    ahead = min(microbatches, processes - process)
    order = [Action("F", process, microbatch) for microbatch in range(ahead)]
    for microbatch in range(microbatches):
        order.append(Action("B", process, microbatch))
        if microbatch + ahead < microbatches:
            order.append(Action("F", process, microbatch + ahead))
    return order


def _order_of_torch(torch_name: str, processes: int, microbatches: int, chunks: int) -> Order:
    """Return the order that torch's class computes when it is made. The class reads only these numbers of its
    stages."""
    from torch.distributed.pipelining.schedules import get_schedule_class

    stage = SimpleNamespace(
        num_stages=processes * chunks, group_size=processes, group_rank=0, submod=None
    )
    planned = get_schedule_class(torch_name)([stage] * chunks, microbatches).pipeline_order
    return [
        [
            Action(KINDS[work.computation_type.name], work.stage_index, work.microbatch_index)
            for work in planned[rank]
            if work
        ]
        for rank in range(processes)
    ]


def simulate(order: Order, seconds: Callable[[Action], float]) -> list[list[Event]]:
    """Return when each action would run if sending took no time: as soon as its process and its input are ready."""
    # (is it a forward, stage, microbatch) to when its result is there
    done: dict[tuple[bool, int, int], float] = {}
    last_stage = max(action.stage for actions in order for action in actions)
    events: list[list[Event]] = [[] for _ in order]
    waiting = [iter(actions) for actions in order]
    upcoming = [next(actions, None) for actions in waiting]
    while any(upcoming):
        moved = False
        for process, action in enumerate(upcoming):
            if action is None or (ready := _input_ready(action, last_stage, done)) is None:
                continue
            start = max(ready, events[process][-1].end if events[process] else 0.0)
            end = start + seconds(action)
            events[process].append(Event(action, start, end))
            if action.kind != "W":
                done[action.kind == "F", action.stage, action.microbatch] = end
            upcoming[process], moved = next(waiting[process], None), True
        assert moved, "every process waits for another one"
    return events


def _input_ready(
    action: Action, last_stage: int, done: dict[tuple[bool, int, int], float]
) -> float | None:
    """Return when the input of an action is ready; None while it has not been computed."""
    if action.kind == "W" or (action.kind == "F" and action.stage == 0):
        return 0.0  # of its own process, or from the data
    if action.kind == "F":
        return done.get((True, action.stage - 1, action.microbatch))
    if action.stage == last_stage:
        return done.get((True, action.stage, action.microbatch))
    return done.get((False, action.stage + 1, action.microbatch))


def usual_seconds(chunks: int) -> Callable[[Action], float]:
    """Return usual durations: a forward of a whole process takes 1; gradients of inputs and of weights take 1 each.
    Stage 0 has no stage before it, and torch counts the whole of its backward as W."""
    usual = {"F": 1, "B": 2, "I": 1, "W": 1}
    first = {"F": 1, "B": 2, "I": 0, "W": 2}
    return lambda action: (usual if action.stage else first)[action.kind] / chunks


def bubble(events: list[list[Event]]) -> float:
    """Return the share of the processes' time, from the first start to the last end, in which they compute nothing."""
    everything = [event for of_process in events for event in of_process]
    whole = max(event.end for event in everything) - min(event.start for event in everything)
    return 1 - sum(event.end - event.start for event in everything) / (whole * len(events))


def most_held(order: Order) -> dict[int, int]:
    """Return, for each stage, the largest number of microbatches whose activations it holds, from forward to the end of
    backward."""
    most: dict[int, int] = {}
    for actions in order:
        held: dict[int, int] = {}
        for action in actions:
            held[action.stage] = held.get(action.stage, 0) + _KEPT[action.kind]
            most[action.stage] = max(held[action.stage], most.get(action.stage, 0))
    return most


def most_held_by_a_process(order: Order, chunks: int) -> float:
    """Return, for each process, the largest number of microbatches whose activations all its stages hold at one moment.
    A microbatch held by all stages of the process counts 1.
    """
    return (
        max(max(accumulate(_KEPT[action.kind] for action in actions)) for actions in order) / chunks
    )


_KEPT = {"F": 1, "I": 0, "B": -1, "W": -1}
