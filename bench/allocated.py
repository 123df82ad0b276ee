"""Run a script really, for a few steps of its optimizer, and write the most bytes that PyTorch's CPU allocator held.

    python bench/allocated.py RESULT STEPS SCRIPT [ARGUMENTS]

The allocator's own profiler counts, which sees every allocation, also those inside of an operation. Blocks that gloo
takes for itself are left out: it copies what it scatters and gathers, and frees the copy when its thread gets to it.
NCCL, for which it stands in, does not. What a CPU's kernels of convolutions take and give back within one operation is
written beside the rest: those of a GPU take other workspaces.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from torch.autograd.profiler import profile
from torch.optim.optimizer import register_optimizer_step_post_hook

_OF_GLOO = ("c10d::", "gloo:")
_CONVOLUTION = "convolution"


class Enough(BaseException):
    """The optimizer has stepped often enough."""


class Block(NamedTuple):
    """Memory that was taken (its size is positive) or given back."""

    time: int
    address: int
    size: int
    is_of_gloo: bool
    is_workspace: bool
    """Whether an operation has taken it and given it back."""


def _given_back(event: Any) -> set[int]:
    """Return the addresses that are given back while an operation runs."""
    addresses = set()
    fields = event.extra_fields
    if hasattr(fields, "alloc_size") and fields.alloc_size < 0:
        addresses.add(fields.ptr)
    for child in event.children:
        addresses |= _given_back(child)
    return addresses


def blocks(recorded: profile) -> Iterator[Block]:
    """Yield all blocks of the CPU that the profiler has seen."""
    tree: list[tuple[Any, bool, set[int]]] = []
    for event in recorded.kineto_results.experimental_event_tree():
        tree.append((event, False, set()))
    while tree:
        event, is_of_gloo, workspace = tree.pop()
        fields = event.extra_fields
        if hasattr(fields, "alloc_size") and fields.device.type == "cpu":
            is_workspace = fields.ptr in workspace
            time = event.start_time_ns
            yield Block(time, fields.ptr, fields.alloc_size, is_of_gloo, is_workspace)
        is_of_gloo = is_of_gloo or event.name.startswith(_OF_GLOO)
        if not workspace and _CONVOLUTION in event.name:
            workspace = _given_back(event)
        for child in event.children:
            tree.append((child, is_of_gloo, workspace))


def most_held(recorded: profile, *, with_workspaces: bool) -> int:
    """Return the most bytes that the script held at once."""
    held: dict[int, int] = {}
    now = 0
    most = 0
    for block in sorted(blocks(recorded)):
        if block.size < 0:
            now -= held.pop(block.address, 0)
        elif not block.is_of_gloo and (with_workspaces or not block.is_workspace):
            held[block.address] = block.size
            now += block.size
            most = max(most, now)
    return most


def main() -> None:
    """Run the script, and write the bytes."""
    result, steps, script, *arguments = sys.argv[1:]
    taken: dict[int, int] = {}

    def count(optimizer: object, *_: object) -> None:
        taken[id(optimizer)] = taken.get(id(optimizer), 0) + 1
        if taken[id(optimizer)] >= int(steps):
            raise Enough

    register_optimizer_step_post_hook(count)
    sys.argv = [script, *arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    recorded = profile(use_cpu=True, profile_memory=True)
    recorded.__enter__()
    with contextlib.suppress(Enough):
        runpy.run_path(script, run_name="__main__")
    recorded.__exit__(None, None, None)
    with open(result, "w") as file:
        json.dump({
            "peak": most_held(recorded, with_workspaces=False),
            "whole": most_held(recorded, with_workspaces=True),
            "steps": max(taken.values(), default=0),
        }, file)  # fmt: skip
    os._exit(0)


if __name__ == "__main__":
    main()
