"""A trial: one run of a sweep, its hyperparameter values and its result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cloudtrain.core.states import RunState

if TYPE_CHECKING:
    from cloudtrain.core.sweep import Objective


@dataclass(frozen=True)
class Trial:
    """One run of a sweep.

    Attributes:
        number: number of the trial, from 1, in the order of the starts.
        values: the hyperparameter values of the trial.
        run: the name of its run; empty before it is submitted.
        state: the state of the run, as last seen.
        value: the last value of the objective, or None.
        reason: why the trial has no value, or was stopped.
        stopped_early: whether the trial was stopped because others were better.
        reports: every reported value of the objective, in order.
        earlier: the names of earlier runs of the trial, which `rerun` replaced.
    """

    number: int
    values: Mapping[str, Any]
    run: str = ""
    state: RunState = RunState.PENDING
    value: float | None = None
    reason: str | None = None
    started: float | None = None
    ended: float | None = None
    stopped_early: bool = False
    reports: tuple[float, ...] = field(default=(), repr=False)
    earlier: tuple[str, ...] = field(default=(), repr=False)

    @property
    def counts(self) -> bool:
        """Whether the trial can be the best trial, because it succeeded and has a value."""
        return self.value is not None and self.state is RunState.SUCCEEDED

    @property
    def has_failed(self) -> bool:
        """Whether the trial ended without completing its work, so that running it again makes sense."""
        is_cut_off = self.state is RunState.STOPPED and not self.stopped_early
        return is_cut_off or self.state in (RunState.FAILED, RunState.LOST)

    def row(self) -> dict[str, Any]:
        """Return the trial as one flat row of a table."""
        return {
            "trial": self.number,
            "run": self.run,
            "state": str(self.state),
            "value": self.value,
            **{f"values.{name}": value for name, value in self.values.items()},
            "stopped_early": self.stopped_early,
            "started": self.started,
            "ended": self.ended,
            "reason": self.reason,
        }


def best_of(trials: Iterable[Trial], objective: Objective | None) -> Trial | None:
    """Return the trial with the best value; of equal trials, the first. None if no trial has succeeded with a value, or
    if there is no objective.
    """
    best: Trial | None = None
    for trial in trials if objective is not None else ():
        if trial.counts and (best is None or objective.better(trial.value or 0.0, best.value or 0.0)):  # type: ignore[union-attr]  # the loop is empty without
            best = trial
    return best
