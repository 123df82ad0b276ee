"""Curves of metrics as charts: over steps or time, smoothed, and averaged over runs."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from cloudtrain.errors import UsageError, did_you_mean
from cloudtrain.plans.chart import Chart, Line, figure_of, wants_logarithm
from cloudtrain.plans.sparkline import sample
from cloudtrain.signals.main_metric import Goal, goal_of, main_metric
from cloudtrain.signals.progress import NAMES
from cloudtrain.signals.rows import Column, MetricRows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from cloudtrain.job.sweep import Objective

_LARGEST = 1e100
"""The largest size of a value that is drawn. Axes and their ticks go beyond it, and stay finite."""

_PARTS = 1500
"""Parts of a curve of which the lowest and the highest value are drawn."""

_GRID = 400
"""The most points of a mean."""

SHOWN = 4
"""The metrics that are drawn if none is named."""


Axis = Literal["step", "time", "epoch"]
"""What curves are drawn over."""

_UNITS = (("hours", 3600.0), ("minutes", 60.0), ("seconds", 1.0))


class Curve(NamedTuple):
    """The values of one metric of one run.

    Attributes:
        started: the time of the run's first value.
        epochs: the epochs that the run has reported; None without any.
    """

    run: str
    name: str
    column: Column
    goal: Goal
    started: float = 0.0
    epochs: Column | None = None


class View(NamedTuple):
    """How curves are drawn.

    Attributes:
        smooth: the weight of the values before in a moving average, from 0 to less than 1.
        scale: of the values. Default: the one that shows more of them.
        groups: maps each run to the group whose mean is drawn. Empty: the runs themselves.
        over: the horizontal axis. Default: steps, or the values are counted.
    """

    smooth: float = 0.0
    scale: Literal["linear", "log"] | None = None
    groups: Mapping[str, str] = {}
    over: Axis | None = None


def curves_of(
    run: str, rows: MetricRows, job: Mapping[str, Any], objective: Objective | None = None
) -> Iterator[Curve]:
    """Yield the metrics of a run, the main one first. `job` has the fields of the run's job."""
    columns = rows.columns()
    main = main_metric(columns, objective, job.get("metrics"))
    if main is None:
        return
    first = main.metric
    started = min((column.time[0] for column in columns.values()), default=0.0)
    epochs = rows.epochs
    for name in sorted(columns, key=lambda name: name != first):
        if name not in NAMES:
            yield Curve(run, name, columns[name], goal_of(name, objective), started, epochs)


def names_in(curves: Sequence[Curve]) -> list[str]:
    """Return the names of the metrics, the main one first."""
    return list(dict.fromkeys(curve.name for curve in curves))


def choose(curves: Sequence[Curve], names: Sequence[str]) -> list[Curve]:
    """Return the curves of these metrics.

    Raises:
        UsageError: the runs have no metric, or none of such a name.
    """
    known = names_in(curves)
    for name in names:
        if name not in known:
            message = f"`{name}` is neither a run nor a metric of these runs"
            raise UsageError(
                message,
                hint=(did_you_mean(name, known) if known else "these runs have no metrics"),
                code="CT929",
            )
    found = [curve for curve in curves if curve.name in names]
    return sorted(found, key=lambda curve: names.index(curve.name))


def plot(curves: Sequence[Curve], names: Sequence[str] = (), view: View = View()) -> Figure:
    """Draw the curves of these metrics; without names, those of the main metric and a few others.

    Raises:
        UsageError: the runs have no metric, or none of such a name.
        MissingExtra: matplotlib is not installed.
    """
    if not curves:
        raise UsageError(
            "there are no metrics to draw",
            hint="call `runtime.report(loss=loss)` in the script",
            code="CT929",
        )
    chosen = choose(curves, names or names_in(curves)[:SHOWN])
    return figure_of(charts_of(chosen, view))


def charts_of(curves: Sequence[Curve], view: View = View()) -> list[Chart]:
    """Return a chart for each metric, with the curves of all runs or groups."""
    if not 0 <= view.smooth < 1:
        raise UsageError(
            f"`smooth` is {view.smooth:g}, not from 0 to less than 1",
            hint="0.9 makes a smooth curve; 0 does not smooth",
            code="CT909",
        )
    if view.scale not in (None, "linear", "log"):
        raise UsageError(
            f"`{view.scale}` is not a scale", hint="write `linear` or `log`", code="CT909"
        )
    groups = view.groups or {curve.run: curve.run for curve in curves}
    labels = list(dict.fromkeys(groups[curve.run] for curve in curves))
    by_name: dict[str, list[Curve]] = {}
    for curve in curves:
        by_name.setdefault(curve.name, []).append(curve)

    charts = []
    for name, found in by_name.items():
        x_label, places = _places(found, view.over)
        is_logarithmic = _is_logarithmic(found, view.scale)
        members: dict[str, list[Line]] = {}
        for curve, xs in zip(found, places, strict=True):
            line = _line(xs, curve.column.value, view.smooth, is_logarithmic)
            members.setdefault(groups[curve.run], []).append(line)

        lines = []
        for label, parts in members.items():
            line = _mean_of(parts) if view.groups else parts[0]
            lines.append(line._replace(label=label, number=labels.index(label)))
        charts.append(Chart(name, lines, x_label, is_logarithmic))
    return charts


