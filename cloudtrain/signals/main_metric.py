"""The main metric of a run, by which it is shown in one line, and what is wrong with its losses."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from cloudtrain.plans.progress import PLACES, MetricSummary, Notice, RunStatus
from cloudtrain.plans.sparkline import sample
from cloudtrain.plans.status import PROGRESS
from cloudtrain.signals.lines import RECOGNISED, RECOGNISED_PROGRESS
from cloudtrain.signals.notices import newest_of
from cloudtrain.signals.progress import NAMES, progress_of
from cloudtrain.signals.rows import Column, MetricFile, MetricRows

if TYPE_CHECKING:
    from cloudtrain.job.sweep import Objective

_LOSSES = ("loss", "train_loss", "train/loss", "training_loss", "total_loss")
"""Names of the loss of the whole training. Others may be a part of it."""

_LOSS = re.compile(r"(.*\W)?\w*loss", re.IGNORECASE)

_LOW = re.compile(
    r"\w*loss|(\w+_)?(err|errors?|ppl|perplexity|mae|mse|rmse|nll|wer|cer|fid|bpb|logloss)"
)
"""The last part of the names of metrics that a training makes small."""

_TREND = 32
"""Values of a trend."""


class Goal(NamedTuple):
    """A metric, and whether the training makes it small."""

    metric: str
    is_minimized: bool


def main_metric(
    names: Iterable[str],
    objective: Objective | None = None,
    patterns: object = None,
) -> Goal | None:
    """Return the main metric among `names`: the objective of the run's sweep, else the first of the
    job's `metrics` patterns, else a loss, else the first name. None without a name."""
    known = [name for name in names if name not in PLACES and name not in PROGRESS]
    preferred = () if objective is None else (objective.metric,)
    losses = filter(_LOSS.fullmatch, known)
    own = patterns if isinstance(patterns, Mapping) else ()  # or `none`
    wanted = chain(preferred, own, _LOSSES, losses, filter(is_low, known), known)
    name = next((name for name in wanted if name in known), None)
    return None if name is None else goal_of(name, objective)


def goal_of(name: str, objective: Objective | None = None) -> Goal:
    """Return a metric with the goal of the run's sweep, or else the one that its name tells."""
    if objective is not None and objective.metric == name:
        return Goal(name, objective.goal == "minimize")
    return Goal(name, is_low(name))


def with_metrics(
    status: RunStatus,
    files: Sequence[MetricFile],
    job: Mapping[str, Any],
    objective: Objective | None = None,
) -> RunStatus:
    """Return the status with what the metrics files say: the summary of the main metric, the
    progress, and notices of losses. `job` has the fields of the run's job."""
    rows = MetricRows(files)
    goal = main_metric(rows.names, objective, job.get("metrics"))
    if goal is None:
        return status
    columns = rows.columns(goal.metric, *filter(is_low, rows.names), *NAMES)
    main = summary_of(goal, columns[goal.metric])
    places = columns
    if main.source == RECOGNISED:  # its step may be an epoch
        places = MetricRows(files, sources=(RECOGNISED_PROGRESS,)).columns()
    return replace(
        status,
        main=main,
        progress=progress_of(places, job.get("hyperparameters") or {}),
        notices=tuple(newest_of([*status.notices, *faults(columns)])),
    )


def is_low(name: str) -> bool:
    """Return whether a training makes a metric of this name small."""
    last_part = re.split("[/.-]", name.lower())[-1]
    return _LOW.fullmatch(last_part) is not None


def summary_of(goal: Goal, column: Column) -> MetricSummary:
    """Return the values of a metric in a few numbers. The column has at least one value."""
    values = column.value
    finite = [index for index, value in enumerate(values) if math.isfinite(value)]
    best: float | None = None
    best_step: float | None = None
    if finite:
        choose = min if goal.is_minimized else max
        index = choose(finite, key=lambda at: float(values[at]))
        best = values[index]
        best_step = _known(column.step[index])
    return MetricSummary(
        name=goal.metric,
        source=column.source,
        rank=column.rank,
        is_minimized=goal.is_minimized,
        number=len(values),
        first=values[0],
        last=values[-1],
        step=_known(column.step[-1]),
        best=best,
        best_step=best_step,
        trend=tuple(sample([values[index] for index in finite], _TREND)),
    )


def _known(step: float) -> float | None:
    return None if math.isnan(step) else step


# What is wrong with a loss.

_FEWEST = 8
"""Values before those that are judged. The first ones of a training jump."""

_NEWEST = 3
"""Values that must all be high. A single spike is common, and is over after one or two steps."""

_TIMES = 10.0
"""How many times as high as the median of the values before."""

_FLOOR = 1.0
"""Lower values never explode. The loss of a reinforcement learning begins near 0, so that any value
is many times as high."""

WINDOW = 64
"""Values of which the median is taken."""


def explodes(recent: Sequence[float], first: float) -> bool:
    """Return whether a loss explodes: its newest three values are above 1, above its first value,
    so that nothing that was learned is left, and each ten times the median of those before. A loss
    that is not finite is another fault. `recent` are its newest values, `WINDOW` at most."""
    newest = recent[-_NEWEST:]
    before = [abs(value) for value in recent[:-_NEWEST] if math.isfinite(value)]
    if len(before) < _FEWEST or not all(map(math.isfinite, newest)):
        return False
    limit = max(_FLOOR, first, _TIMES * median(before))
    return min(newest) > limit


def faults(columns: Mapping[str, Column]) -> list[Notice]:
    """Return what is wrong with the losses and errors among these metrics, and what was wrong with
    the one that recovered last: each kind once, for the metric in which it began first."""
    found: list[Notice] = []
    for name in filter(is_low, columns):
        found += _faults_of(name, columns[name])
    # those that last come first
    found.sort(key=lambda notice: (notice.ended is not None, notice.time))
    return list({notice.kind: notice for notice in reversed(found)}.values())


def _faults_of(name: str, column: Column) -> Iterator[Notice]:
    steps, times, values = column[:3]
    lost = next((at for at in reversed(range(len(values))) if not math.isfinite(values[at])), None)
    if lost is not None:
        first = lost
        while first > 0 and not math.isfinite(values[first - 1]):
            first -= 1
        ended = times[lost + 1] if lost + 1 < len(values) else None
        word = "NaN" if math.isnan(values[first]) else "infinite"
        text = f"`{name}` is {word}{_at(steps[first])}"
        yield Notice("not_finite", text, times[first], ended=ended)
    if explodes(values[-WINDOW:], values[0]):
        first = len(values) - _NEWEST
        text = (
            f"`{name}` explodes: {values[-1]:.4g}{_at(steps[-1])}, {values[first - 1]:.4g} before"
        )
        yield Notice("exploding", text, times[first])


def _at(step: float) -> str:
    return "" if math.isnan(step) else f" at step {step:.10g}"
