"""The service of Slurm clusters. It runs shell scripts on the machine that has Slurm's commands."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from cloudtrain.catalogue.nodes import NodeKind
from cloudtrain.core.states import ListedRun, LogLine, RunRef, RunStatus
from cloudtrain.errors import RunNotFound
from cloudtrain.targets.base import BundleWriter, ByteProgress, Service
from cloudtrain.targets.common.following import Pace, follow
from cloudtrain.targets.slurm.account import SlurmAccount
from cloudtrain.targets.slurm.layout import RunFolder
from cloudtrain.targets.slurm.service import scripts, submission
from cloudtrain.targets.slurm.service.download import download
from cloudtrain.targets.slurm.service.instances import list_nodes
from cloudtrain.targets.slurm.service.logs import RunLog
from cloudtrain.targets.slurm.service.records import Record, parse_records
from cloudtrain.targets.slurm.service.runner import Runner
from cloudtrain.targets.slurm.service.status import status_of
from cloudtrain.targets.slurm.service.upload import upload

if TYPE_CHECKING:
    from cloudtrain.core.job import TrainingJob
    from cloudtrain.core.plan import Finding, Plan, Upload
    from cloudtrain.targets.slurm.settings import Slurm

PACE = Pace(every=2.0, per_stream=0.0, settle=4.0)

_AT_ONCE = 50
"""Maximum number of runs in one status command."""


class SlurmService(Service):
    """Submits and manages runs on Slurm clusters. A run's reference holds its login node and its shared folder."""

    in_flight = 0.0
    """Seconds for which a sent request may still be in transit: 0, because sbatch holds the run's lock for that time;
    see `submission`."""
    names_are_unique = False

    def __init__(self, *, environ: Mapping[str, str], state_dir: Path, pace: Pace = PACE) -> None:
        self._environ = environ
        self._state_dir = state_dir
        self._pace = pace

    def check(self, job: TrainingJob, settings: Slurm, plan: Plan) -> list[Finding]:  # noqa: ARG002 - the request says it
        """Check the request on the cluster: run `sbatch --test-only`, and check partition and shared folder."""
        from cloudtrain.targets.slurm.service.online import check

        return check(self._runner(SlurmAccount.parse(plan.place)), plan)

    def can_check(self, settings: Slurm) -> bool:
        """Return whether the settings have a shared folder, which a check needs."""
        return settings.shared_dir is not None

    def upload(self, plan: Plan, bundle: BundleWriter, *, on_bytes: ByteProgress | None = None) -> bool:
        """Upload the bundle to the shared folder. Return False if the cluster already has it."""
        return upload(self._runner(SlurmAccount.parse(plan.place)), plan, bundle, on_bytes)

    def submit(self, plan: Plan, *, again: bool = False) -> RunRef:
        """Submit the batch script with sbatch. If the run already has a job, submit nothing.

        Raises:
            NameTaken: the run already has a job, and `again` is false.
        """
        submission.send(self._runner(SlurmAccount.parse(plan.place)), plan, again=again)
        return plan.ref

    def has(self, ref: RunRef) -> bool:
        """Return whether the run has a job."""
        return bool(submission.find(*self._at(ref), ref))

    def withdraw(self, ref: RunRef) -> bool:
        """Make sure that the run never gets a job. Return False if it already has a job."""
        return submission.withdraw(*self._at(ref), ref)

    def status(self, ref: RunRef) -> RunStatus:
        """Return the status of the run."""
        runner, folder = self._at(ref)
        record = self._record(runner, folder, ref)
        return status_of(record, lambda: runner.run(scripts.TAILS, folder.path).decode("utf-8", "replace"))

    def logs(
        self,
        ref: RunRef,
        *,
        follow: bool = False,
        rank: int | None = None,
        instance: int | None = None,
        on_status: Callable[[RunStatus], None] | None = None,
    ) -> Iterator[LogLine]:
        """Yield the output of the run's processes, or of one `rank` or `instance`, over all restarts. With `follow`,
        continue until the run ends."""
        runner, folder = self._at(ref)
        self._record(runner, folder, ref)
        return self._lines(ref, RunLog(runner, folder.path, rank, instance), is_followed=follow, on_status=on_status)

    def _lines(
        self, ref: RunRef, log: RunLog, *, is_followed: bool, on_status: Callable[[RunStatus], None] | None
    ) -> Iterator[LogLine]:
        if is_followed:
            yield from follow(log, lambda: self.status(ref), on_status, self._pace)
            yield from log.rest()
            return
        status = self.status(ref)  # before the log, which is complete when the status is final
        if on_status is not None:
            on_status(status)
        yield from log.new_lines()
        if status.state.is_final:
            yield from log.rest()

    def stop(self, ref: RunRef) -> None:
        """Send SIGTERM to the batch script. The script sends SIGTERM to its processes, and kills those that still run
        after the grace period."""
        if not self.status(ref).state.is_final:
            runner, folder = self._at(ref)
            runner.run(scripts.STOP, folder.path)

    def runs(self, place: str) -> Iterator[ListedRun]:
        """Yield the runs of the shared folder, newest first. Only `status` reports the error of a failed rank."""
        account = SlurmAccount.parse(place)
        runner = self._runner(account)
        names = runner.run(scripts.LIST, account.shared_dir).decode().split()
        for start in range(0, len(names), _AT_ONCE):
            answer = runner.run(scripts.STATUS, f"{account.shared_dir}/runs", *names[start : start + _AT_ONCE])
            for record in parse_records(answer):
                yield ListedRun(RunRef("slurm", place, record.name), status_of(record, lambda: ""))

    def instances(self, place: str) -> list[NodeKind]:
        """Return the types of nodes in the cluster: GPUs, memory, partitions, and how many nodes are idle now."""
        return list_nodes(self._runner(SlurmAccount.parse(place)))

    def code(self, ref: RunRef, upload: Upload, scratch: Path) -> Iterator[Path]:
        """Yield the folder with the unpacked bundle; nothing if the bundle is missing on the cluster or damaged."""
        from cloudtrain.targets.common.archives import unpacked
        from cloudtrain.targets.slurm.service.download import fetch

        runner, _ = self._at(ref)
        archive = scratch / "sourcedir.tar.gz"
        if fetch(runner, upload.destination, archive):
            yield from unpacked(archive, upload.sha256, scratch)

    def download(self, ref: RunRef, path: str, destination: Path) -> list[Path]:
        """Copy the run's output `path` into `destination`. With an empty path, copy all outputs."""
        runner, folder = self._at(ref)
        self._record(runner, folder, ref)
        return download(runner, folder, path, destination)

    def _record(self, runner: Runner, folder: RunFolder, ref: RunRef) -> Record:
        """Return the run's record: its journal and Slurm's data about its job.

        Raises:
            RunNotFound: the run has no job.
        """
        runs = folder.path.rpartition("/")[0]
        for _ in range(2):
            found = next(parse_records(runner.run(scripts.STATUS, runs, ref.name)), Record(ref.name))
            if found.job:
                return found
            if not submission.find(runner, folder, ref):  # the sender may have died before it recorded the job
                break
        raise RunNotFound(f"there is no run `{ref.name}` at `{ref.place}`", hint="`cloudtrain ps` lists the runs")

    def _at(self, ref: RunRef) -> tuple[Runner, RunFolder]:
        account = SlurmAccount.parse(ref.place)
        if not ref.name or "/" in ref.name or ref.name in (".", ".."):
            raise RunNotFound(f"there is no run `{ref.name}`", hint="`cloudtrain ps` lists the runs")
        return self._runner(account), RunFolder.of(account.shared_dir, ref.name)

    def _runner(self, account: SlurmAccount) -> Runner:
        return Runner(account.host, self._environ, self._state_dir)
