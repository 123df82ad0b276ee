"""Compute the memory of each process of a large job, in one process without a GPU.

The `fake` process group stands for all processes, and the meta device has shapes without memory. The same code as in
training arranges the model, so a layout that does not fit fails here. A step on fake tensors, which have no memory
either, shows the peak with activations and gathered parameters, as torch's memory trackers count it. Its growth with
the number of layers is linear, so that a few layers are enough.
"""

from __future__ import annotations

from copy import copy
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from compare import LiveTensors
from gpt import Shape, parameters_of
from layouts import SHARDED, Grid, Spread, arrange, grid_of, make_mesh, shape_of
from optimizing import Guard, make_adamw
from torch._subclasses.fake_tensor import FakeTensorMode

BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}


def print_plan(config: Any) -> None:
    """Print the plan of rank 0, which holds as much as any other process."""
    grid = grid_of(config, config.world)
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=config.world)
    shape = shape_of(config)
    config.compile = False  # nothing will run
    mesh = make_mesh(grid, torch.device("cpu"))
    model = arrange(shape, config, grid, mesh)
    print("\n".join([*shapes(model, shape), "", *memory(model, config, grid)]), flush=True)
    print("\n".join(step_peak(config, grid)))
    dist.destroy_process_group()


def shapes(model: Any, shape: Shape) -> list[str]:
    """Return the parameters of the first and the last block, and of one layer, because all layers are alike."""
    blocks = model.parameters_by_block()
    shown = [name for index in (0, 1, shape.block_count - 1) for name in blocks[index]]
    lines = [f"{'parameter':<45} {'whole':>16} {'on a process':>16}   cut along"]
    for name, parameter in model.named_parameters():
        if name in shown:
            local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
            lines.append(
                f"{name:<45} {_size(parameter.shape):>16} {_size(local.shape):>16}   {_cuts(parameter)}"
            )
    return lines


def memory(model: Any, config: Any, grid: Grid) -> list[str]:
    """Return the memory that a process holds between two steps, in GiB."""
    held = sum(_local(parameter) for parameter in model.parameters())
    everything = parameters_of([model])
    largest = max(
        sum(_unsharded(p, grid) for p in named.values())
        for named in model.parameters_by_block().values()
    )
    tokens = config.global_batch * config.context // grid.data // config.accumulate
    rows = {
        "parameters, fp32": 4 * held,
        "gradients, fp32": 4 * held,
        "AdamW's two moments, fp32": 8 * held,
    }
    lines = [
        f"{config.world} processes: replicate {grid.replicate} x shard {grid.shard} x tensor {grid.tensor}; "
        f"{everything:,} parameters, {held:,} on a process; {tokens:,} tokens at once",
        f"{'on each process':<45} {'GiB':>9} {'in one process':>16}",
        *(
            f"{name:<45} {size / 2**30:>9.3f} {size / held * everything / 2**30:>16.3f}"
            for name, size in rows.items()
        ),
        f"{'all that stays':<45} {16 * held / 2**30:>9.3f} {16 * everything / 2**30:>16.3f}",
    ]
    if grid.shard > 1:
        gathered = BYTES[config.precision] * largest
        lines.append(
            f"{'the largest block, gathered, ' + config.precision:<45} {gathered / 2**30:>9.3f}"
        )
    return lines


FEW = (3, 6)
"""Numbers of layers, from which the peak of more follows."""

COUNTED_OF_MEASURED = 0.83
"""The least share of what torchtitan measured (Llama 3.1 8B, FSDP, on 8 and 128 H100) that such a count had."""


def step_peak(config: Any, grid: Grid) -> list[str]:
    """Return the peak memory of a step, in GiB, and what it does not count."""
    peak = extrapolated(config, grid)
    lines = [
        f"{'the most at once in a step, with activations':<45} {peak / 2**30:>9.3f}",
        f"{'with gaps, CUDA and NCCL, on a GPU up to':<45} {peak / COUNTED_OF_MEASURED / 2**30:>9.3f}",
        "such a count was 17% and 13% below what torchtitan measured on 8 and 128 H100 (Llama 3.1 8B, FSDP)",
    ]
    if config.layout in SHARDED and config.accumulate > 1 and not config.sync_each_part:
        lines.append(
            "`--sync_each_part False` holds 4 bytes for every parameter until the last part: without it, less memory"
        )
    return lines


def extrapolated(config: Any, grid: Grid) -> float:
    """Return the most bytes at once in a step, from the steps of models with few layers."""
    if config.layers <= FEW[1]:
        return counted(config, grid, config.layers)
    fewer = counted(config, grid, FEW[0])
    more = counted(config, grid, FEW[1])
    return more + (config.layers - FEW[1]) * (more - fewer) / (FEW[1] - FEW[0])


def counted(config: Any, grid: Grid, layers: int) -> float:
    """Return the most bytes at once in the training's own step on fake tensors. There are two steps, because the first
    one makes the optimizer's state."""
    config = copy(config)
    config.layers = layers
    # a third part finds the gradients of a second one
    rows = config.global_batch // grid.data // config.accumulate
    config.accumulate = min(2, config.accumulate)
    spread = Spread(config, grid, torch.device("cpu"), is_plan=True)
    with FakeTensorMode(allow_non_fake_inputs=True), LiveTensors(of_fakes=True) as live:
        spread.make_room()
        optimizer = make_adamw(spread.model.parameters(), config)
        guard = Guard("fp32", spikes=0.0)  # others read the norm, which is not computed
        tokens = torch.zeros(rows * config.accumulate, config.context, dtype=torch.long)
        buckets = buckets_of(spread)
        for _ in range(2):
            # DTensor's trials of operations, which it makes once, count until here
            live.most = 0
            # with parts, gradients are copied into the buckets only after the last one
            if config.accumulate == 1:
                for parameter, bucket in buckets:
                    parameter.grad = bucket
            spread.take_step(optimizer, guard, (tokens, tokens), 1)
    return float(live.most)


def buckets_of(spread: Spread) -> list[tuple[torch.nn.Parameter, torch.Tensor]]:
    """Return each parameter with its part of DistributedDataParallel's buckets, which stay in memory."""
    if not spread.is_replicated:
        return []
    return [(parameter, torch.zeros_like(parameter)) for parameter in spread.model.parameters()]


def _local(parameter: Any) -> int:
    return int((parameter.to_local() if hasattr(parameter, "to_local") else parameter).numel())


def _unsharded(parameter: Any, grid: Grid) -> int:
    """Return the part of a parameter that a process holds while it computes: the whole parameter, or its
    tensor-parallel part.
    """
    is_cut = "tensor" in _cuts(parameter).split(", ")
    return int(parameter.numel()) // (grid.tensor if is_cut else 1)


def _cuts(parameter: Any) -> str:
    """Return the axes of the grid that divide a parameter."""
    if not hasattr(parameter, "placements"):
        return "-"
    names = parameter.device_mesh.mesh_dim_names
    axes = [
        name
        for name, placed in zip(names, parameter.placements, strict=True)
        if not placed.is_replicate()
    ]
    return ", ".join(axes) or "-"


def _size(size: Any) -> str:
    return " x ".join(map(str, size)) if prod(size) else "nothing"
