"""A metric's values as one row of characters."""

from __future__ import annotations

from collections.abc import Sequence

from cloudtrain.plans.chart import heights

_BARS = "▁▂▃▄▅▆▇█"


def sample(values: Sequence[float], count: int) -> Sequence[float]:
    """Return at most `count` of the values, evenly spaced, with the first and the last."""
    if len(values) <= count:
        return values
    last = len(values) - 1
    return [values[index * last // (count - 1)] for index in range(count)]


def sparkline(values: Sequence[float], width: int) -> str:
    """Draw finite values in one row of at most `width` characters; nothing for a single one."""
    if width < 2 or len(values) < 2:
        return ""
    highest = len(_BARS) - 1
    bars = [_BARS[int(height * highest)] for height in heights(sample(values, width))]
    return "".join(bars)
