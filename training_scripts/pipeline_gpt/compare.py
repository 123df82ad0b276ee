"""Compare the gradients of one batch, in every schedule and every grid of these processes, with those of one process.

Comparing losses is not enough: AdamW and clipping hide a factor, and the first loss does not depend on gradients.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from balance import Cost, choose
from gpt import GPT, Shape, read_text, starts_at, windows_at
from layouts import part_of
from optimizing import copies_of, part_here
from pipeline import Alone, Pipeline, Replicas, check, make_stages, take_place
from schedules import SCHEDULES, chunks_of, most_held, order_of

from cloudtrain.runtime import SetupError

OF_SCHEDULES: dict[str, dict[str, Any]] = {name: {"schedule": name} for name in SCHEDULES}
"""Rows for schedules; every process is a stage."""

SPLIT = ("interleaved", "zero-bubble", "zero-bubble-v")
OF_GRIDS: dict[str, dict[str, Any]] = {
    "bf16": {"precision": "bf16"},
    "replicas": {"replicas": 2},
    "fsdp": {"shards": 2},
    **{f"fsdp, {name}": {"shards": 2, "schedule": name} for name in SPLIT},
    "fsdp, bf16": {"shards": 2, "precision": "bf16"},
    "tp": {"tensor": 2},
    **{f"tp, {name}": {"tensor": 2, "schedule": name} for name in SPLIT},
    "replicas x fsdp": {"replicas": 2, "shards": 2},
    "replicas x tp": {"replicas": 2, "tensor": 2},
    "fsdp x tp": {"shards": 2, "tensor": 2},
    **{f"fsdp x tp, {name}": {"shards": 2, "tensor": 2, "schedule": name} for name in SPLIT},
    "fsdp x tp, bf16": {"shards": 2, "tensor": 2, "precision": "bf16"},
    "replicas x fsdp x tp": {"replicas": 2, "shards": 2, "tensor": 2},
}
"""Rows for grids: their differences from one replica in stages under 1F1B, in fp32."""


def say(text: str) -> None:
    """Print a text on one process."""
    if dist.get_rank() == 0:
        print(text, flush=True)


def compare(
    config: Any, device: torch.device, rows: dict[str, dict[str, Any]] = OF_SCHEDULES
) -> None:
    """Print one line for each row that these processes can form. The model is small, the comparison is not."""
    world = dist.get_world_size()
    torch.manual_seed(config.seed)
    shape = Shape(
        layers=2 * world if rows is OF_SCHEDULES else max(4, world), heads=4, width=32, context=32
    )
    text = read_text()
    starts = starts_at(0, count=4 * world, text=text, context=shape.context, seed=config.seed)
    whole_model = GPT(shape)
    whole_model.reset_parameters(config.seed)
    whole_model.to(device)
    loss = Alone(whole_model, 2 * world).step(
        *(part.to(device) for part in windows_at(text, starts, shape.context))
    )
    expected = {name: parameter.grad for name, parameter in whole_model.named_parameters()}
    norm = (
        torch.stack([g.square().sum() for g in expected.values() if g is not None])
        .sum()
        .sqrt()
        .item()
    )

    say(
        f"\ngradients of {world} processes against a single process, with the same {len(starts)} windows"
    )
    say(
        f"{'layout':<24} {'replicas x shards x stages x tensor':>35} {'loss':>9} {'difference':>11} {'gradients':>11}"
    )
    refused = []
    for name, changes in rows.items():
        row = {
            "replicas": 1,
            "shards": 1,
            "tensor": 1,
            "schedule": "1f1b",
            "precision": "fp32",
            **changes,
        }
        stages = world // (row["replicas"] * row["shards"] * row["tensor"])
        if stages == 1 and row["schedule"] != "1f1b":
            continue  # one stage has no schedule
        arranged = SimpleNamespace(
            **row, chunks=config.chunks, placement=config.placement, layers=shape.layers, heads=shape.heads,
            width=shape.width, context=shape.context,
            vocabulary=shape.vocabulary, global_batch=len(starts), microbatches=2 * max(1, stages),
        )  # fmt: skip
        try:
            check(arranged, world)
        except SetupError as error:
            refused.append(f"{name}: {error.message}")
            continue
        found, difference = gradients_of(
            arranged, shape, text, starts, expected, config.seed, device
        )
        grid = f"{row['replicas']} x {row['shards']} x {stages} x {row['tensor']}"
        say(
            f"{name:<24} {grid:>35} {found:>9.6f} {abs(found - loss.item()):>11.1e} {difference / norm:>11.1e}"
        )
    say("\n".join(["gradients: the norm of the difference, as a share of the norm", *refused]))


def gradients_of(
    row: Any,
    shape: Shape,
    text: Any,
    starts: Any,
    expected: dict[str, Any],
    seed: int,
    device: torch.device,
) -> tuple[float, float]:
    """Return the batch's loss in a layout, and the norm of the gradients' difference over the whole model."""
    place = take_place(row, device)
    mine = starts.chunk(place.shares)[place.share]
    inputs, following = (part.to(device) for part in windows_at(text, mine, shape.context))
    chunks = chunks_of(row.schedule, row.chunks)
    if place.processes > 1:
        held = most_held(order_of(row.schedule, place.processes, row.microbatches, chunks))
        split = choose(
            [Cost("", 1, 0, 1.0)] * shape.block_count, place.processes * chunks, held, "blocks"
        )
        modules = make_stages(shape, split, row.schedule, chunks, seed, place, row.precision)
        run: Any = Pipeline(modules, row.schedule, chunks, row.microbatches, place)
    else:
        modules = make_stages(
            shape, [range(shape.block_count)], "simple", 1, seed, place, row.precision
        )
        run = Alone(modules[0], row.microbatches, place)
    replicas = Replicas(modules, place, row.microbatches, overlaps="zero" not in row.schedule)
    loss = run.step(inputs, following)
    replicas.wait()
    squares, count = torch.zeros((), device=device), torch.zeros((), device=device)
    for module in modules.values():
        for name, parameter in module.named_parameters():
            gradient: Any = parameter.grad
            right = (
                part_of(expected[name], gradient)
                if hasattr(gradient, "placements")
                else expected[name]
            )
            squares += (part_here(gradient) - right).square().sum() / copies_of(parameter)
            count += 1
    dist.all_reduce(loss)
    dist.all_reduce(squares, group=place.model)
    dist.all_reduce(squares, op=dist.ReduceOp.MAX)  # the worst replica
    dist.all_reduce(count, group=place.pipeline)
    assert int(count) == len(expected), "a parameter is in no stage, or in two"
    return loss.item() / (place.shares * place.tensor), squares.sqrt().item()
