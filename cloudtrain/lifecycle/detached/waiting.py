"""Chains: a job that reads from an unfinished run waits on this machine, and is sent when that run
has succeeded.

`ChainService` stores the request in a folder and starts the watcher, a detached process. The
watcher checks the awaited runs, and sends the request once they have succeeded. From then on, the
run is an ordinary run of its target.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from cloudtrain.documents import JsonObject
from cloudtrain.errors import RunNotFound, TargetError, UsageError
from cloudtrain.lifecycle.detached.driven import FOLLOW_EVERY, DrivenFolder, DrivenService
from cloudtrain.plans.plan import Plan, Upload
from cloudtrain.plans.progress import LogLine, OnStatus, RunStatus, Transition
from cloudtrain.plans.states import RunRef, RunState
from cloudtrain.signals.log import Log, LogBatch
from cloudtrain.targets.common.archives import unpacked
from cloudtrain.targets.contract import BundleWriter, ByteProgress, OwnMetrics, Service
from cloudtrain.targets.registry import service_of


class Try(NamedTuple):
    """One alternative of a list, as its watcher sends it.

    Attributes:
        what: the machines and the target, in a few words.
        wait: the seconds to wait for capacity; None for no limit.
        bundle: hash of the code's bundle.
        outlay: the first fields of `Outlay`.
        record: the fields of the `JobRecord` of its run.
    """

    what: str
    wait: float | None
    plan: Plan
    bundle: str
    outlay: tuple[float | None, float, float]
    record: JsonObject


@dataclass(frozen=True)
class Order:
    """The input of a watcher: a request that is sent once the runs in `after` have succeeded, or
    the tries of a list, of which one is sent after the other until one has capacity."""

    plan: Plan
    bundle: str
    """Hash of the code's bundle."""
    key: str
    submitter: str
    after: tuple[RunRef, ...]
    tries: tuple[Try, ...] = ()
    give_up_after: float | None = None

    @property
    def reason(self) -> str:
        """The reason for waiting, as in the run's status: `waits for prepare-5d1f0a37-1`."""
        names = " and ".join(ref.name for ref in self.after)
        return f"waits for {names or 'capacity'}"

    def to_json(self) -> str:
        """Return the order as JSON. Uploads of local data are left out, because they are already
        done; a try is uploaded when its turn comes."""
        done = [item for item in self.plan.uploads if item.kind != "data"]
        order: dict[str, object] = {
            "plan": _plan_data(self.plan, done),
            "after": list(map(str, self.after)),
            "bundle": self.bundle,
            "key": self.key,
            "submitter": self.submitter,
        }
        if self.tries:
            tries = []
            for item in self.tries:
                tries.append({**item._asdict(), "plan": _plan_data(item.plan, item.plan.uploads)})
            order |= {"tries": tries, "give_up_after": self.give_up_after}
        return json.dumps(order)

    @classmethod
    def read(cls, folder: DrivenFolder) -> Order:
        """Return the order that `to_json` wrote to the folder."""
        data = json.loads(folder.specification.read_bytes())
        plan = _plan_of(data.pop("plan"))
        after = tuple(map(RunRef.parse, data.pop("after")))
        tries = []
        for item in data.pop("tries", ()):
            its_plan = _plan_of(item["plan"])
            tries.append(Try(**{**item, "plan": its_plan, "outlay": tuple(item["outlay"])}))
        return cls(plan=plan, after=after, tries=tuple(tries), **data)


def _plan_data(plan: Plan, uploads: Iterable[Upload]) -> JsonObject:
    names = ("target", "run_name", "job_name", "request", "place")
    data: JsonObject = {name: getattr(plan, name) for name in names}
    return {**data, "uploads": [item._asdict() for item in uploads]}


def _plan_of(fields: JsonObject) -> Plan:
    uploads = tuple(Upload(**item) for item in fields.pop("uploads"))
    return Plan(**fields, uploads=uploads)


