"""The cost of a sweep so far, and its maximum further cost, at list prices."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from cloudtrain.catalogue.cost import over
from cloudtrain.core.states import RunRef, RunStatus
from cloudtrain.core.trial import Trial
from cloudtrain.errors import CloudtrainError
from cloudtrain.store.opening import read_store
from cloudtrain.sweeps.names import trials_key
from cloudtrain.targets.registry import target_of

if TYPE_CHECKING:
    from cloudtrain.settings import Settings


class SweepCost(NamedTuple):
    """The cost of a sweep in US dollars, at list prices.

    Attributes:
        spent: the cost of all trials so far, including running trials.
        left: the maximum further cost of running and future trials; None if a trial has no time limit.
    """

    spent: float
    left: float | None


class _Part(NamedTuple):
    """One trial: `spent` is its cost so far, None if unknown; `is_over` is whether the trial has ended."""

    spent: float | None
    is_over: bool


def cost_of_sweep(
    ref: RunRef,
    settings: Settings,
    status: RunStatus,
    trials: Sequence[Trial],
    *,
    is_driven: bool,
    more: int = 0,
) -> SweepCost | None:
    """Return the cost of a sweep, including `more` additional trials; None if the target is free or a price is not
    known.

    If cloudtrain drives the sweep (`is_driven`), the status of running trials is queried to get their billed cost.
    """
    if not target_of(ref.target).is_paid:
        return None
    with read_store(settings.state_dir) as store:
        kept = None if store is None else store.kept(ref.name)
    hourly, longest = (None, None) if kept is None else kept.trial
    parts = list(_driven(ref.name, settings) if is_driven else _tuned(trials, hourly))
    spent = [part.spent for part in parts if part.spent is not None]
    if hourly is None or len(spent) < len(parts):
        return None
    if longest is None:
        return SweepCost(sum(spent), 0.0 if status.state.is_final and all(part.is_over for part in parts) else None)
    each = over(hourly, longest)
    total, started = int(status.metrics.get("trials", len(trials))), sum(bool(trial.run) for trial in trials)
    rest = max(0, total - started) if not status.state.is_final or (more and is_driven) else 0
    left = (rest + more) * each
    left += sum(max(0.0, each - (part.spent or 0.0)) for part in parts if not part.is_over)
    return SweepCost(sum(spent), left)


def _driven(name: str, settings: Settings) -> Iterator[_Part]:
    """Yield the cost of every run that cloudtrain's driver started, including runs that `rerun` has replaced."""
    from cloudtrain.lifecycle.costs import cost_of
    from cloudtrain.lifecycle.run import Run

    with read_store(settings.state_dir) as store:
        rows = [] if store is None else store.of_sweep(trials_key(name))
        money = {} if store is None else store.money()
    for trial in (Run(row, settings) for row in rows if row.stage in ("accepted", "reported")):
        status = trial.last_status
        if not status.state.is_final:
            with suppress(CloudtrainError):  # use the last known status
                status = trial.status()
        cost = cost_of(trial, status, money.get(trial.name), None, time.time())
        yield _Part(cost.billed if cost.billed is not None else cost.estimated, status.state.is_final)


def _tuned(trials: Sequence[Trial], hourly: float | None) -> Iterator[_Part]:
    """Yield the cost of each trial of a service's tuner, estimated from its running time, because tuners do
    not report costs."""
    for trial in trials:
        ended = trial.ended if trial.ended is not None else time.time()
        lasted = 0.0 if trial.started is None else max(0.0, ended - trial.started)
        yield _Part(None if hourly is None else over(hourly, lasted), trial.state.is_final)
