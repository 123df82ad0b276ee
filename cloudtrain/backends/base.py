"""What a backend promises. The contract suite in `tests/backends/` holds every backend to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from cloudtrain.job import TrainingJob
from cloudtrain.plans import CompileContext, Finding, Plan
from cloudtrain.states import Listed, LogLine, RunRef, RunStatus

if TYPE_CHECKING:
    from cloudtrain.processing import AnyJob

OnBytes = Callable[[int, int], None]
"""Told how many bytes of an upload are there, and of how many."""


CLOCK_SKEW = 300.0
"""Seconds by which this machine's clock may differ from a service's; AWS refuses requests that are further off."""


def is_earlier(created: float | None, since: float) -> bool:
    """Whether a run that a service made at `created` cannot be that of a submission that began at `since`."""
    return created is not None and created < since - CLOCK_SKEW


class BundleWriter(Protocol):
    """The user's code, ready to be written as an archive when a backend turns out to need it."""

    @property
    def sha256(self) -> str:
        """Hash of the content; the archive's name."""
        ...

    def write(self, path: Path) -> None:
        """Write the archive. Atomic: `path` either holds the whole archive or does not exist."""
        ...


class Backend(Protocol):
    """The code that compiles for one target and talks to it.

    1. `compile` is pure. `account` reads what it needs to know beforehand and is the only method of the two that
       may look at the machine or the network.
    2. The same job, target and context give the same request, byte for byte.
    3. `submit` sends exactly `plan.request`. It may be called again for a run name whose submission broke off, and
       leaves one run; when it raises, `has` tells whether the run exists all the same, in this process or in a later
       one. A run of that name made before `since`, when this submission began, is another one: `NameTaken`.
    4. An unknown run is `RunNotFound`, in every method that takes a reference.
    5. `stop` is idempotent and returns at once; a finished run stays as it is.
    6. `logs` of a finished run yields every line and ends. While following it ends when the run does, after the
       last line; it loses and repeats none, a lost connection included. Every process's output can be read.
    7. `status` maps every state of the provider to a `RunState`; a failed run has a reason.
    8. Throttling and lost connections are retried with backoff; what cannot be retried is a `TargetError`.
    9. No method prints, and none asks.
    """

    name: str

    in_flight: float
    """Seconds after which a request whose sender was interrupted has arrived, or never will; 0 where `submit` leaves
    nothing on its way."""

    def account(self, target: Any) -> Any:
        """The account settings for the compile context, with a property `place`: the middle of its runs' references.

        Looks at this machine only; what only the network knows is left to `check`.
        """
        ...

    def compile(self, job: AnyJob, target: Any, context: CompileContext) -> Plan:
        """The plan with its `place`, without findings.

        Raises `TargetUnavailable` or `JobError` for what the target lacks.
        """
        ...

    def check(self, job: TrainingJob, target: Any, plan: Plan) -> list[Finding]:
        """Checks that ask the target: role, quota, workspace. Empty for targets without an account.

        Called before a submit and by `cloudtrain check`, never by a plan. What may not be looked at is a warning.
        A processing job comes as what it shares with a training job.
        """
        ...

    def can_check(self, target: Any) -> bool:
        """Whether `check` has what it needs to ask the target, as far as this machine alone can tell."""
        ...

    def upload(self, plan: Plan, bundle: BundleWriter, *, on_bytes: OnBytes | None = None) -> bool:
        """Put the bundle in place; False when it was there already. `on_bytes` may be called from other threads."""
        ...

    def submit(self, plan: Plan, *, since: float = 0.0) -> RunRef:
        """Send the request. The run exists when this returns. `since` is in seconds since the epoch."""
        ...

    def has(self, ref: RunRef, *, since: float = 0.0) -> bool:
        """Whether the target has that run of ours, made since then: how a broken submission is finished or forgotten.

        Raises `TargetError` when it cannot be asked, or has a run of that name that somebody else made.
        """
        ...

    def status(self, ref: RunRef) -> RunStatus:
        """Where the run is now."""
        ...

    def logs(
        self,
        ref: RunRef,
        *,
        follow: bool = False,
        rank: int | None = None,
        instance: int | None = None,
        on_status: Callable[[RunStatus], None] | None = None,
    ) -> Iterator[LogLine]:
        """The output so far, line by line, of one rank, one instance or all; with `follow`, until the run ends."""
        ...

    def stop(self, ref: RunRef) -> None:
        """Ask the run to save and leave."""
        ...

    def runs(self, place: str) -> Iterator[Listed]:
        """The runs that the target has at a place, whoever made them, newest first; asked for as they are taken."""
        ...

    def download(self, ref: RunRef, path: str, destination: Path) -> list[Path]:
        """Copy what the run wrote under `path` (`model/`, `outputs/NAME`, `checkpoint/`, `logs/`, or `` for all)."""
        ...
