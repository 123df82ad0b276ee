"""A trial: one run of a sweep, its values, and what came of it."""

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
        number: from 1, in the order of their start.
        values: the hyperparameters of the search.
        run: the name of its run; empty before it is submitted.
        state: where the run is, as last seen.
        value: the last value of the objective; None where there is none.
        reason: why it has no value, or was stopped.
        stopped_early: whether it was stopped because others were better.
        reports: every value of the objective that it reported, in order.
        earlier: the names of its runs before this one, which `rerun` has given up.
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
        """Whether it can be the best: it has ended well, and has a value."""
        return self.value is not None and self.state is RunState.SUCCEEDED

    @property
    def has_failed(self) -> bool:
        """Whether it ended without doing what it was started for, so that running it again makes sense."""
        is_cut_off = self.state is RunState.STOPPED and not self.stopped_early
        return is_cut_off or self.state in (RunState.FAILED, RunState.LOST)

    def row(self) -> dict[str, Any]:
        """The trial as one flat row."""
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
    """The trial with the best value, the earlier one of equals; None where none counts."""
    best: Trial | None = None
    for trial in trials if objective is not None else ():
        if trial.counts and (best is None or objective.better(trial.value or 0.0, best.value or 0.0)):  # type: ignore[union-attr]  # the loop is empty without
            best = trial
    return best
