"""DeepSpeed's configuration for one run: ds_config.json, completed by stage, batch, schedule and device.

The table shows what the four ZeRO stages divide among N processes (P: every process holds all of it), and the bytes per
parameter with Adam. In bf16 the optimizer keeps the weights in fp32 beside its two moments:

    stage  weights  gradients  optimizer    bytes in fp32    in bf16
    0      P        P          P            16               16
    1      P        P          / N          8 + 8 / N        4 + 12 / N
    2      P        / N        / N          4 + 12 / N       2 + 14 / N
    3      / N      / N        / N          16 / N           16 / N
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

STAGES = (0, 1, 2, 3)
FROM_STAGE = {"gradients": 2, "weights": 3, "optimizer": 1}
"""The stage from which on each part is divided among the processes."""

BYTES = {
    False: {"weights": 4, "gradients": 4, "optimizer": 8},
    True: {"weights": 2, "gradients": 2, "optimizer": 12},
}
"""Bytes of one parameter with Adam, by whether the computing uses bf16."""


def read_settings(path: Path) -> dict[str, Any]:
    """Return the configuration file's content."""
    settings: dict[str, Any] = json.loads(path.read_text())
    return settings


def count_writers(parts: Path) -> int:
    """Return the number of processes that wrote a checkpoint of DeepSpeed into the folder `parts`; 0 if nothing in it
    is divided among processes, as at stage 0.
    """
    return len(list(parts.glob("*zero_pp_rank_*_optim_states.pt")))


def settings_for(
    base: dict[str, Any],
    *,
    stage: int,
    global_batch: int,
    processes: int,
    accumulate: int,
    learning_rate: float,
    steps: int,
    warmup_steps: int,
    bf16: bool,
) -> dict[str, Any]:
    """Return the configuration of one run; `base` is not changed.

    Raises:
        ValueError: the batch cannot be divided evenly, as DeepSpeed's averages require, or the stage does not exist.
    """
    if stage not in STAGES:
        raise ValueError(f"there is no ZeRO stage {stage}: it is one of 0, 1, 2, 3")
    if global_batch % (processes * accumulate):
        raise ValueError(
            f"{global_batch} images cannot be divided by {processes} processes x {accumulate} parts"
        )
    settings = copy.deepcopy(base)
    settings["train_batch_size"] = global_batch
    settings["train_micro_batch_size_per_gpu"] = global_batch // processes // accumulate
    settings["gradient_accumulation_steps"] = accumulate
    settings["zero_optimization"]["stage"] = stage
    settings["optimizer"]["params"]["lr"] = learning_rate
    settings["scheduler"]["params"] |= {"total_num_steps": steps, "warmup_num_steps": warmup_steps}
    settings["bf16"] = {"enabled": bf16}
    return settings


def bytes_per_parameter(stage: int, processes: int, bf16: bool = False) -> float:
    """Return the bytes that one process holds for each parameter of the model, without activations and buffers."""
    return sum(
        size / (processes if stage >= FROM_STAGE[part] else 1) for part, size in BYTES[bf16].items()
    )