class ChainService(DrivenService):
    """The service for waiting runs, each with a folder and a watcher. Once a run is sent, its
    target takes over. For a submission, `after` lists the runs to wait for, and `key` is the job's
    submission key."""

    kind = "chain"
    driver = "cloudtrain.lifecycle.watcher"
    what = "waiting run"

    def __init__(
        self,
        environ: Mapping[str, str],
        state_dir: Path,
        *,
        after: tuple[RunRef, ...] = (),
        key: str = "",
        submitter: str = "",
    ) -> None:
        super().__init__(environ, state_dir)
        self._after = after
        self._key = key
        self._submitter = submitter
        self._bundle = ""

    def content(self, plan: Plan) -> str:
        return Order(plan, self._bundle, self._key, self._submitter, self._after).to_json()

    def upload(
        self, plan: Plan, bundle: BundleWriter, *, on_bytes: ByteProgress | None = None
    ) -> bool:
        """Upload code and data to the target, and keep a copy of the code in the run's folder."""
        self._bundle = bundle.sha256
        self.keep_code(plan, bundle)
        return self._target(plan.ref).upload(plan, bundle, on_bytes=on_bytes)

    def submit(self, plan: Plan, *, again: bool = False) -> RunRef:
        """Write the order and start the watcher. With `again`, do nothing if an interrupted command
        has already started a watcher or sent the run."""
        if again and not self.withdraw(plan.ref):
            return plan.ref
        return super().submit(plan)

    def has(self, ref: RunRef) -> bool:
        return super().has(ref) or self._target(ref).has(ref)

    def withdraw(self, ref: RunRef) -> bool:
        return super().withdraw(ref) and not self._target(ref).has(ref)

    def status(self, ref: RunRef) -> RunStatus:
        """Return the status of the run. If the watcher of a waiting run has died, the run is `lost`
        until `cloudtrain continue`."""
        waiting = self.waiting(ref)
        if waiting is None:
            return self._target(ref).status(ref)
        if waiting.state is RunState.LOST and self.folder(ref.name).sending.exists():
            with suppress(RunNotFound):  # it may have been sent by a watcher that died then
                return self._target(ref).status(ref)
        return waiting

    def waiting(self, ref: RunRef) -> RunStatus | None:
        """Return the status of a waiting run; None if the run was sent, or never waited on this
        machine."""
        folder = self.folder(ref.name)
        # before the status, which is final or says `sent` when the watcher has ended
        is_watched = folder.is_driven
        status = folder.read_status()
        if not status or status.get("sent"):
            return None
        state = RunState(status["state"])
        reason = status["reason"]
        if not state.is_final and not is_watched:
            state = RunState.LOST
            reason = (
                f"the process that {reason} has died; `cloudtrain continue {ref.name}` "
                "starts it again"
            )
        return RunStatus(state, reason, ended=status["ended"], created=status["started"])

    def tries(self, ref: RunRef) -> tuple[Transition, ...]:  # noqa: ARG002 - a list has some
        """Return the tries of a list of alternatives; none of another run."""
        return ()

    def logs(
        self,
        ref: RunRef,
        *,
        follow: bool = False,
        rank: int | None = None,
        instance: int | None = None,
        on_status: OnStatus = None,
    ) -> Iterator[LogLine]:
        """Yield the log lines of a run that was sent. A waiting run has none; with `follow`, wait
        until the run is sent, then yield its lines."""
        while (status := self.waiting(ref)) is not None:
            if on_status is not None:
                on_status(status)
            if status.state.is_final or not follow:
                return
            time.sleep(FOLLOW_EVERY)
        yield from self._target(ref).logs(
            ref, follow=follow, rank=rank, instance=instance, on_status=on_status
        )

    def journal_folder(self, ref: RunRef) -> str | None:
        return None if self.waiting(ref) else self._target(ref).journal_folder(ref)

    def metrics_folder(self, ref: RunRef, cache: Path) -> Path | None:
        return None if self.waiting(ref) else self._target(ref).metrics_folder(ref, cache)

    def log_after(self, ref: RunRef, mark: Any) -> Log[LogLine] | Log[LogBatch] | None:
        return None if self.waiting(ref) else self._target(ref).log_after(ref, mark)

    def own_metrics(self, ref: RunRef, mark: Any) -> OwnMetrics:
        return OwnMetrics() if self.waiting(ref) else self._target(ref).own_metrics(ref, mark)

    def stop(self, ref: RunRef) -> None:
        """Stop the run. If it is still waiting, end the wait, so that nothing is sent."""
        waiting = self.waiting(ref)
        if waiting is not None and (waiting.state is RunState.LOST or not waiting.state.is_final):
            try:
                self.ask_to_stop(self.folder(ref.name))
            except TargetError:
                if self.waiting(ref) is not None:
                    raise
            waiting = self.waiting(ref)
        if waiting is None:  # it was sent, perhaps at this moment
            self._target(ref).stop(ref)

    def resume(self, ref: RunRef) -> None:
        waiting = self.waiting(ref)
        if waiting is None or waiting.state is not RunState.LOST:
            state = self.status(ref).state
            message = f"`{ref.name}` is {state}, so there is nothing to continue"
            raise UsageError(message, hint=_status_hint(ref), code="CT995")
        self._start(self.folder(ref.name))

    def code(self, ref: RunRef, upload: Upload, scratch: Path) -> Iterator[Path]:
        """Yield folders with the code of the run. The code of a waiting run is the copy on this
        machine."""
        if self.waiting(ref) is None:
            return self._target(ref).code(ref, upload, scratch)
        return unpacked(self.folder(ref.name).archive, upload.sha256, scratch)

    def download(self, ref: RunRef, path: str, destination: Path) -> list[Path]:
        if self.waiting(ref) is not None:
            message = f"`{ref.name}` has not been sent yet, so it has no files"
            raise UsageError(message, hint=_status_hint(ref), code="CT996")
        return self._target(ref).download(ref, path, destination)

    def _target(self, ref: RunRef) -> Service:
        """Return the service that has the run once it is sent."""
        return service_of(ref.target, self)


def _status_hint(ref: RunRef) -> str:
    return f"`cloudtrain status {ref.name}` gives the reason"
