"""How far a training is, and how long it still takes.

No function reads the clock; times are those of the values.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from cloudtrain.plans.progress import TrainingProgress

if TYPE_CHECKING:
    from cloudtrain.signals.rows import Column

NAMES = ("step", "total", "epoch", "epochs", "bar", "bar_total", "seconds_left")
"""Values that say how far a training is. A bar is one that has no metrics beside it."""

_STEPS = ("max_steps", "total_steps", "train_steps", "num_train_steps", "max_iters", "iterations")
_EPOCHS = ("epochs", "num_epochs", "max_epochs", "num_train_epochs", "n_epochs")
"""Hyperparameters that say how many steps or epochs a training has."""

_REPORTS = 30
"""The number of newest reports over which the pace is measured."""


class TrainingPace:
    """The progress of a training from the values that it reports."""

    def __init__(self, hyperparameters: Mapping[str, Any] | None = None) -> None:
        self._steps = _limit(hyperparameters or {}, _STEPS)
        self._epochs = _limit(hyperparameters or {}, _EPOCHS)
        self.latest: dict[str, float] = {}
        self._unit = ""
        self._reports: deque[tuple[float, float]] = deque(maxlen=_REPORTS)
        """The times of the newest reports, and how far the training was."""

    def take(self, values: Mapping[str, float], moment: float) -> None:
        """Take values that were reported at `moment`."""
        self.latest |= values
        unit, at, _ = self._position()
        before = self._reports[-1][1] if self._reports else -math.inf
        if unit != self._unit or (at is not None and at < before):
            self._reports.clear()  # the ranks were started again
            before = -math.inf
        self._unit = unit
        if at is not None and at > before:
            self._reports.append((moment, at))

    def _position(self) -> tuple[str, float | None, float | None]:
        """Return what is counted, how far the training is, and the end. What the script says counts
        more than the job's hyperparameters, and a bar less."""
        value = self.latest.get
        positions = (
            ("epoch", value("epoch"), value("epochs")),
            ("step", value("step"), value("total")),
            ("step", value("step"), self._steps),
            ("epoch", value("epoch"), self._epochs),
            ("step", value("bar"), value("bar_total")),
        )
        for position in positions:
            if position[1] is not None and position[2]:
                return position
        return "step", value("step"), None

    @property
    def per_second(self) -> float | None:
        """Steps or epochs per second over the newest reports; None if unknown."""
        if len(self._reports) < 2:
            return None
        start, first = self._reports[0]
        end, last = self._reports[-1]
        return (last - first) / (end - start) if end > start else None

    @property
    def progress(self) -> TrainingProgress | None:
        """The progress so far; None if the end is unknown. The time left is what the script says,
        or else follows from the pace."""
        unit, at, end = self._position()
        if at is None or not end:
            return None
        left = None
        pace = self.per_second
        if pace:
            left = (end - at) / pace
        if unit == "step":
            left = self.latest.get("seconds_left", left)
        return TrainingProgress(unit, at, end, left if at < end else None)


def _limit(hyperparameters: Mapping[str, Any], names: tuple[str, ...]) -> float | None:
    """Return the first of these hyperparameters that is a positive number."""
    for name, value in hyperparameters.items():
        is_number = type(value) in (int, float)
        if name.replace("-", "_") in names and is_number and value > 0:
            return float(value)
    return None


def progress_of(
    columns: Mapping[str, Column], hyperparameters: Mapping[str, Any]
) -> TrainingProgress | None:
    """Return the progress of a run from the newest values of its metrics."""
    events = []
    for name, column in columns.items():
        newest = slice(-2 * _REPORTS, None)
        rows = zip(column.step[newest], column.time[newest], column.value[newest], strict=True)
        for step, time, value in rows:
            values = {name: value} if name in NAMES else {}
            if not math.isnan(step):
                values["step"] = step
            events.append((time, values))
    pace = TrainingPace(hyperparameters)
    for time, values in sorted(events, key=itemgetter(0)):
        pace.take(values, time)
    return pace.progress


class LinePosition:
    """Where the lines of one rank, as they were recognised, say that the training is."""

    def __init__(self) -> None:
        self._first_epoch: float | None = None
        self._has_fractions = False
        self._has_values = False

    def values(self, progress: Mapping[str, float], *, has_values: bool) -> dict[str, float]:
        """Return the values that a line says. Nothing counts before the first metric, such as the
        bars of downloads."""
        if has_values:
            self._has_values = True
        if not self._has_values:
            return {}

        step = progress.get("step")
        total = progress.get("total")
        if "epoch" in progress:
            epoch = progress["epoch"]
            if self._first_epoch is None:
                self._first_epoch = epoch
            # a Trainer writes fractions of the whole
            self._has_fractions = self._has_fractions or epoch != int(epoch)
            if not self._has_fractions:
                # scripts count from 0 or from 1, and steps tell how much of the epoch is finished
                epoch -= min(1.0, self._first_epoch)
                if step is not None and total:
                    epoch += step / total
            values = {"epoch": epoch}
            if "epochs" in progress:
                values["epochs"] = progress["epochs"]
            return values
        if step is None or not total:
            return {}
        if has_values:
            return {"step": step, "total": total}
        return {"bar": step, "bar_total": total}
