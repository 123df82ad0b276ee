"""The experiments of `--measure`. They show that all schedules compute the same gradients, how large their bubbles are,
and how much time they save.

Sleeping stages show the schedules themselves: a sleeping process needs no core, so four processes on two cores wait for
each other exactly as four devices would. Computing stages show how much of the gain remains with real work.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from balance import Cost, choose, profile
from compare import compare, say
from gpt import GPT, Shape, loss_of, slices_of
from pipeline import Alone, Pipeline, Place, check_version, make_stages
from schedules import (
    SCHEDULES,
    Action,
    Event,
    bubble,
    chunks_of,
    most_held,
    most_held_by_a_process,
    order_of,
    simulate,
    stages_of,
    usual_seconds,
)
from timeline import as_text, draw
from torch import Tensor, nn

from cloudtrain import runtime


def measure(config: Any, device: torch.device) -> None:
    """Run all requested experiments, one after the other. Rank 0 prints the results."""
    if dist.get_world_size() < 2:
        raise runtime.SetupError(
            "one process has no pipeline", hint="`torchrun --nproc-per-node 4 train.py --measure`"
        )
    check_version(dist.get_world_size())
    torch.manual_seed(config.seed)
    experiments: dict[str, Callable[[Any, torch.device], None]] = {
        "exact": compare,
        "bubble": bubbles,
        "speed": speed,
    }
    for name in config.experiments:
        experiments[name](config, device)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Switch off the garbage collector, as `timeit` does, because it scans everything that torch has imported."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def place_of(processes: int, device: torch.device) -> Place | None:
    """Return one pipeline of the first `processes` ranks; None on the others. Every rank must call it."""
    group, peers = dist.new_group(list(range(processes))), dist.new_group([0])
    rank = dist.get_rank()
    return Place(1, processes, 0, rank, group, peers, device) if rank < processes else None


# Bubbles: stages that sleep.


class SleepForInputs(torch.autograd.Function):
    """Sleeps in forward, and again where the gradient of the input is computed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, stage: SleepingStage) -> Tensor:
        ctx.stage = stage
        time.sleep(stage.seconds)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        time.sleep(ctx.stage.seconds)
        return gradients[0], None


class SleepForWeights(torch.autograd.Function):
    """Sleeps where the gradient of the weight is computed."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, stage: SleepingStage) -> Tensor:
        ctx.stage = stage
        return weight.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        time.sleep(ctx.stage.seconds)
        return gradients[0], None


class SleepingStage(nn.Module):
    """A stage whose forward, gradient of inputs and gradient of weights each take `seconds`, and no computing."""

    def __init__(self, size: int = 8) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))
        self.seconds = 0.0

    def forward(self, x: Tensor) -> Tensor:
        # stage 0 has layers that pass gradients on, too
        x = x if x.requires_grad else x.detach().requires_grad_()
        return SleepForInputs.apply(x, self) + SleepForWeights.apply(self.weight, self)


@contextmanager
def recorded(stages: list[Any]) -> Iterator[list[Event]]:
    """Record the stages' actions inside the `with` block. All processes of a machine use the same clock."""
    events: list[Event] = []

    def timed(
        call: Callable[..., Any], stage: int, kind_of: Callable[[dict[str, Any]], str]
    ) -> Callable[..., Any]:
        def run(microbatch: int, *args: Any, **named: Any) -> Any:
            start = time.perf_counter()
            result = call(microbatch, *args, **named)
            events.append(
                Event(Action(kind_of(named), stage, microbatch), start, time.perf_counter())
            )
            return result

        return run

    kinds: dict[str, Callable[[dict[str, Any]], str]] = {
        "forward_one_chunk": lambda _: "F",
        "backward_one_chunk": lambda named: "B" if named.get("full_backward", True) else "I",
        "backward_weight_one_chunk": lambda _: "W",
    }
    for stage in stages:
        for method, kind_of in kinds.items():
            setattr(stage, method, timed(getattr(stage, method), stage.stage_index, kind_of))
    yield events
    for stage in stages:
        for method in kinds:
            delattr(stage, method)


