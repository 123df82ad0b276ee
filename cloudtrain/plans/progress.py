"""What a service reports about a run: its status, lines of output, metrics and trials. A plan needs
none of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from cloudtrain.documents import JsonMapping, JsonObject
from cloudtrain.plans.states import RunRef, RunState
from cloudtrain.runtime.metrics import PREFIX as METRICS
from cloudtrain.runtime.metrics import parse_metrics

if TYPE_CHECKING:
    from cloudtrain.job.sweep import Objective

PLACES = ("epoch", "step")
"""Names of values that say at which point of the training the other values were measured."""


class _Brief:
    """A dataclass whose repr leaves out what has its default, and writes times as dates."""

    def __repr__(self) -> str:
        words = []
        for item in fields(cast("Any", self)):
            value = getattr(self, item.name)
            if item.repr and value != item.default and value not in ({}, ()):
                words.append(f"{item.name}={_brief(item.name, value)}")
        return f"{type(self).__name__}({', '.join(words)})"


def _brief(name: str, value: Any) -> str:
    """Return the repr of a field's value; of transitions, only the phases."""
    if isinstance(value, RunState):
        return str(value)
    if name in ("started", "ended", "created"):
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(value))
    if name == "transitions":
        return f"({', '.join(item.phase for item in value)})"
    return repr(value)


class Transition(NamedTuple):
    """One phase of a run, with its start and end. `phase` is the provider's name, such as
    `Downloading`."""

    phase: str
    started: float
    ended: float | None = None
    message: str | None = None


class TrainingProgress(NamedTuple):
    """How far a training is: `unit` is `step` or `epoch`, `seconds_left` None without a pace."""

    unit: str
    at: float
    end: float
    seconds_left: float | None = None

    @property
    def fraction(self) -> float:
        """The finished part, from 0 to 1."""
        return max(0.0, min(1.0, self.at / self.end))


class Notice(NamedTuple):
    """What a person should see at once about a run.

    Attributes:
        kind: `alert` of the script; `not_finite` or `exploding` for a loss; `waiting` or `stalled`
            if the ranks wait for one of them; `idle`, `memory` or `disk` for a machine.
        text: one line.
        time: when it began, in seconds since the epoch.
        rank: the rank that it is about; None if it is about no single one.
        ended: when the state was over; None as long as it lasts.
    """

    kind: str
    text: str
    time: float
    rank: int | None = None
    ended: float | None = None


class MetricSummary(NamedTuple):
    """The values of one metric in a few numbers.

    Attributes:
        number: how many values there are.
        step: the step of the last value; None if the script named none.
        best: the lowest value if `is_minimized`, else the highest; None if none is finite.
        trend: at most 32 finite values over the whole course, the first and the newest among them.
    """

    name: str
    source: str
    rank: int | None
    is_minimized: bool
    number: int
    first: float
    last: float
    step: float | None
    best: float | None
    best_step: float | None
    trend: tuple[float, ...]


@dataclass(frozen=True, repr=False)
class RunStatus(_Brief):
    """The status of a run, as the target reports it. Times are seconds since the epoch (UTC).

    `created` is the time when the provider accepted the job; `started` is the time when the job
    began to run. `billable_seconds` is the time billed for each instance so far. `cost` is the list
    price in US dollars for all instances. `saved` is the fraction of the cost that spot capacity
    saved. Unknown values are None.

    `reason` is one line that says why a run failed, stopped or was lost: the provider's reason, and
    for a failed rank its number, its exit code and the last line of its traceback. `details` holds
    the last lines of output that explain the reason. `page` is the URL of the run's web page at the
    provider. `queue_place` is the position, from 1, of a run that waits in a queue of cloudtrain.
    `steps` holds the newest step of each rank of a local run whose script calls
    `runtime.report(step=...)` on every rank. `trials` holds the newest step and objective of each
    running trial of a sweep that cloudtrain drives. `notices` holds what a person should see at
    once, `machines` what the machine of each instance does, `main` the newest and best value of the
    main metric, and `progress` how far the training is; `Run.observe` reads the last three from the
    metrics.
    """

    state: RunState
    reason: str | None = None
    started: float | None = None
    ended: float | None = None
    details: tuple[str, ...] = ()
    failed_rank: int | None = None
    exit_code: int | None = None
    restarts: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    created: float | None = None
    transitions: tuple[Transition, ...] = ()
    billable_seconds: float | None = None
    cost: float | None = None
    saved: float | None = None
    page: str | None = None
    queue_place: int | None = None
    steps: dict[int, float] = field(default_factory=dict)
    trials: dict[int, dict[str, float]] = field(default_factory=dict)
    notices: tuple[Notice, ...] = ()
    machines: dict[int, dict[str, float]] = field(default_factory=dict, repr=False)
    main: MetricSummary | None = None
    progress: TrainingProgress | None = None


OnStatus = Callable[[RunStatus], None] | None
"""Is called with every new status of a run that is followed."""


class QueuedRun(NamedTuple):
    """A run in a queue of cloudtrain: a waiting run, or a run that occupies slots that other runs
    wait for.

    `place` is the position from 1, or None for a run that does not wait. `needs` describes the
    slots that the run waits for, `has` the slots that it occupies. `since` is the time when the run
    began to wait or got its slots, in seconds since the epoch.
    """

    ref: RunRef
    place: int | None
    needs: str
    has: str
    priority: int
    since: float

    def row(self) -> JsonObject:
        """Return the run as JSON data."""
        return {"name": self.ref.name, **self._asdict(), "ref": str(self.ref)}


class ListedRun(NamedTuple):
    """A run in a list of runs. The status may lack details that only a query for the single run
    returns."""

    ref: RunRef
    status: RunStatus


class LogLine(NamedTuple):
    """One line of output of one process. `rank` is None for lines of the launcher itself."""

    time: float
    instance: int
    rank: int | None
    stream: str
    text: str

    @property
    def metrics(self) -> dict[str, float] | None:
        """The values of a `[metrics]` line, which holds only values; None for any other line."""
        return parse_metrics(self.text) if METRICS in self.text else None


# A trial: one run of a sweep, its hyperparameter values and its result.


@dataclass(frozen=True, repr=False)
class Trial(_Brief):
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
    values: JsonMapping
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
        """Whether the trial ended without completing its work, so that running it again makes
        sense."""
        is_cut_off = self.state is RunState.STOPPED and not self.stopped_early
        return is_cut_off or self.state in (RunState.FAILED, RunState.LOST)

    def row(self) -> JsonObject:
        """Return the trial as one flat row of a table."""
        row = {
            "trial": self.number,
            "run": self.run,
            "state": str(self.state),
            "value": self.value,
        }
        for name, value in self.values.items():
            row[f"values.{name}"] = value
        for name in ("stopped_early", "started", "ended", "reason"):
            row[name] = getattr(self, name)
        return row


def best_of(trials: Iterable[Trial], objective: Objective | None) -> Trial | None:
    """Return the trial with the best value; of equal trials, the first. None if no trial has
    succeeded with a value, or if there is no objective."""
    if objective is None:
        return None
    best: Trial | None = None
    best_value = 0.0
    for trial in trials:
        if not trial.counts:
            continue
        value = trial.value or 0.0
        if best is None or objective.better(value, best_value):
            best = trial
            best_value = value
    return best
