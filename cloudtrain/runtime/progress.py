"""The progress of a training. `report(step=10, total=460)` estimates the seconds left from the pace of this process. On
this machine, it also writes each rank's step into the run's folder.
"""

from __future__ import annotations

import contextlib
import time

from .directories import run_dir

STEPS = "steps"
"""The folder, inside a run on this machine, where each rank notes its newest step. Each file is named after its
rank."""

LEFT = "seconds_left"
"""The name of the added value."""

_began: list[tuple[float, float]] = []  # step and moment of the first report, which warm-up and compiling precede


def seconds_left(step: float, total: float) -> float | None:
    """Estimate the seconds left from the steps since the first report. Return None at the first report, because the
    pace is still unknown.
    """
    now = time.monotonic()
    if not _began or step < _began[0][0]:
        _began[:] = [(step, now)]
    first, moment = _began[0]
    if step <= first:
        return None
    return max(0.0, (total - step) * (now - moment) / (step - first))


def note_step(rank: int, step: float) -> None:
    """Write the rank's current step to a file in the run's folder. Errors, such as a full disk, are ignored so that
    training continues.
    """
    folder = run_dir()
    if folder is None:
        return
    with contextlib.suppress(OSError):
        folder = folder / STEPS
        folder.mkdir(mode=0o700, exist_ok=True)
        (folder / str(rank)).write_text(f"{step:.15g}\n")
