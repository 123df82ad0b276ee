"""A sweep and its trials as documents, for the command line and for notebooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from cloudtrain.job.model import format_duration, value_text
from cloudtrain.job.sweep import Objective
from cloudtrain.plans.document import Block, Document, Heading, Table
from cloudtrain.plans.states import RunState, RunStatus, Trial, best_of
from cloudtrain.plans.status import run_document, state_cell

_SHOWN = 5
"""Number of the best trials that a status shows."""


class SweepCost(NamedTuple):
    """The cost of a sweep in US dollars, at list prices.

    Attributes:
        spent: the cost of all trials so far, including running trials.
        left: the maximum further cost of running and future trials; None if a trial has no time limit.
    """

    spent: float
    left: float | None


def sweep_document(
    name: str,
    ref: str,
    status: RunStatus,
    trials: Sequence[Trial],
    objective: Objective | None,
    more: Mapping[str, str],
    cost: SweepCost | None = None,
) -> Document:
    """Return a page about a sweep: its progress, its cost, and its best trials. Without an objective, the page shows
    the newest trials instead of the best. `more` adds label-value pairs."""
    ended_count = sum(trial.state.is_final for trial in trials)
    total = int(status.metrics.get("trials", len(trials)))
    going_on = len(trials) - ended_count
    words = f"{ended_count} of {total} ended" + (f", {going_on} running" if going_on else "")
    failures = sum(trial.state in (RunState.FAILED, RunState.LOST) for trial in trials)
    words += f", {failures} failed" if failures else ""
    rows = {"trials": words}
    best = best_of(trials, objective)
    if best is not None and objective is not None:
        rows["best"] = f"trial {best.number}: {objective.metric}={best.value:.4g}"
    left = _time_left(trials, total, status)
    rows |= {"left": left} if left else {}
    rows |= {"cost": _cost_text(cost, status)} if cost is not None else {}
    blocks: list[Block] = list(run_document(name, ref, replace(status, metrics={}), {**more, **rows}).blocks)
    shown_trials = ranked(trials, objective)[:_SHOWN] if objective is not None else list(trials)[-_SHOWN:]
    if shown_trials:
        title = "Best trials" if objective is not None else "Newest trials"
        blocks += [Heading(title), trials_table(shown_trials, objective, best=best)]
    return Document(blocks)


def ranked(trials: Sequence[Trial], objective: Objective | None) -> list[Trial]:
    """Return the trials that have a value of the objective, the best first. Without an objective, return all trials in
    the given order."""
    if objective is None:
        return list(trials)
    with_value = [trial for trial in trials if trial.value is not None]
    sign = -1.0 if objective.goal == "maximize" else 1.0
    return sorted(with_value, key=lambda trial: (not trial.counts, sign * (trial.value or 0.0)))


def trials_table(trials: Sequence[Trial], objective: Objective | None, *, best: Trial | None = None) -> Table:
    """Return a table with one row per trial. A star marks the best trial."""
    best = best or best_of(trials, objective)
    names = list(dict.fromkeys(name for trial in trials for name in trial.values))
    value = [objective.metric.upper()] if objective is not None else []
    reasons = any(trial.reason for trial in trials)
    headers = ("TRIAL", "STATE", *value, *(name.upper() for name in names), "TOOK", *(["REASON"] if reasons else []))
    rows = [
        (
            f"{trial.number}{'*' if best is not None and trial.number == best.number else ''}",
            "stopped early" if trial.stopped_early else state_cell(trial.state),
            *(["" if trial.value is None else f"{trial.value:.4g}"] if value else []),
            *(value_text(trial.values.get(name)) for name in names),
            _took(trial),
            *([trial.reason or ""] if reasons else []),
        )
        for trial in trials
    ]
    return Table(headers, rows)


def _time_left(trials: Sequence[Trial], total: int, status: RunStatus) -> str:
    """Return the estimated time of the remaining trials, such as `about 5m`; empty if it cannot be estimated. The
    estimate assumes that trials continue to end at the sweep's average rate. If the sweep continues an earlier one, the
    rate ignores the trials of the earlier sweep."""
    left, start_time = total - sum(trial.state.is_final for trial in trials), status.started
    if left <= 0 or status.state.is_final or start_time is None:
        return ""
    ends = [trial.ended for trial in trials if trial.state.is_final and (trial.ended or 0.0) > start_time]
    pace = (max(end or 0.0 for end in ends) - start_time) / len(ends) if ends else None
    return "" if pace is None else f"about {format_duration(max(1, int(pace * left)))}"


def _cost_text(cost: SweepCost, status: RunStatus) -> str:
    """Return a text such as `$1.20 so far, up to $3.40 more, at list prices`."""
    words = [f"${cost.spent:,.2f}" + ("" if status.state.is_final and not cost.left else " so far")]
    words += ["no limit for the rest"] if cost.left is None else []
    words += [f"up to ${cost.left:,.2f} more"] if cost.left else []
    return ", ".join([*words, "at list prices"] if len(words) > 1 else [f"{words[0]} at list prices"])


def _took(trial: Trial) -> str:
    if trial.started is None or trial.ended is None:
        return ""
    return format_duration(max(0.0, trial.ended - trial.started))
