"""Metric lines: `[metrics] step=10 epoch=1 loss=0.25`. Printed by rank 0, read by people, services and cloudtrain."""

from __future__ import annotations

import os
import re
import sys
from typing import SupportsFloat

PREFIX = "[metrics]"

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
_LINE = re.compile(re.escape(PREFIX) + r"((?: [A-Za-z_][A-Za-z0-9_./-]*=[^\s=]+)+)\s*$")


def report(**values: SupportsFloat) -> None:
    """Print one metric line, flushed, on rank 0 only. Tensors and numpy scalars are numbers too.

    Call it on every rank, so that a follower of a run on this machine sees which rank falls behind. With `total`, the
    last step, the line also has `seconds_left`; `cloudtrain status` shows both as progress.

    Raises:
        ValueError: a name cannot be written as a metric line and read back.
    """
    from .environment import detect_environment

    environment = detect_environment()
    if "step" in values and environment.world_size > 1 and "CLOUDTRAIN_RUN_DIR" in os.environ:
        from .progress import note_step

        note_step(environment.rank, float(values["step"]))
    if environment.is_main:
        if "step" in values and "total" in values:
            from .progress import LEFT, seconds_left

            left = seconds_left(float(values["step"]), float(values["total"]))
            values = {**values, **({} if left is None else {LEFT: round(left, 1)})}
        sys.stdout.write(format_metrics(values) + "\n")  # one write, so that lines of other processes stay outside
        sys.stdout.flush()
        if os.environ.get("CLOUDTRAIN_SEND_METRICS") == "azureml":
            from .azureml_metrics import send

            send({name: float(value) for name, value in values.items()})
        if "step" in values and "CLOUDTRAIN_HOLD_AT_STEP" in os.environ:
            from .holding import hold_at

            hold_at(float(values["step"]))


def format_metrics(values: dict[str, SupportsFloat]) -> str:
    """Return the line for `values`, in their order. Whole numbers are exact; others have 7 digits, like float32.

    Raises:
        ValueError: a name has a character that the line cannot carry, or `values` is empty.
    """
    for name in values:
        if not _NAME.fullmatch(name):
            raise ValueError(f"`{name}` is not a name for a metric: use letters, digits and `_ . / -`")
    if not values:
        raise ValueError("a metric line needs at least one value, for example `report(loss=0.25)`")
    return " ".join([PREFIX, *(f"{name}={_text(value)}" for name, value in values.items())])


def parse_metrics(line: str) -> dict[str, float] | None:
    """Return the values of a metric line, whatever prefix a launcher added; None for any other line."""
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
    if isinstance(value, int):
        return str(int(value))
    item = getattr(value, "item", None)  # tensors and numpy scalars know whether they are whole
    plain = item() if callable(item) else value
    return str(int(plain)) if isinstance(plain, int) else f"{float(plain):.7g}"
