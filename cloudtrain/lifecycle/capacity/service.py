"""Lists of alternatives: the same job on other machines, in another region or on another target, of
which exactly one runs.

The design, in the order of what happens:

* `capacity/plan.py` makes a `Ready` of the job as it is, and one of each alternative: the same job
  with overrides, and perhaps with other settings or another target. The plan of a list has the
  request of every entry. The key of the list is the hash of all of them, so a list is submitted
  exactly once, as any job, by `send_once`. What it takes of the caps is its dearest entry.
* `CapacityService` takes a list. It writes an `Order` with all requests into a folder, and starts
  the watcher of waiting runs (`lifecycle/watcher.py`).
* The watcher sends one try after the other. Each is a submission of its own, with the key `trial:`,
  the list's name and its number, through this user's run store. So a try is sent exactly once too,
  and if the watcher dies, the store and the target know whether it was sent.
* The next try begins only when the last one is known not to run: the target refused it, or it ended
  or was stopped before it started. An answer that does not come blocks the list. Only a lack of
  capacity moves it on, as the words of each target say (`targets/capacity.py`).
* A run that has started is the end of the list, whatever happens to it later. So is one that failed
  for another reason. From then on the list answers with what its target says of this run.

`tries.json` in the folder holds the tries so far. It is replaced before each step that it speaks
of: before a try is sent, and before a try is stopped because its wait is over.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from cloudtrain.errors import RunNotFound
from cloudtrain.lifecycle.detached.driven import DrivenFolder, DrivenService
from cloudtrain.lifecycle.detached.waiting import ChainService, Order
from cloudtrain.plans.plan import Plan
from cloudtrain.plans.progress import RunStatus, Transition
from cloudtrain.plans.states import TRIAL, RunRef, RunState
from cloudtrain.system.private import make_private_folder, replace_private
from cloudtrain.targets.contract import BundleWriter, ByteProgress, Service
from cloudtrain.targets.registry import service_of

if TYPE_CHECKING:
    from cloudtrain.runtime.hangs.verdict import Look
    from cloudtrain.targets.inside import ExecRequest, Session


@dataclass(frozen=True)
class Attempt:
    """A try of a list. Times are seconds since the epoch.

    Attributes:
        number: counts all tries of the list, from 1.
        ref: the reference of its run.
        sent: when the target accepted it; None if it has not, or if that is not known.
        leaving: why it is being stopped; empty if it is not.
        over: why it did not run; empty as long as it may run.
        has_run: whether it is the end of the list.
    """

    number: int
    what: str
    ref: str
    began: float
    sent: float | None = None
    leaving: str = ""
    over: str = ""
    ended: float | None = None
    has_run: bool = False

    @property
    def transition(self) -> Transition:
        """The try as a phase of the list."""
        text = self.over or self.leaving or ("" if self.has_run else "waits for capacity")
        return Transition(f"try {self.number}: {self.what}", self.began, self.ended, text or None)


def try_key(name: str, number: int) -> str:
    return f"{TRIAL}{name}:{number}"


def read_attempts(folder: DrivenFolder) -> list[Attempt]:
    try:
        rows = json.loads((folder.path / _TRIES).read_bytes())
    except FileNotFoundError:
        return []
    return [Attempt(**row) for row in rows]


def write_attempts(folder: DrivenFolder, attempts: Sequence[Attempt]) -> None:
    content = json.dumps([asdict(attempt) for attempt in attempts])
    replace_private(folder.path / _TRIES, content.encode(), sync=True)


_TRIES = "tries.json"


def archive_in(folder: DrivenFolder, sha256: str, first: str) -> Path:
    """Return the file of a bundle. `first` is the hash of the first entry's."""
    return folder.archive if sha256 == first else folder.path / f"code-{sha256[:16]}.tar.gz"


class CapacityService(ChainService):
    """The service for lists of alternatives. `order_of` returns the order of a list's plan, and
    `trees` are the codes of its entries."""

    what = "list of alternatives"

    def __init__(
        self,
        environ: Mapping[str, str],
        state_dir: Path,
        *,
        order_of: Callable[[Plan], Order] | None = None,
        trees: Sequence[BundleWriter] = (),
    ) -> None:
        super().__init__(environ, state_dir)
        self._order_of = order_of
        self._trees = trees

    def content(self, plan: Plan) -> str:
        assert self._order_of is not None, "the service was made to submit a list"
        return self._order_of(plan).to_json()

    def upload(
        self, plan: Plan, bundle: BundleWriter, *, on_bytes: ByteProgress | None = None
    ) -> bool:
        """Keep the code of each entry in the list's folder, and upload that of the first one."""
        self.keep_code(plan, bundle)
        folder = self.folder(plan.run_name)
        with self._writing():
            make_private_folder(folder.path)
            for tree in self._trees:
                file = archive_in(folder, tree.sha256, bundle.sha256)
                if not file.exists():
                    tree.write(file)
        assert self._order_of is not None, "the service was made to submit a list"
        first = self._order_of(plan).tries[0].plan
        return service_of(first.target, self).upload(first, bundle, on_bytes=on_bytes)

    # the target gets the tries, and nothing of the list's own name
    has = DrivenService.has
    withdraw = DrivenService.withdraw

    def status(self, ref: RunRef) -> RunStatus:
        """Return the status of the list, or of the run that was its end. Its first phases are the
        tries."""
        status = self.waiting(ref) or self._status_of_run(ref)
        return replace(status, transitions=(*self.tries(ref), *status.transitions))

    def _status_of_run(self, ref: RunRef) -> RunStatus:
        """Return the status of the newest try. One that started while cloudtrain was stopping it
        has failed, unless the user stopped the list too."""
        status = self._target(ref).status(ref)
        folder = self.folder(ref.name)
        leaving = read_attempts(folder)[-1].leaving
        if status.state is not RunState.STOPPED or not leaving or folder.stop.exists():
            return status
        return replace(
            status,
            state=RunState.FAILED,
            reason=f"capacity came while cloudtrain was stopping it ({leaving}); submit it again",
        )

    def tries(self, ref: RunRef) -> tuple[Transition, ...]:
        return tuple(attempt.transition for attempt in read_attempts(self.folder(ref.name)))

    def run_of(self, ref: RunRef) -> RunRef | None:
        """Return the reference of the newest try; None before the first."""
        attempts = read_attempts(self.folder(ref.name))
        return RunRef.parse(attempts[-1].ref) if attempts else None

    def stacks(self, ref: RunRef) -> list[Look]:
        return self._target(ref).stacks(ref)

    def enter(self, ref: RunRef, asked: ExecRequest) -> Session:
        return self._target(ref).enter(ref, asked)

    def _target(self, ref: RunRef) -> Service:
        """Return the service that has the newest try, which is asked about this try."""
        current = self.run_of(ref)
        if current is None:
            message = f"the folder of `{ref.name}` is gone, so nobody knows which run is its own"
            raise RunNotFound(
                message, hint=f"`cloudtrain status {ref.name}-t001` asks about the first try"
            )
        return cast("Service", _Forwarding(service_of(current.target, self), current))


class _Forwarding:
    """A service that is asked about one run, whatever run the caller names."""

    def __init__(self, service: Service, ref: RunRef) -> None:
        self._service = service
        self._ref = ref

    def __getattr__(self, name: str) -> Callable[..., object]:
        method = getattr(self._service, name)

        def forward(_: RunRef, *arguments: object, **options: object) -> object:
            return method(self._ref, *arguments, **options)

        return forward
