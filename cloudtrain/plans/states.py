"""The reference, state, status, metrics and trials of runs, in the same terms for every target."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from cloudtrain.documents import JsonMapping, JsonObject
from cloudtrain.errors import UsageError
from cloudtrain.runtime.metrics import parse_metrics

if TYPE_CHECKING:
    from cloudtrain.job.sweep import Objective


PLACES = ("epoch", "step")
"""Names of values that say at which point of the training the other values were measured."""


REHEARSAL = "-rehearsal"
"""Suffix of the job name under which the runs of a rehearsal are listed."""


class RunState(str, Enum):
    """The state of a run. Each target maps its provider's states to these values."""

    PENDING = "pending"
    QUEUED = "queued"
    PREPARING = "preparing"
    RUNNING = "running"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    LOST = "lost"

    @property
    def is_final(self) -> bool:
        """Whether the state is final, which means that the run will never change again."""
        return self in _FINAL

    def __str__(self) -> str:
        return self.value


_FINAL = frozenset({RunState.SUCCEEDED, RunState.FAILED, RunState.STOPPED, RunState.LOST})

_REFERENCE = re.compile(r"(?P<target>[a-z][a-z0-9_]*)://(?P<place>[^/]+)/(?P<name>[^/]+)")


class RunRef(NamedTuple):
    """The reference of a run, `target://place/name`, such as
    `sagemaker://eu-west-1/cifar10-3f9a1c22-1`.

    `place` is the region, the workspace, or for local runs the host.
    """

    target: str
    place: str
    name: str

    def __str__(self) -> str:
        return f"{self.target}://{self.place}/{self.name}"

    @classmethod
    def parse(cls, text: str) -> RunRef:
        """Parse a reference of the form `target://place/name`.

        Raises:
            UsageError: the text is not a run reference.
        """
        match = _REFERENCE.fullmatch(text)
        if match is None:
            hint = "a reference looks like `local://host/name`"
            raise UsageError(f"`{text}` is not a run reference", hint=hint, code="CT933")
        return cls(**match.groupdict())


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
    running trial of a sweep that cloudtrain drives.
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


class ListedRun(NamedTuple):
    """A run in a list of runs. The status may lack details that only a query for the single run
    returns."""

    ref: RunRef
    status: RunStatus


@dataclass(frozen=True)
class LogLine:
    """One line of output of one process. `rank` is None for lines of the launcher itself.

    `values` holds the values that the job's `metrics` patterns found in the line. It is None if the
    patterns found nothing, or if the target does not apply them.
    """

    time: float
    instance: int
    rank: int | None
    stream: str
    text: str
    values: dict[str, float] | None = field(default=None, hash=False)

    @property
    def is_metrics(self) -> bool:
        """Whether the line is a `[metrics]` line, which holds only values."""
        return parse_metrics(self.text) is not None

    @property
    def metrics(self) -> dict[str, float] | None:
        """The values of a `[metrics]` line. For any other line, this is `values`, which may be
        None."""
        values = parse_metrics(self.text)
        return self.values if values is None else values


class Metrics:
    """Collects the metrics of a run, line by line. If several ranks print lines that a pattern
    matches, only the lowest rank counts."""

    def __init__(self) -> None:
        # The lowest rank that has printed each metric: False and its number, or for a launcher True
        # and the number of its instance.
        self._rank_of: dict[str, tuple[bool, int]] = {}

    def of(self, line: LogLine) -> dict[str, float] | None:
        """Return the values of a line. A value that a pattern found is left out if a lower rank has
        also printed the metric. None if no value is left."""
        found = line.values
        if found is None or line.is_metrics:
            return line.metrics

        rank = (True, line.instance)
        if line.rank is not None:
            rank = (False, line.rank)
        names = found.keys() - PLACES
        for name in names:
            self._rank_of[name] = min(rank, self._rank_of.get(name, rank))

        of_others = {name for name in names if self._rank_of[name] != rank}
        if names and names == of_others:
            return None
        return {name: value for name, value in found.items() if name not in of_others}

    def every(self, lines: Iterable[LogLine]) -> list[dict[str, float]]:
        """Return the values of all lines. If several ranks print a metric, only the values of the
        lowest rank are kept, even if that rank starts to print later."""
        # The second pass knows the lowest rank of each metric from the first.
        measured = [line for line in lines if self.of(line)]
        return [values for values in map(self.of, measured) if values]


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


# Kinds of runs, distinguished by prefixes of their keys. An ordinary key is a hash, which never
# starts with such a prefix.

SWEEP = "sweep:"
"""A sweep that cloudtrain drives on this machine. Its trials can run on any target."""

TUNER = "tuner:"
"""A sweep that the target's own tuner drives."""

TRIAL = "trial:"
"""A run that belongs to one of cloudtrain's sweeps. Lists of runs leave it out."""


AFTER = "after:"
"""A run that waits on this machine for the runs that it reads from, and that its target does not
have yet."""


def service_name(key: str, target: str) -> str:
    """Return the name of the service for a run with the given key: the target's name, with a prefix
    such as `sweep:` for some kinds."""
    for kind in (SWEEP, TUNER, AFTER):
        if key.startswith(kind):
            return kind + target
    return target