def bubbles(config: Any, _: torch.device) -> None:
    """Measure each schedule with sleeping stages, at as many and at twice as many microbatches as processes."""
    place = place_of(dist.get_world_size(), torch.device("cpu"))
    assert place is not None
    drawn: dict[str, list[list[Event]]] = {}
    for microbatches in (place.processes, 2 * place.processes):
        say(
            f"\nbubbles of {place.processes} processes and {microbatches} microbatches, stages that sleep"
        )
        say(f"{'schedule':<15} {'formula':>8} {'ideal':>8} {'measured':>9} {'held at most':>13}")
        for name, row in SCHEDULES.items():
            chunks = chunks_of(name, config.chunks)
            order = order_of(name, place.processes, microbatches, chunks)
            runs = sleep_through(name, chunks, microbatches, config, place)
            closest = sorted(runs, key=bubble)[len(runs) // 2]
            assert [[event.action for event in events] for events in closest] == order, (
                "the plan is not what ran"
            )
            formula = (
                f"{row.formula(place.processes, microbatches, chunks):.3f}" if row.formula else "-"
            )
            ideal = bubble(simulate(order, usual_seconds(chunks)))
            held = most_held_by_a_process(order, chunks)
            say(f"{name:<15} {formula:>8} {ideal:>8.3f} {bubble(closest):>9.3f} {held:>13.1f}")
            drawn[f"{name}: {bubble(closest):.0%} bubble"] = closest
        if microbatches == place.processes:
            for title, events in drawn.items():
                say(f"\n{title}\n{as_text(events)}")
            drawn.clear()
    if dist.get_rank() == 0:
        path = runtime.output_dir("timeline") / "timeline.png"
        say(f"\nwrote {path}" if draw(path, drawn) else "\nno picture: matplotlib is not installed")


def sleep_through(
    name: str, chunks: int, microbatches: int, config: Any, place: Place
) -> list[list[list[Event]]]:
    """Return the events of all processes, for each repetition. A process's forward takes the same time with any
    schedule."""
    held = stages_of(name, place.process, place.processes, chunks)
    modules = {stage: SleepingStage() for stage in held}
    pipeline = Pipeline(
        dict(modules), name, chunks, microbatches, place, loss=lambda output, _: output.mean()
    )
    batch = torch.zeros(microbatches, 8)
    pipeline.step(batch, batch)  # meets the neighbours, without sleeping
    for module in modules.values():
        module.seconds = config.sleep / chunks
    runs = []
    for _ in range(config.repeat):
        with undisturbed():
            dist.barrier(place.pipeline)
            with recorded(pipeline.stages) as mine:
                pipeline.step(batch, batch)
        runs.append(all_of(mine, place))
    return runs


def all_of(mine: list[Event], place: Place) -> list[list[Event]]:
    """Return the events of all processes, on all processes."""
    everyone: list[Any] = [None] * place.processes
    dist.all_gather_object(everyone, [tuple(event) for event in mine], group=place.pipeline)
    return [
        [Event(Action(*action), start, end) for action, start, end in events] for events in everyone
    ]


# Speed: two stages on two processes against the whole model on one.


def speed(config: Any, device: torch.device) -> None:
    """Compare two stages in two processes with one process, both with the same microbatches of two windows of text
    each."""
    shape = Shape(config.layers, config.heads, 2 * config.width, config.context)
    place = place_of(2, device)
    costs: list[Any] = [None]
    if dist.get_rank() == 0:
        tokens = torch.randint(256, (2, shape.context), device=device)
        first, layer, last = profile([one.to(device) for one in slices_of(shape)], tokens, loss_of)
        costs = [[first, *[layer] * shape.layers, last]]
    dist.broadcast_object_list(costs, src=0)
    size = f"{shape.layers} layers, width {shape.width}, 2 windows per microbatch"
    say(f"\ntwo processes against one, milliseconds per step: {size}")
    say(
        f"{'microbatches':>12} {'one':>8} {'schedule':>14} {'two':>8} {'speed-up':>9} {'2m/(m+1)':>9} {'share':>6}"
    )
    for microbatches in (2, 4, 8, 16):
        for name in ("1f1b", "zero-bubble-v"):
            if place is not None:
                one, two = race(name, microbatches, shape, costs[0], config, place)
                best = 2 * microbatches / (microbatches + 1)
                say(
                    f"{microbatches:>12} {1e3 * one:>8.1f} {name:>14} {1e3 * two:>8.1f} {one / two:>9.2f} {best:>9.2f} "
                    f"{one / two / best:>6.0%}"
                )
    dist.barrier()


def race(
    name: str, microbatches: int, shape: Shape, costs: list[Cost], config: Any, place: Place
) -> tuple[float, float]:
    """Return seconds per step of one process and of two: medians of turns taken one after the other."""
    chunks = chunks_of(name, 1)
    held = most_held(order_of(name, 2, microbatches, chunks))
    modules = make_stages(
        shape, choose(costs, 2 * chunks, held, "time"), name, chunks, config.seed, place
    )
    pipeline = Pipeline(modules, name, chunks, microbatches, place)
    whole = GPT(shape)
    whole.reset_parameters(config.seed)
    alone = Alone(whole.to(place.device), microbatches)
    batch = torch.randint(256, (2 * microbatches, shape.context), device=place.device)
    turns: dict[str, list[float]] = {"one": [], "two": []}
    with undisturbed():
        for _ in range(2 * config.repeat + 1):
            if place.process == 0:
                turns["one"].append(timed_step(alone, batch))
            dist.barrier(place.pipeline)
            turns["two"].append(timed_step(pipeline, batch, place))
    return median(turns["one"][1:] or [0.0]), median(turns["two"][1:])


def timed_step(model: Alone | Pipeline, batch: Tensor, place: Place | None = None) -> float:
    """Return the seconds of a step until the last of its processes is done."""
    start = time.perf_counter()
    model.step(batch, batch)
    if batch.is_cuda:
        torch.cuda.synchronize()
    if place is not None:
        dist.barrier(place.pipeline)
    return time.perf_counter() - start
