"""A target that is a folder: each job is one file, whose creation is the one moment in which the job begins to exist.

It behaves like the services: a second job of a name is refused, what was sent is kept byte for byte, and the answer
can be lost after the job was made.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from cloudtrain.backends.base import BundleWriter, OnBytes, is_earlier
from cloudtrain.compile.local import compile_local
from cloudtrain.errors import NameTaken, RunNotFound, TargetError
from cloudtrain.job import TrainingJob
from cloudtrain.plans import CompileContext, Finding, LocalAccount, Machine, Plan
from cloudtrain.processing import AnyJob
from cloudtrain.states import Listed, LogLine, RunRef, RunState, RunStatus


class FileBackend:
    """Stands in for the local backend: the same compiler, another way to run."""

    name = "local"

    def __init__(self, state_dir: Path, *, environ: Mapping[str, str]) -> None:
        self._state_dir = state_dir
        self.jobs = Path(environ["FAKE_SERVICE"])
        self.unreachable = environ.get("FAKE_UNREACHABLE") == "1"
        self.refuses = environ.get("FAKE_REFUSES") == "1"
        self.interrupted = environ.get("FAKE_INTERRUPTED") == "1"
        self.in_flight = float(environ.get("FAKE_IN_FLIGHT", "0"))

    def account(self, target: Any) -> LocalAccount:
        return LocalAccount(str(self._state_dir), "/py", Machine(cpus=2), host="here")

    def compile(self, job: AnyJob, target: Any, context: CompileContext) -> Plan:
        return compile_local(job, target, context)

    def check(self, job: TrainingJob, target: Any, plan: Plan) -> list[Finding]:
        return []

    def can_check(self, target: Any) -> bool:
        return True

    def upload(self, plan: Plan, bundle: BundleWriter, *, on_bytes: OnBytes | None = None) -> bool:
        archive = Path(plan.uploads[0].destination)
        if archive.exists():
            return False
        bundle.write(archive)
        return True

    def submit(self, plan: Plan, *, since: float = 0.0) -> RunRef:
        if self.refuses:
            raise TargetError("the service refuses")
        if self.interrupted:
            raise KeyboardInterrupt  # the request has left, and nobody knows whether it arrives
        if (self.jobs / plan.run_name).exists() and not self.has(plan.ref, since=since):
            raise NameTaken(f"an earlier job named `{plan.run_name}` exists")
        self.created(plan)
        return plan.ref

    def created(self, plan: Plan) -> None:
        """The job begins to exist."""
        try:
            with (self.jobs / plan.run_name).open("x") as file:
                file.write(plan.request_json)
        except FileExistsError:
            raise TargetError(f"a job named `{plan.run_name}` exists") from None

    def has(self, ref: RunRef, *, since: float = 0.0) -> bool:
        if self.unreachable:
            raise TargetError("the service cannot be reached")
        job = self.jobs / ref.name
        return job.exists() and not is_earlier(job.stat().st_mtime, since)

    def status(self, ref: RunRef) -> RunStatus:
        if not (self.jobs / ref.name).exists():
            raise RunNotFound(f"no run {ref.name}")
        return RunStatus(RunState.RUNNING, started=time.time())

    def logs(
        self, ref: RunRef, *, follow: bool = False, rank: int | None = None, instance: int | None = None,
        on_status: Callable[[RunStatus], None] | None = None,
    ) -> Iterator[LogLine]:  # fmt: skip
        yield from ()

    def stop(self, ref: RunRef) -> None:
        pass

    def runs(self, place: str) -> Iterator[Listed]:
        for path in self.jobs.iterdir():
            ref = RunRef("local", place, path.name)
            yield Listed(ref, self.status(ref))

    def download(self, ref: RunRef, path: str, destination: Path) -> list[Path]:
        return []
