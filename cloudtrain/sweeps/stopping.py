"""Decides whether a trial should be stopped early because other trials were clearly better after the same number
of reports. Pure functions.

`median` and `bandit` are the rules of these names in Azure ML and Google's Vizier. `hyperband` is asynchronous
successive halving (ASHA), with brackets that begin to halve after different numbers of reports.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf, isfinite
from statistics import median

from cloudtrain.core.sweep import Objective, Sweep
from cloudtrain.core.trial import Trial

_KEPT = 3
"""At each step, hyperband keeps one of three trials, and lets it make three times as many reports."""


def reason_to_stop(sweep: Sweep, trial: Trial, others: Sequence[Trial]) -> str | None:
    """Return why the trial should stop now; None if it should continue. A trial that has reported only NaN and
    infinite values so far continues."""
    objective, step = sweep.objective, len(trial.reports)
    if objective is None or step == 0:
        return None
    if sweep.hyperband is not None:
        return _halved(sweep, trial, others)
    if sweep.stop_early is None:
        return None
    step = min(step, max((len(other.reports) for other in others), default=0))  # compare only what others have reported
    if step == 0 or step <= sweep.stop_early.after:
        return None
    trial = replace(trial, reports=trial.reports[:step])
    if sweep.stop_early.median is not None:
        return _below_median(objective, trial, others)
    assert sweep.stop_early.bandit is not None, "a rule is one of the two"
    return _beyond_slack(objective, sweep.stop_early.bandit.slack, trial, others)


def _below_median(objective: Objective, trial: Trial, others: Sequence[Trial]) -> str | None:
    step = len(trial.reports)
    averages = [sum(other.reports[:step]) / step for other in others if len(other.reports) >= step]
    averages = [average for average in averages if isfinite(average)]
    if not averages:
        return None
    own, middle = _best(objective, trial.reports), median(averages)
    if not (isfinite(own) and objective.better(middle, own)):
        return None
    return f"its best {objective.metric}, {own:.4g}, was worse than the median of the others, {middle:.4g}"


def _beyond_slack(objective: Objective, slack: float, trial: Trial, others: Sequence[Trial]) -> str | None:
    step = len(trial.reports)
    found = [_best(objective, other.reports[:step]) for other in others if len(other.reports) >= step]
    if not found:
        return None
    own, best = _best(objective, trial.reports), _best(objective, found)
    allowed = best - abs(best) * slack if objective.goal == "maximize" else best + abs(best) * slack
    if not (isfinite(own) and objective.better(allowed, own)):
        return None
    return f"its best {objective.metric}, {own:.4g}, was outside the slack around the best, {best:.4g}"


def _halved(sweep: Sweep, trial: Trial, others: Sequence[Trial]) -> str | None:
    assert sweep.hyperband is not None, "whoever calls has looked"
    assert sweep.objective is not None, "the rules have asked for it"
    step, objective = len(trial.reports), sweep.objective
    if step >= sweep.hyperband.max:
        return f"ended by hyperband after {step} reports, the maximum of a trial"
    rungs = _rungs(sweep.hyperband.min, sweep.hyperband.max)
    reached = [rung for rung in rungs[trial.number % len(rungs) :] if rung <= step]
    for rung in reached:
        own = _best(objective, trial.reports[:rung])
        rivals = [_best(objective, other.reports[:rung]) for other in others if len(other.reports) >= rung]
        better = sum(objective.better(rival, own) for rival in rivals)
        if isfinite(own) and len(rivals) + 1 >= _KEPT and better >= max(1, (len(rivals) + 1) // _KEPT):
            return f"not among the best third after {rung} report{'s' if rung > 1 else ''}"
    return None


def _rungs(least: int, most: int) -> list[int]:
    """Return the numbers of reports after which trials of the first bracket are compared, such as 1, 3, 9 and 27 for
    `least` 1 and `most` 50. The second bracket leaves out the first number, the third bracket the first two, and so on.
    """
    found = [least]
    while found[-1] * _KEPT < most:
        found.append(found[-1] * _KEPT)
    return found


def _best(objective: Objective, values: Sequence[float]) -> float:
    """Return the best of the values. NaN and infinite values count as the worst."""
    finite = [value for value in values if isfinite(value)]
    return max(finite, default=-inf) if objective.goal == "maximize" else min(finite, default=inf)
