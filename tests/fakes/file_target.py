"""A target that is a folder: each job is one file, whose creation is the one moment in which the job begins to exist.

It behaves like the services: a second job of a name is refused, what was sent is kept byte for byte, and the answer
can be lost after the job was made.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from cloudtrain.errors import NameTaken, RunNotFound, TargetError
from cloudtrain.job.training import TrainingJob
from cloudtrain.plans.plan import Finding, Machine, Plan, Upload
from cloudtrain.plans.progress import ListedRun, LogLine, RunStatus
from cloudtrain.plans.states import RunRef, RunState
from cloudtrain.targets.common.archives import unpacked
from cloudtrain.targets.common.launch import LocalAccount
from cloudtrain.targets.contract import BundleWriter, ByteProgress, Service
from cloudtrain.targets.local.target import LocalTarget


class FileTarget(LocalTarget):
    """Stands in for the local target: the same compiler, another way to run."""

    def account(
        self, settings: Any, *, environ: Mapping[str, str], state_dir: Path, cwd: Path
    ) -> LocalAccount:
        return LocalAccount(str(state_dir), "/py", Machine(cpus=2), host="here")

    def service(self, *, environ: Mapping[str, str], state_dir: Path) -> Any:
        return FileService(environ=environ)


class FileService(Service):
    """The folder."""

    names_are_unique = True

    def __init__(self, *, environ: Mapping[str, str]) -> None:
        self.jobs = Path(environ["FAKE_SERVICE"])
        self.unreachable = environ.get("FAKE_UNREACHABLE") == "1"
        self.refuses = environ.get("FAKE_REFUSES") == "1"
        self.interrupted = environ.get("FAKE_INTERRUPTED") == "1"
        self.in_flight = float(environ.get("FAKE_IN_FLIGHT", "0"))

    def check(self, job: TrainingJob, target: Any, plan: Plan) -> list[Finding]:
        return []

    def unasked(self, target: Any) -> None:
        return None

    def upload(
        self, plan: Plan, bundle: BundleWriter, *, on_bytes: ByteProgress | None = None
    ) -> bool:
        archive = Path(plan.uploads[0].destination)
        if archive.exists():
            return False
        bundle.write(archive)
        return True

    def submit(self, plan: Plan, *, again: bool = False) -> RunRef:
        if self.refuses:
            raise TargetError("the service refuses")
        if self.interrupted:
            raise KeyboardInterrupt  # the request has left, and nobody knows whether it arrives
        try:
            self.created(plan)
        except NameTaken:
            if not again:
                raise
        return plan.ref

    def created(self, plan: Plan) -> None:
        """The job begins to exist."""
        try:
            with (self.jobs / plan.run_name).open("x") as file:
                file.write(plan.request_json)
        except FileExistsError:
            raise NameTaken(f"a job named `{plan.run_name}` exists") from None

    def has(self, ref: RunRef) -> bool:
        if self.unreachable:
            raise TargetError("the service cannot be reached")
        return (self.jobs / ref.name).exists()

    def withdraw(self, ref: RunRef) -> bool:
        return not self.has(ref)

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

    def runs(self, place: str) -> Iterator[ListedRun]:
        for path in self.jobs.iterdir():
            ref = RunRef("local", place, path.name)
            yield ListedRun(ref, self.status(ref))

    def code(self, ref: RunRef, upload: Upload, scratch: Path) -> Iterator[Path]:
        yield from unpacked(Path(upload.destination), upload.sha256, scratch)

    def download(self, ref: RunRef, path: str, destination: Path) -> list[Path]:
        return []