def _places(curves: Sequence[Curve], over: Axis | None) -> tuple[str, list[Sequence[float]]]:
    """Return the label of the horizontal axis, and the places of each curve's values on it."""
    if over == "time":
        return _times(curves)
    if over == "epoch":
        return "epoch", list(map(_epochs, curves))
    curve = next((curve for curve in curves if not _rises(curve.column.step)), None)
    if curve is None:
        return "step", [curve.column.step for curve in curves]
    if over is None:
        return "value", [range(1, len(curve.column.value) + 1) for curve in curves]
    if over != "step":
        raise UsageError(f"`{over}` is no axis", hint="write `step`, `time` or `epoch`")
    message = f"the steps of `{curve.name}` of `{curve.run}` are unknown or begin again"
    raise UsageError(message, hint="draw it by `time`")


def _times(curves: Sequence[Curve]) -> tuple[str, list[Sequence[float]]]:
    """Return the times since the first value of each run, in a unit that suits all."""
    rows = []
    longest = 0.0
    for curve in curves:
        seconds = [time - curve.started for time in curve.column.time]
        longest = max(longest, *seconds)
        rows.append(seconds)
    suitable = (item for item in _UNITS if longest >= 2 * item[1])
    unit, length = next(suitable, _UNITS[-1])
    return unit, [[time / length for time in seconds] for seconds in rows]


def _epochs(curve: Curve) -> list[float]:
    """Return the epoch of each value, interpolated between the reports of epochs."""
    if curve.epochs is None:
        raise UsageError(
            f"`{curve.run}` has reported no epochs", hint="draw it by `step` or `time`"
        )
    at = curve.column.time
    reported = curve.epochs.time
    if _rises(curve.column.step) and _rises(curve.epochs.step):
        at = curve.column.step
        reported = curve.epochs.step

    # an epoch lasts from its first report to that of the next one
    epochs: list[float] = []
    places: list[float] = []
    for epoch, place in zip(curve.epochs.value, reported, strict=True):
        if not epochs or epoch > epochs[-1]:
            epochs.append(epoch)
            places.append(place)
    if len(epochs) > 1:  # the last one lasts as long as the one before
        epochs.append(2 * epochs[-1] - epochs[-2])
        places.append(2 * places[-1] - places[-2])
    inside = [min(max(place, places[0]), places[-1]) for place in at]
    return _interpolated(Line("", places, epochs), inside)


def _rises(steps: Sequence[float]) -> bool:
    is_known = math.isfinite(steps[0])
    return is_known and all(before <= after for before, after in pairwise(steps))


def _is_logarithmic(curves: Sequence[Curve], scale: str | None) -> bool:
    if scale is not None:
        return scale == "log"
    values = chain.from_iterable(curve.column.value for curve in curves)
    return wants_logarithm([value for value in values if abs(value) <= _LARGEST])


def _line(
    xs: Sequence[float], values: Sequence[float], smooth: float, is_logarithmic: bool
) -> Line:
    """Return a line of the values that can be drawn. The others are NaN."""
    least = 1 / _LARGEST if is_logarithmic else -_LARGEST
    drawn = [value if least < value < _LARGEST else math.nan for value in values]
    kept = thin(drawn)
    raw: list[float] = []
    if smooth:
        raw = [drawn[at] for at in kept]
        drawn = list(_smoothed(drawn, smooth))
    y = [drawn[at] for at in kept]
    lost = sum(map(math.isnan, drawn))
    return Line("", [xs[at] for at in kept], y, raw=raw, lost=lost)


def _smoothed(values: Sequence[float], weight: float) -> Iterator[float]:
    """Yield the moving average, in which the first values count as much as later ones (as in
    TensorBoard). NaN stays."""
    average = 0.0
    share = 1.0
    for value in values:
        if math.isnan(value):
            yield value
            continue
        average = weight * average + (1 - weight) * value
        share *= weight
        yield average / (1 - share)


def thin(values: Sequence[float]) -> Sequence[int]:
    """Return the positions of the values that are drawn: of very many, the lowest and the highest
    of each part, or one that is missing instead of the lowest."""
    if len(values) <= 2 * _PARTS:
        return range(len(values))
    heights = [-math.inf if math.isnan(value) else value for value in values]
    kept = {0, len(values) - 1}
    size = math.ceil(len(values) / _PARTS)
    for start in range(0, len(values), size):
        part = range(start, min(start + size, len(values)))
        kept.add(min(part, key=heights.__getitem__))
        kept.add(max(part, key=heights.__getitem__))
    return sorted(kept)


def _mean_of(lines: Sequence[Line]) -> Line:
    """Return the mean of lines, in a band from the lowest to the highest. Where a line has no
    point, it is interpolated. A line counts from its first to its last point, without its NaN."""
    places: set[float] = set()
    for line in lines:
        places.update(line.x)
    grid = sample(sorted(places), _GRID)
    columns = [_interpolated(line, grid) for line in lines]
    mean = []
    low = []
    high = []
    for values in zip(*columns, strict=True):
        known = [value for value in values if not math.isnan(value)] or [math.nan]
        mean.append(sum(known) / len(known))
        low.append(min(known))
        high.append(max(known))
    lost = sum(line.lost for line in lines)
    return Line("", grid, mean, low=low, high=high, lost=lost)


def _interpolated(line: Line, grid: Sequence[float]) -> list[float]:
    """Return the values of a line at the places of a grid; NaN before its first and after its last
    point."""
    values = []
    for place in grid:
        after = bisect_left(line.x, place)
        if after == len(line.x) or place < line.x[0]:
            values.append(math.nan)
        elif line.x[after] == place:
            values.append(line.y[after])
        else:
            start = line.x[after - 1]
            share = (place - start) / (line.x[after] - start)
            values.append((1 - share) * line.y[after - 1] + share * line.y[after])
    return values
