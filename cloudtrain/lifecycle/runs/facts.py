"""What runs were given and what came out, as rows of a table."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from cloudtrain.documents import JsonObject
from cloudtrain.errors import CloudtrainError
from cloudtrain.lifecycle.runs.costs import seconds_of
from cloudtrain.lifecycle.store.records import Money
from cloudtrain.lifecycle.store.schema import read_store
from cloudtrain.signals.curves import Curve
from cloudtrain.signals.main_metric import summary_of
from cloudtrain.signals.rows import data_frame
from cloudtrain.targets.settings import read_environment

if TYPE_CHECKING:
    from cloudtrain.lifecycle.runs.run import Run

GIVEN = "hyperparameters."
"""The beginning of the names of columns with hyperparameters."""


def rows_of(runs: Iterable[Run]) -> tuple[list[JsonObject], list[Curve]]:
    """Return a row for each run, with names such as `duration` (in seconds), `cost` (the bill in US
    dollars), `hyperparameters.lr`, `tags.team`, `last.loss` and `best.loss`; and the metrics of all
    runs. The last known states are taken. Metrics that cannot be read are left out."""
    with read_store(read_environment().state_dir) as store:
        tags = store.labels("tag")
        hyperparameters = store.labels("hyperparameter")
        money = store.money()
    rows = []
    all_curves: list[Curve] = []
    for run in runs:
        status = run.last_status
        row: JsonObject = {
            "run": run.name,
            "job": run.job_name,
            "target": run.target,
            "state": str(status.state),
            "created": run.created,
            "started": status.started,
            "ended": status.ended,
            "duration": seconds_of(status, time.time()),
            "cost": money.get(run.name, Money()).amount,
        }
        for name, text in tags.get(run.name, {}).items():
            row[f"tags.{name}"] = text
        for name, text in hyperparameters.get(run.name, {}).items():
            row[f"{GIVEN}{name}"] = _value(text)
        with suppress(CloudtrainError, OSError):
            curves = run.curves()
            all_curves += curves
            for curve in curves:
                summary = summary_of(curve.goal, curve.column)
                row[f"last.{curve.name}"] = summary.last
                row[f"best.{curve.name}"] = summary.best
        rows.append(row)
    return rows, all_curves


def to_pandas(rows: list[JsonObject]) -> Any:
    """Return such rows as a pandas table, with times as timestamps in UTC."""
    return data_frame(rows, ("created", "started", "ended"))


def _value(text: str) -> object:
    """Return the value of a hyperparameter: a number or a truth value, or else the text."""
    with suppress(ValueError):
        value = json.loads(text)
        if isinstance(value, int | float):
            return value
    return text
