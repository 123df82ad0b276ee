"""The list of runs, as the page gets it."""

from __future__ import annotations

from typing import Any

from cloudtrain.api import costs
from cloudtrain.errors import UsageError
from cloudtrain.lifecycle.runs.costs import Sum, grouping, sums
from cloudtrain.lifecycle.runs.overview import StoredRun, overview
from cloudtrain.plans.chart import heights
from cloudtrain.plans.progress import MetricSummary

_LEVELS = "0123456789abcdef"
"""The heights of a trend, one character each: of 10,000 runs, numbers would take 6 MB."""


def listing(changed_since: int | None = None, limit: int | None = None) -> dict[str, Any]:
    """Return the runs with what the store knows of them, those that changed after a revision, or
    the newest ones."""
    seen = overview(changed_since=changed_since, limit=limit)
    return {
        "revision": seen.revision,
        "number": seen.number,
        "runs": [_row(stored) for stored in seen.runs],
    }


def _row(stored: StoredRun) -> dict[str, Any]:
    """Return a run as JSON data. What is empty is left out, because the list is long."""
    record = stored.record
    summary = record.summary
    cost = stored.cost
    row = {
        "name": record.name,
        "job": record.job_name,
        "target": record.target,
        "state": record.state,
        "created": record.created,
        "started": record.started,
        "ended": record.ended,
        "reason": record.reason,
        "metrics": record.last_metrics,
        "main": None if summary is None else _main(summary),
        "folder": stored.folder,
        "tags": stored.tags,
        "hyperparameters": stored.hyperparameters,
        "cost": None if cost is None else cost.billed,
        "estimate": None if cost is None else cost.estimated,
        "note": stored.note,
        "pinned": stored.is_pinned,
        "sweep": stored.is_sweep,
    }
    return {name: value for name, value in row.items() if value}


def _main(summary: MetricSummary) -> dict[str, Any]:
    """Return what the list shows of the main metric."""
    levels = [_LEVELS[int(15 * height)] for height in heights(summary.trend)]
    return {
        "name": summary.name,
        "last": summary.last,
        "best": summary.best,
        "trend": "".join(levels),
    }


def cost_sums(by: str) -> list[Sum]:
    """Return the sums of the costs of all runs by `job`, `month`, `target` or `tag:KEY`, without
    asking targets. Raises UsageError."""
    group_of = grouping(by)
    if group_of is None:
        hint = "`job`, `month`, `target` or `tag:KEY`"
        raise UsageError(f"`{by}` is not a valid group", hint=hint, code="CT909")
    return sums(costs(online=False), group_of)
