"""Show how the model of a large job is divided among its processes, in one process without a GPU.

The `fake` process group stands for all processes, and the meta device has shapes without memory. The same code as in
training arranges the model, so a layout that does not fit fails here. What a step needs besides, `cloudtrain fit` says
of the job.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
import torch.distributed as dist
from gpt import Shape, parameters_of
from layouts import Grid, arrange, grid_of, make_mesh, shape_of

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
