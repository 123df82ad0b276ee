"""Compute the memory of each process of a large job, in one process without a GPU.

The `fake` process group stands for all processes, and the meta device has shapes without memory. The same code as in
training arranges the model, so a layout that does not fit fails here. A step on fake tensors, which have no memory
either, shows the peak with activations and gathered parameters, as torch's memory trackers count it. Its growth with
the number of layers is linear, so that a few layers are enough.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from gpt import Shape, loss_sum, parameters_of
from layouts import PRECISIONS, SHARDED, Grid, arrange, grid_of, make_mesh, shape_of

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
    print("\n".join(step_peak(shape, config, grid, mesh)))
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


FEW = (4, 8)
"""Numbers of layers, from which the peak of more follows."""


def step_peak(shape: Shape, config: Any, grid: Grid, mesh: Any) -> list[str]:
    """Return the peak memory of a step, in GiB, and what it does not count."""
    if grid.tensor > 1:
        return ["not counted: activations, because torch's trackers do not know tensor parallelism"]
    peak = extrapolated(shape, config, grid, mesh)
    left_out = "CUDA, NCCL, gaps between the allocator's blocks" + ", gathered keys and values" * (
        grid.context > 1
    )
    return [
        f"{'the most at once in a step, with activations':<45} {peak / 2**30:>9.3f}",
        f"not counted: {left_out}",
        "such a count was 17% and 13% below what torchtitan measured on 8 and 128 H100 (Llama 3.1 8B, FSDP)",
    ]


def extrapolated(shape: Shape, config: Any, grid: Grid, mesh: Any) -> float:
    """Return the most bytes at once in a step, from the steps of models with few layers."""
    if shape.layers <= FEW[1]:
        return tracked(shape, config, grid, mesh)
    fewer, more = (tracked(replace(shape, layers=count), config, grid, mesh) for count in FEW)
    return more + (shape.layers - FEW[1]) * (more - fewer) / (FEW[1] - FEW[0])


def tracked(shape: Shape, config: Any, grid: Grid, mesh: Any) -> float:
    """Return the most bytes at once in a step, when the optimizer has its state. The optimizer updates one parameter
    after the other, because trackers count the temporary lists of faster ones as state."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    rows, length = (
        config.global_batch // grid.data // config.accumulate,
        shape.context // grid.context,
    )
    is_sharded, kind = config.layout in SHARDED, PRECISIONS[config.precision]
    with FakeTensorMode():
        model = arrange(shape, config, grid, mesh, device="cpu")
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        tokens = torch.zeros(rows, length, dtype=torch.long)
        tracker = _tracker(model, optimizer, tokens, is_sharded)
        with tracker:
            for step in range(2):  # the first one makes the optimizer's state
                with torch.autocast(
                    "cpu", kind or torch.bfloat16, enabled=kind is not None and not is_sharded
                ):
                    parts = (
                        {"following": tokens, "at_once": config.logits_at_once}
                        if config.logits_at_once
                        else {}
                    )
                    found = model(tokens, **parts)
                loss = found if parts else loss_sum(found, tokens)
                (loss / tokens.numel()).backward()
                del found, loss
                optimizer.step()
                optimizer.zero_grad()
                if step == 0:
                    tracker.reset_mod_stats()
    (snapshot,) = tracker.get_tracker_snapshot("peak").values()
    return float(snapshot["Total"])


def _tracker(model: Any, optimizer: Any, tokens: torch.Tensor, is_sharded: bool) -> Any:
    if is_sharded:
        from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker

        sharded = FSDPMemTracker(model, optimizer)
        sharded.track_inputs((tokens,))
        return sharded
    from torch.distributed._tools.mem_tracker import MemTracker

    plain = MemTracker()
    plain.track_external(model, optimizer, tokens)
    return plain


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
