"""Metric lines such as `[metrics] step=10 epoch=1 loss=0.25`. Rank 0 prints them for users,
services and cloudtrain."""

from __future__ import annotations

import contextlib
import math
import os
import re
import sys
import time
from typing import Any, SupportsFloat

from .errors import SetupError

PREFIX = "[metrics]"

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
_LINE = re.compile(re.escape(PREFIX) + r"((?: [A-Za-z_][A-Za-z0-9_./-]*=[^\s=]+)+)\s*$")


def report(**values: SupportsFloat) -> None:
    """Print one metric line on rank 0 and flush it. Values may be numbers, tensors with one element
    or numpy scalars.

    Call it on every rank, so that cloudtrain can show which rank of a run on this machine falls
    behind. If you pass `total`, the number of the last step, the line also has `seconds_left`.
    `cloudtrain status` shows `total` and `seconds_left` as progress.

    Raises:
        ValueError: a name has a character that a metric line does not allow, or there are no
            values.
    """
    from .environment import detect_environment

    environment = detect_environment()
    has_step = "step" in values
    if has_step and environment.world_size > 1 and "CLOUDTRAIN_RUN_DIR" in os.environ:
        note_step(environment.rank, float(values["step"]))
    if not environment.is_main:
        return
    if has_step and "total" in values:
        left = seconds_left(float(values["step"]), float(values["total"]))
        if left is not None:
            values[LEFT] = round(left, 1)
    if not has_step or "CLOUDTRAIN_HOLD_AT_STEP" not in os.environ:
        _write(values)
        return
    from .holding import hold_at

    with hold_at(float(values["step"])):
        _write(values)


def check_finite(step: float, **values: SupportsFloat) -> None:
    """Check that the training has not diverged. Call it on every rank with the same values, for
    example the norm of the gradient, before you save a checkpoint: otherwise checkpoints of a
    diverged training replace the good ones.

    Raises:
        SetupError: a value is infinite or not a number.
    """
    for name, value in values.items():
        if not math.isfinite(value):
            message = f"`{name}` is {float(value)} at step {step}: the training has diverged"
            hint = (
                "lower the learning rate, and run it again: it resumes from the newest checkpoint"
            )
            raise SetupError(message, hint=hint)


def _write(values: dict[str, SupportsFloat]) -> None:
    # one write, so that lines of other processes stay outside
    sys.stdout.write(format_metrics(values) + "\n")
    sys.stdout.flush()
    if os.environ.get("CLOUDTRAIN_SEND_METRICS") == "azureml":
        from .azureml_metrics import send

        send({name: float(value) for name, value in values.items()})


def format_metrics(values: dict[str, SupportsFloat]) -> str:
    """Return the metric line for `values`, in their order. Whole numbers are exact; other numbers
    have 7 digits, like float32.

    Raises:
        ValueError: a name has a character that a metric line does not allow, or `values` is empty.
    """
    for name in values:
        if not _NAME.fullmatch(name):
            message = f"`{name}` is not a name for a metric: use letters, digits and `_ . / -`"
            raise ValueError(message)
    if not values:
        raise ValueError("a metric line needs at least one value, for example `report(loss=0.25)`")
    words = [f"{name}={_text(value)}" for name, value in values.items()]
    return " ".join([PREFIX, *words])


def parse_metrics(line: str) -> dict[str, float] | None:
    """Return the values of a metric line, or None for any other line. A launcher's prefix before
    the metric line is skipped."""
    match = _LINE.search(line)
    if match is None:
        return None
    values: dict[str, float] = {}
    for pair in match[1].split():
        name, _, text = pair.partition("=")
        try:
            values[name] = float(text)
        except ValueError:
            return None
    return values


def _text(value: SupportsFloat) -> str:
    plain: Any = value
    item = getattr(value, "item", None)  # tensors and numpy scalars know whether they are whole
    if callable(item):
        plain = item()
    return str(int(plain)) if isinstance(plain, int) else f"{float(plain):.7g}"


# The progress of a training. `report(step=10, total=460)` estimates the seconds left from the pace
# of this process. On this machine, it also writes each rank's step into the run's folder.

STEPS = "steps"
"""The folder, inside a run on this machine, where each rank notes its newest step. Each file is
named after its rank."""

LEFT = "seconds_left"
"""The name of the added value."""

# step and moment of the first report, which warm-up and compiling precede
_began: list[tuple[float, float]] = []


def seconds_left(step: float, total: float) -> float | None:
    """Estimate the seconds left from the steps since the first report. Return None at the first
    report, because the pace is still unknown."""
    now = time.monotonic()
    if not _began or step < _began[0][0]:
        _began[:] = [(step, now)]
    first, moment = _began[0]
    if step <= first:
        return None
    elapsed = now - moment
    return max(0.0, (total - step) * elapsed / (step - first))


def note_step(rank: int, step: float) -> None:
    """Write the rank's current step to a file in the run's folder. Errors, such as a full disk, are
    ignored so that training continues."""
    from .directories import run_dir

    folder = run_dir()
    if folder is None:
        return
    with contextlib.suppress(OSError):
        folder = folder / STEPS
        folder.mkdir(mode=0o700, exist_ok=True)
        (folder / str(rank)).write_text(f"{step:.15g}\n")
