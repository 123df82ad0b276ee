"""How far a training is: `report(step=10, total=460)` adds how many seconds are left, from the pace of this process."""

from __future__ import annotations

import time

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
