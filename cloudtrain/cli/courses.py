"""The values of a metric over time: a sample of them, drawn as a curve or a sparkline."""

from __future__ import annotations

import math
from collections.abc import Sequence

_BARS = "▁▂▃▄▅▆▇█"

MOST_KEPT = 768
"""Values of a metric that are kept for its curve: two for each of 384 columns."""

_WIDE, _LOW = 10.0, 0.25
"""A logarithmic scale is used if the largest value is at least `_WIDE` times the smallest one, and half of the values
lie in the lowest `_LOW` of a linear scale."""


class Course:
    """A summary of a metric's values: the last, the smallest and the largest value, and an evenly spaced sample."""

    def __init__(self) -> None:
        self.last = self._newest = math.nan
        self._low, self._high = math.inf, -math.inf
        self._kept: list[float] = []
        self._count, self._distance = 0, 1

    def add(self, value: float) -> None:
        """Add the next value. A value that is not finite changes only `last`."""
        self.last = value
        if not math.isfinite(value):
            return
        self._newest, self._low, self._high = value, min(self._low, value), max(self._high, value)
        if self._count % self._distance == 0:
            self._kept.append(value)
        self._count += 1
        if len(self._kept) > MOST_KEPT:
            del self._kept[1::2]
            self._distance *= 2

    @property
    def bounds(self) -> tuple[float, float]:
        """The smallest and the largest finite value; the last value twice if no value is finite."""
        return (self._low, self._high) if self._count else (self.last, self.last)

    @property
    def trend(self) -> list[float]:
        """A sample of the finite values in order, from the first to the newest."""
        return list(self._kept) if (self._count - 1) % self._distance == 0 else [*self._kept, self._newest]


def wants_logarithm(values: Sequence[float]) -> bool:
    """Return whether a curve of the values needs a logarithmic scale, because most of them would lie at the bottom of a
    linear scale, as with a loss that drops steeply at first."""
    if not values or min(values) <= 0 or max(values) / 2 < min(values) / 2 * _WIDE:
        return False
    return sorted(_fractions(values))[len(values) // 2] < _LOW


def sparkline(values: Sequence[float], width: int) -> str:
    """Draw finite values in one row of at most `width` characters."""
    if len(values) > width:
        values = [values[index * (len(values) - 1) // (width - 1)] for index in range(width)] if width > 1 else ()
    return "".join(_BARS[int(fraction * (len(_BARS) - 1))] for fraction in _heights(values))


def curve(values: Sequence[float], width: int, height: int) -> list[str]:
    """Draw finite values as a line in `height` rows of Braille dots, over the whole width."""
    from plotille import Canvas

    canvas = Canvas(width, height)
    heights = _heights(values)
    distance = canvas.xmax_inside / max(1, len(heights) - 1)
    points = [(index * distance, fraction * canvas.ymax_inside) for index, fraction in enumerate(heights)]
    for (x0, y0), (x1, y1) in zip(points, points[1:] or points, strict=False):
        canvas.line(x0, y0, x1, y1)
    return [row.replace("\u2800", " ").rstrip() for row in canvas.plot(linesep="\n").split("\n")]


def _heights(values: Sequence[float]) -> list[float]:
    return _fractions([math.log(value) for value in values] if wants_logarithm(values) else values)


def _fractions(values: Sequence[float]) -> list[float]:
    """Scale the values linearly, so that the smallest becomes 0 and the largest 1. If all are equal, all become 0."""
    if not values:
        return []
    low, high = min(values) / 2, max(values) / 2  # halves, because the whole distance may be more than a float holds
    distance = (high - low) or 1.0
    return [(value / 2 - low) / distance for value in values]
