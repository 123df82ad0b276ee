"""Measure or plan the memory of the training step of gpt_fsdp: `held.py run|plan|extrapolate ROWS`, rows of options as JSON.

Measured is what the kernel gave to the process at most (VmHWM), where the C library returns each freed tensor at once
(MALLOC_MMAP_THRESHOLD_). It prints MiB for each row on rank 0.
"""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

SCRIPTS = Path(__file__).parents[3] / "training_scripts"
sys.path[:0] = [str(SCRIPTS / "gpt_fsdp"), str(SCRIPTS / "pipeline_gpt"), str(SCRIPTS.parent)]

import torch  # noqa: E402, TID253
import torch.distributed as dist  # noqa: E402, TID253
from layouts import Spread, grid_of  # noqa: E402
from optimizing import Guard, make_adamw  # noqa: E402
from plan import counted, extrapolated  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402, TID253

from cloudtrain import runtime  # noqa: E402

USUAL: dict[str, Any] = {
    "family": "llama", "layers": 4, "heads": 4, "width": 320, "context": 32, "vocabulary": 512,
    "replicas": 2, "tensor": 2, "global_batch": 8, "accumulate": 2, "sync_each_part": True,
    "logits_at_once": 0, "precision": "fp32", "recompute": "none", "reshard": True, "compile": False,
    "skip_spikes": 0.0, "seed": 1, "weight_decay": 0.1, "beta1": 0.9, "beta2": 0.95,
    "learning_rate": 1e-3, "clip": 1.0,
}  # fmt: skip

TINY = {"width": 32, "layers": 1}


def train(config: Any, world: int) -> None:
    """Make three steps: the first one makes the optimizer's state, and DistributedDataParallel lays its buckets out
    anew before the third."""
    grid = grid_of(config, world)
    spread = Spread(config, grid, torch.device("cpu"))
    optimizer = make_adamw(spread.model.parameters(), config)
    guard = Guard(config.precision, config.skip_spikes)
    tokens = torch.ones(config.global_batch // grid.data, config.context, dtype=torch.long)
    for number in (1, 2, 3):
        spread.take_step(optimizer, guard, (tokens, tokens), number)


def kernel_says(name: str) -> int:
    """Return KiB of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


def measured(config: Any, world: int) -> float:
    """Return the most MiB that training takes, beside what it takes for a tiny model: modules and threads."""
    train(SimpleNamespace(**vars(config) | TINY), world)
    gc.collect()
    before = kernel_says("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    train(config, world)
    return (kernel_says("VmHWM") - before) / 2**10


rows = [SimpleNamespace(**USUAL | row) for row in json.loads(sys.argv[2])]
torch.set_num_threads(1)
if sys.argv[1] == "run":
    group = runtime.init_process_group("gloo")
    for config in rows:
        mib = measured(config, group.world_size)
        if group.is_main:
            print(mib, flush=True)
else:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    for config in rows:
        grid = grid_of(config, 2)
        is_exact = sys.argv[1] == "plan"
        most = counted(config, grid, config.layers) if is_exact else extrapolated(config, grid)
        print(most / 2**20)
runtime.destroy_process_group()
