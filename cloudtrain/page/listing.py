"""The list of runs, as the page gets it."""

from __future__ import annotations

import threading
from itertools import takewhile
from typing import Any

from cloudtrain.api import costs
from cloudtrain.errors import UsageError
from cloudtrain.lifecycle.runs.costs import Sum, grouping, sums
from cloudtrain.lifecycle.runs.overview import Overview, StoredRun, overview
from cloudtrain.page.forms import Packed, pack
from cloudtrain.plans.chart import heights
from cloudtrain.plans.progress import MetricSummary
from cloudtrain.plans.states import RunState

Row = dict[str, Any]
"""A run, or what the page is told of runs, as JSON."""

_LEVELS = "0123456789abcdef"
"""The heights of a trend, one character each: of 10,000 runs, numbers would take 6 MB."""


class Listing:
    """The rows of all runs. They are kept between two looks: those of 10,000 runs take 0.3 s."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._revision: int | None = None
        self._rows: dict[str, Row] = {}
        """By the run's name, the newest last."""
        self._changed: dict[str, int] = {}
        """The revision at which each row was read, the newest last."""
        self._packed: Packed | None = None

    def runs(self, since: int | None = None, newest: int | None = None) -> Row:
        """Return the runs with what the store knows of them, newest first: all, those that changed
        after a revision, or the newest ones."""
        with self._lock:
            number = self._update()
            rows = self._changed_since(since)
            return {"revision": self._revision, "number": number, "runs": rows[:newest]}

    def packed(self) -> Packed:
        """Return all runs as they are sent. Until something changes, they are packed once: 10,000
        take 0.1 s."""
        with self._lock:
            number = self._update()
            if self._packed is None:
                rows = self._changed_since(None)
                self._packed = pack({"revision": self._revision, "number": number, "runs": rows})
            return self._packed

    def _update(self) -> int:
        """Read what has changed, and return how many runs there are."""
        seen = overview(changed_since=self._revision)
        self._take(seen)
        if len(self._rows) != seen.number:  # some were removed
            self._rows.clear()
            self._changed.clear()
            self._revision = None
            seen = overview()
            self._take(seen)
        return seen.number

    def _take(self, seen: Overview) -> None:
        for stored in reversed(seen.runs):
            name = stored.record.name
            self._rows[name] = _row(stored)
            self._changed.pop(name, None)
            self._changed[name] = seen.revision
        if seen.revision != self._revision:
            self._packed = None
        self._revision = seen.revision

    def _changed_since(self, since: int | None) -> list[Row]:
        if since is None:
            return list(reversed(self._rows.values()))
        changed = takewhile(lambda item: item[1] > since, reversed(self._changed.items()))
        return [self._rows[name] for name, _ in changed]


def _row(stored: StoredRun) -> Row:
    """Return a run as JSON data. What is empty is left out, because the list is long."""
    record = stored.record
    summary = record.summary
    cost = stored.cost
    is_over = RunState(record.state).is_final
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
        "estimate": None if cost is None or not is_over else cost.estimated,
        "hourly": None if is_over else stored.hourly,
        "note": stored.note,
        "pinned": stored.is_pinned,
        "sweep": stored.is_sweep,
    }
    return {name: value for name, value in row.items() if value}


def _main(summary: MetricSummary) -> Row:
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
