"""The estimates of jobs, kept on this machine for the checks of their submissions.

An estimate belongs to the code and to all numbers that the script gets. If one of them changes, the
job has no estimate.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from cloudtrain.estimate.devices import holders
from cloudtrain.job.training import TrainingJob
from cloudtrain.machines.table import InstanceType
from cloudtrain.runtime.atomic import write_file
from cloudtrain.system.private import make_private_folder

FOLDER = "estimates"
"""The folder of the estimates in the state folder."""


def estimate_key(job: TrainingJob, code: str, ranks: int) -> str:
    """Return the name of a job's estimate. `code`: the hash of its code."""
    content = {
        "code": code,
        "ranks": ranks,
        "entry_point": job.entry_point,
        "command": job.command,
        "arguments": list(job.arguments),
        "hyperparameters": job.hyperparameters,
        "variables": dict(job.environment.variables),
    }
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class Estimate(NamedTuple):
    """What a rank of a job needs, in bytes, and the part of the model at the peak."""

    least: float
    most: float
    place: str


def keep(folder: Path, key: str, estimate: Estimate) -> None:
    """Write an estimate into the folder of all estimates."""
    make_private_folder(folder)
    write_file(folder / f"{key}.json", json.dumps(estimate._asdict()).encode())


def kept(folder: Path, key: str) -> Estimate | None:
    """Return the estimate of a job; None if the folder has none that can be read."""
    with suppress(OSError, ValueError, TypeError):
        return Estimate(**json.loads((folder / f"{key}.json").read_text("utf-8")))
    return None


_GIB = 2**30


def shortage(
    folder: Path, job: TrainingJob, code: str, row: InstanceType, ranks: Sequence[int]
) -> tuple[str, str] | None:
    """Return the message and the hint for a job whose estimate needs more memory than the GPUs of
    its instance type have; None without an estimate, or if it may fit. `ranks`: of each
    instance."""
    estimate = kept(folder, estimate_key(job, code, sum(ranks)))
    memory = row.gpu_memory_gib
    if estimate is None or not row.gpus or estimate.least <= memory * _GIB:
        return None

    need = f"{estimate.least / _GIB:.1f} GiB"
    message = f"a rank needs at least {need}, and a GPU of `{row.name}` has {memory:g}"
    if estimate.place:
        message += f"; the peak is at `{estimate.place}`"
    hint = "use a smaller batch, recompute activations, or share the states among more ranks"
    enough = holders(row.target, estimate.most, max(ranks))
    if enough:
        cheapest = enough[0]
        hint = f"use `{cheapest.name}` ({cheapest.hardware}), the cheapest that holds it; or {hint}"
    return message, hint
