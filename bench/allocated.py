"""Run a script really, for a few steps of its optimizer, and write the most bytes that PyTorch's CPU allocator held.

    python bench/allocated.py RESULT STEPS SCRIPT [ARGUMENTS]

The allocator's own profiler counts, which sees every allocation, also those inside of an operation.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import sys

import torch
from torch.autograd.profiler import profile
from torch.optim.optimizer import register_optimizer_step_post_hook


class Enough(BaseException):
    """The optimizer has stepped often enough."""


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
    events = [event for event in recorded.kineto_results.events() if event.name() == "[memory]"]
    held = 0
    most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        if event.device_type() == torch.autograd.DeviceType.CPU:
            held += event.nbytes()
            most = max(most, held)
    with open(result, "w") as file:
        json.dump({"peak": most, "steps": max(taken.values(), default=0)}, file)
    os._exit(0)


if __name__ == "__main__":
    main()
