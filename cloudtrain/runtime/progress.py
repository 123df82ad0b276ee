"""How far a training is: `report(step=10, total=460)` adds how many seconds are left, from the pace of this process,
and notes the step of every rank in the folder of a run on this machine."""

from __future__ import annotations

import contextlib
import time

from .directories import run_dir

STEPS = "steps"
"""The folder of a run on this machine where each rank notes its newest step, in a file named by its number."""

LEFT = "seconds_left"
"""The name of the value that is added."""

_began: list[tuple[float, float]] = []  # step and moment of the first report, which warm-up and compiling precede


def seconds_left(step: float, total: float) -> float | None:
    """From the steps since the first report; None at the first one, when nothing is known."""
    now = time.monotonic()
    if not _began or step < _began[0][0]:
        _began[:] = [(step, now)]
    first, moment = _began[0]
    if step <= first:
        return None
    return max(0.0, (total - step) * (now - moment) / (step - first))


def note_step(rank: int, step: float) -> None:
    """Write down that this rank is at this step. A full disk stops no training."""
    folder = run_dir()
    if folder is None:
        return
    with contextlib.suppress(OSError):
        folder = folder / STEPS
        folder.mkdir(mode=0o700, exist_ok=True)
        (folder / str(rank)).write_text(f"{step:.15g}\n")
