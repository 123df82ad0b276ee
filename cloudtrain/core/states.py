"""The states of a run, its reference, and what its target reports about it. The same words on every target."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from cloudtrain.errors import UsageError
from cloudtrain.runtime.metrics import PREFIX, parse_metrics

PLACES = frozenset(("epoch", "step"))
"""Names of values that say where in the training the others were measured."""


REHEARSAL = "-rehearsal"
"""The end of the job name under which the runs of a rehearsal are listed."""


class RunState(str, Enum):
    """Where a run is in its life. The tables that map a provider's states to these are the targets'."""

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
        """True when the run will never change again."""
        return self in _FINAL

    def __str__(self) -> str:
        return self.value


_FINAL = frozenset({RunState.SUCCEEDED, RunState.FAILED, RunState.STOPPED, RunState.LOST})

_REFERENCE = re.compile(r"(?P<target>[a-z][a-z0-9_]*)://(?P<place>[^/]+)/(?P<name>[^/]+)")


class RunRef(NamedTuple):
    """`target://place/name`: `sagemaker://eu-west-1/cifar10-3f9a1c22-1`, `local://host/cifar10-3f9a1c22-1`.

    `place` is the region, the workspace, or for local runs the host.
    """

    target: str
    place: str
    name: str

    def __str__(self) -> str:
        return f"{self.target}://{self.place}/{self.name}"

    @classmethod
    def parse(cls, text: str) -> RunRef:
        """The reference that `str` wrote.

        Raises:
            UsageError: the text is not a run reference.
        """
        match = _REFERENCE.fullmatch(text)
        if match is None:
            raise UsageError(
                f"`{text}` is not a run reference", hint="a reference looks like `local://host/name`", code="CT933"
            )
        return cls(**match.groupdict())


class Transition(NamedTuple):
    """A phase of a run in the provider's own words (`Downloading`, `Training`), with the time it took."""

    phase: str
    started: float
    ended: float | None = None
    message: str | None = None


@dataclass(frozen=True)
class RunStatus:
    """What a target knows about a run now. Times are seconds since the epoch (UTC).

    `created` is when the provider took the job; `started` when it began to run. `billable_seconds` is what every
    instance is billed for so far, `cost` the US dollars for all of them by the catalogue's list prices, and `saved`
    the fraction that spot capacity saved, once the provider says. All are None where they are not known.

    `reason` is one line that says why a run failed, stopped or was lost: the provider's reason, and for a failed
    rank its number, its exit code and the last line of its traceback. `details` holds the last lines of output that
    explain it. `page` is the address of the run's page at the provider. `queue_place` is the place, from 1 on, of a run
    that waits in a queue of ours. `steps` is the newest step of each rank, for those who follow a run of this machine
    whose script calls `runtime.report(step=...)` on every rank.
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


class QueuedRun(NamedTuple):
    """A run in a queue of ours: one that waits, or one whose place those that wait are waiting for.

    `place` is counted from 1, and None for a run that does not wait. `needs` says what it waits for, `has` what it got.
    `since` is when it began to wait, or got its place, in seconds since the epoch.
    """

    ref: RunRef
    place: int | None
    needs: str
    has: str
    priority: int
    since: float


class ListedRun(NamedTuple):
    """A run as a list of runs shows it. Its status may lack what only a closer look tells."""

    ref: RunRef
    status: RunStatus


@dataclass(frozen=True)
class LogLine:
    """One line of output of one process. `rank` is None for what the launcher itself says.

    `values` is what the job's `metrics` found in it, None where that is nothing, or where the target does not look.
    """

    time: float
    instance: int
    rank: int | None
    stream: str
    text: str
    values: dict[str, float] | None = field(default=None, hash=False)

    @property
    def is_metrics(self) -> bool:
        """Whether it is a `[metrics]` line, which says nothing else."""
        return PREFIX in self.text and parse_metrics(self.text) is not None

    @property
    def metrics(self) -> dict[str, float] | None:
        """The values of a `[metrics]` line, and those that the job's `metrics` found in any other one."""
        parsed = parse_metrics(self.text) if PREFIX in self.text else None
        return self.values if parsed is None else parsed


class Metrics:
    """The metrics of a run, line by line. Where several ranks print what a pattern reads, the lowest one counts."""

    def __init__(self) -> None:
        self._rank_of: dict[str, tuple[bool, int]] = {}

    def of(self, line: LogLine) -> dict[str, float] | None:
        """The values of a line that count, None where there are none."""
        if line.values is None or line.is_metrics:
            return line.metrics
        rank = (line.rank is None, line.instance if line.rank is None else line.rank)
        for name in line.values.keys() - PLACES:
            self._rank_of[name] = min(rank, self._rank_of.get(name, rank))
        return self._keep(line.values, rank)

    def every(self, lines: Iterable[LogLine]) -> list[dict[str, float]]:
        """The values of all lines, where a rank that prints late counts from the start on."""
        found = [line for line in lines if self.of(line)]
        return [values for line in found if (values := self.of(line))]

    def _keep(self, values: dict[str, float], rank: tuple[bool, int]) -> dict[str, float] | None:
        kept = {name: value for name, value in values.items() if name in PLACES or self._rank_of[name] == rank}
        return kept if kept.keys() - PLACES or not values.keys() - PLACES else None
