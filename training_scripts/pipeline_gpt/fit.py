"""Compute the memory of each process of a large job, in one process without a GPU.

Blocks run with fake tensors, which have shapes but no memory, so the activations are those that autograd really keeps.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from balance import Cost, choose, cut_of, profile, stage_bytes, table
from gpt import Shape, flops_per_token, loss_of, slices_of
from layouts import ease, shape_of
from pipeline import check
from schedules import chunks_of, most_held, order_of, stages_of

FLOPS = 0.4 * 989e12
"""FLOP/s of one process: 40% of an H100's bf16."""


def print_fit(config: Any) -> None:
    """Print the stages of one pipeline, and the memory of the process that holds most."""
    check(config, config.world)
    config.compile = False  # nothing will run
    shape = shape_of(config)
    processes = config.world // (config.replicas * config.shards * config.tensor)
    chunks = chunks_of(config.schedule, config.chunks) if processes > 1 else 1
    costs, cut = costs_of(config, shape), cut_of(config)
    held = (
        most_held(order_of(config.schedule, processes, config.microbatches, chunks))
        if processes > 1
        else {0: 1}
    )
    chosen = choose(costs, processes * chunks, held, config.balance, cut)
    holders = {
        stage: p
        for p in range(processes)
        for stage in stages_of(config.schedule, p, processes, chunks)
    }
    grid = f"replicas {config.replicas} x shards {config.shards} x stages {processes} x tensor {config.tensor}"
    print(
        f"{config.world} processes: {grid}; {chunks} of {processes * chunks} stages on each; {config.precision}"
    )
    print(table(costs, chosen, held, holders, cut))
    filled = [0.0] * processes
    for stage, blocks in enumerate(chosen):
        filled[holders[stage]] += stage_bytes(costs, blocks, held[stage], cut)
    fullest = max(filled)
    print(f"{sum(cost.parameters for cost in costs):,} parameters; the fullest process is {filled.index(fullest)} "
          f"with {fullest / 2**30:.1f} GiB, beside what kernels and messages need")  # fmt: skip


def costs_of(config: Any, shape: Shape) -> list[Cost]:
    """Return the costs of all blocks at the size of a microbatch. FSDP2 computes in bf16 throughout, autocast in matrix
    products."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    windows = config.global_batch // (config.replicas * config.shards * config.microbatches)
    is_bf16, before = config.precision == "bf16", torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16 if is_bf16 and config.shards > 1 else before)
    try:
        with (
            FakeTensorMode(),
            torch.autocast("cpu", torch.bfloat16, enabled=is_bf16 and config.shards == 1),
        ):
            tokens = torch.zeros(windows, shape.context, dtype=torch.long)
            blocks = slices_of(shape)
            # what selective recomputation keeps, autograd does not show: count all
            if config.recompute == "full":
                ease(blocks[1], config)
            found = profile(blocks, tokens, loss_of, repeat=1)
    finally:
        torch.set_default_dtype(before)
    of_head = 6 * shape.width * shape.vocabulary
    of_layer = (flops_per_token(shape) - of_head) / shape.layers
    seconds = (
        flops * windows * shape.context / FLOPS / config.tensor for flops in (0, of_layer, of_head)
    )
    first, layer, last = (
        replace(cost, seconds=each) for cost, each in zip(found, seconds, strict=True)
    )
    return [first, *[layer] * shape.layers, last]
