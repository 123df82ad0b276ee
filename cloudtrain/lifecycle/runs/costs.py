"""Sums of the costs of runs: from the bills of the targets, or from list prices for runs without a
bill."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from cloudtrain.lifecycle.store.records import Money
from cloudtrain.machines.table import over
from cloudtrain.plans.progress import RunStatus
from cloudtrain.targets.registry import usable_target

if TYPE_CHECKING:
    from cloudtrain.lifecycle.runs.run import Run
    from cloudtrain.lifecycle.store.store import RunRecord


class RunCost(NamedTuple):
    """The cost of one run, in US dollars at list prices.

    Attributes:
        tags: the run's tags; None if unknown.
        billed: the cost of the billed seconds, as reported by the target.
        estimated: the cost of the time from the run's start to its end, or to now, if no bill is
            known.
        is_free: whether the target is free.
    """

    job: str
    target: str
    created: float
    tags: dict[str, str] | None
    billed: float | None = None
    estimated: float | None = None
    is_free: bool = False


class Sum(NamedTuple):
    """The sum of the costs of a group of runs."""

    group: str
    runs: int
    billed: float
    estimated: float
    billed_runs: int
    estimated_runs: int
    free_runs: int
    without_price: int

    @classmethod
    def of(cls, group: str, costs: Sequence[RunCost]) -> Sum:
        billed = [cost.billed for cost in costs if cost.billed is not None]
        estimated = [cost.estimated for cost in costs if cost.estimated is not None]
        free_runs = sum(cost.is_free for cost in costs)
        return cls(
            group,
            len(costs),
            sum(billed, 0.0),
            sum(estimated, 0.0),
            billed_runs=len(billed),
            estimated_runs=len(estimated),
            free_runs=free_runs,
            # a run is free, or has one of the two costs, or neither
            without_price=len(costs) - len(billed) - len(estimated) - free_runs,
        )

    @property
    def total(self) -> float:
        return self.billed + self.estimated


def cost_of(
    run: Run | RunRecord,
    status: RunStatus,
    money: Money | None,
    tags: dict[str, str] | None,
    now: float,
) -> RunCost:
    """Return the cost of a run: the billed cost, or without a bill, the run's duration times the
    price at submission. `money` holds the price and the bill that the store keeps; `now` is in
    seconds since the epoch."""
    bill = money or Money()
    cost = RunCost(run.job_name, run.target, run.created, tags)
    if is_free(run.target):
        return cost._replace(is_free=True)

    if status.billable_seconds is not None:
        bill = bill._replace(billable_seconds=status.billable_seconds, cost=status.cost)
    if bill.billable_seconds is not None:
        return cost._replace(billed=bill.amount)

    if status.started is None:
        is_final = status.state.is_final
        return cost._replace(billed=0.0) if is_final else cost._replace(estimated=0.0)
    seconds = seconds_of(status, now)
    if bill.hourly is None or seconds is None:
        return cost
    return cost._replace(estimated=over(bill.hourly, seconds))


def is_free(target: str) -> bool:
    """Return whether runs on a target cost nothing, because its machines are not rented."""
    known = usable_target(target)
    return known is not None and not known.facts.is_paid


def seconds_of(status: RunStatus, now: float) -> float | None:
    """Return the seconds from the start of a run to its end, or to now; None if one is unknown."""
    end = status.ended
    if end is None and not status.state.is_final:
        end = now
    if status.started is None or end is None:
        return None
    return max(0.0, end - status.started)


def grouping(by: str) -> Callable[[RunCost], str] | None:
    """Return a function that maps a run to its group by `job`, `month`, `target` or `tag:KEY`; None
    if `by` is another text."""
    kind, _, key = by.partition(":")
    if kind == "tag" and key:
        return lambda run: (run.tags or {}).get(key, "(none)")
    if by == "month":
        return lambda run: datetime.fromtimestamp(run.created).astimezone().strftime("%Y-%m")
    return attrgetter(by) if by in ("job", "target") else None


def sums(runs: Iterable[RunCost], group_of: Callable[[RunCost], str]) -> list[Sum]:
    """Return the sum of each group, the most expensive first. Groups of equal cost are sorted by
    name."""
    groups: dict[str, list[RunCost]] = {}
    for run in runs:
        groups.setdefault(group_of(run), []).append(run)
    found = map(Sum.of, groups, groups.values())
    return sorted(found, key=lambda item: (-item.total, item.group))
