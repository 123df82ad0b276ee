"""Functions that the callbacks of Hugging Face and Lightning share."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from cloudtrain.runtime.environment import detect_environment
from cloudtrain.runtime.errors import SetupError
from cloudtrain.runtime.holding import VARIABLE as HOLD
from cloudtrain.runtime.metrics import report
from cloudtrain.runtime.stopping import leave_stops_to_the_parent

_QUIET = 10.0
"""Seconds without a metric line after which a step is reported, to show progress."""


class StepReports:
    """Prints the metric lines of a training loop, and between them lines that show progress."""

    def __init__(self) -> None:
        self._last = -math.inf

    def log(self, step: int, total: float, values: Mapping[str, Any]) -> None:
        """Report a step with the finite numbers among `values`. `total` is the number of the last
        step. In names, characters that a metric line does not allow are replaced."""
        self._last = time.monotonic()
        ordered: dict[str, Any] = dict.fromkeys(("step", "epoch", "total"))
        ordered.update(values, step=step)
        if 0 < total < math.inf:
            ordered["total"] = int(total)
        numbers: dict[str, int | float] = {}
        for name, value in ordered.items():
            number = _number(value)
            if number is not None:
                plain = re.sub(r"[^A-Za-z0-9_./-]", "_", name)
                numbers[re.sub("^(?![A-Za-z_])", "_", plain)] = number
        report(**numbers)

    def tick(self, step: int, total: float, values: Mapping[str, Any]) -> None:
        """Report the step if nothing was reported for a while. In a rehearsal run that pauses at a
        chosen step, report every step."""
        if time.monotonic() - self._last > _QUIET or os.environ.get(HOLD, "").isdecimal():
            self.log(step, total, values)


def require_all_processes(count: int, hint: str) -> None:
    """Check that the library uses all processes of the job. Otherwise, the processes would train
    separate models.

    Raises:
        SetupError: the library uses fewer processes (`count`) than the job has.
    """
    world_size = detect_environment().world_size
    if count < world_size:
        raise SetupError(
            f"the trainer uses {count} of the {world_size} processes of this job", hint=hint
        )


def spare_workers(loaders: Iterable[Any]) -> None:
    """Make the workers of data loaders ignore SIGTERM, which launchers send to the workers too."""
    for loader in loaders:
        inner = getattr(loader, "base_dataloader", loader)  # Accelerate's is a wrapper
        if getattr(inner, "num_workers", 0) and hasattr(inner, "worker_init_fn"):
            inner.worker_init_fn = _BothInits(inner.worker_init_fn)


class _BothInits:
    """A `worker_init_fn` that makes a worker ignore SIGTERM and then calls the script's own
    `worker_init_fn`. It is a class, so that it can be pickled for spawned workers."""

    def __init__(self, own: Any) -> None:
        self._own = own

    def __call__(self, worker: int) -> None:
        leave_stops_to_the_parent(worker)
        if self._own is not None:
            self._own(worker)


def _number(value: Any) -> int | float | None:
    item = getattr(value, "item", None)
    if callable(item):
        with suppress(RuntimeError, ValueError):  # a tensor of several numbers
            value = item()
    is_number = isinstance(value, (int, float)) and math.isfinite(value)
    return value if is_number else None
