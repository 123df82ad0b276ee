"""The service for runs on this machine. Each run is a folder and a detached supervisor."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from cloudtrain.core.job import TrainingJob
from cloudtrain.core.plan import Finding, Plan, Upload
from cloudtrain.core.states import ListedRun, LogLine, QueuedRun, RunRef, RunState, RunStatus
from cloudtrain.core.targets import DEFAULT_TARGET
from cloudtrain.errors import CloudtrainError, NameTaken, RunNotFound, TargetError
from cloudtrain.launch.specification import LaunchSpecification
from cloudtrain.store import KEPT
from cloudtrain.system.detached import last_line, start_detached
from cloudtrain.system.lock import is_held
from cloudtrain.system.private import make_private_folder, make_state_folder, write_once
from cloudtrain.targets.base import BundleWriter, ByteProgress
from cloudtrain.targets.common.archives import put_archive, unpacked
from cloudtrain.targets.common.copying import copy_places
from cloudtrain.targets.common.machine import host_name
from cloudtrain.targets.local.service import queued
from cloudtrain.targets.local.service.folder import FINAL, RunFolder
from cloudtrain.targets.local.service.lost import finish
from cloudtrain.targets.local.service.own_processes import command
from cloudtrain.targets.local.service.reading import JournalReader, steps_of
from cloudtrain.targets.local.service.supervisor import QUEUED
from cloudtrain.targets.local.service.work import NAME, working_files
from cloudtrain.targets.local.settings import Local

_FOLLOW_EVERY = 0.05
"""Seconds between two reads of a followed run's output."""

_NOT_INHERITED = (
    "RANK LOCAL_RANK GROUP_RANK NODE_RANK ROLE_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_WORLD_SIZE ROLE_WORLD_SIZE "
    "MASTER_ADDR MASTER_PORT TF_CONFIG"
).split()
_NOT_INHERITED_PREFIXES = ("CLOUDTRAIN_", "TORCHELASTIC_", "OMPI_", "PMIX_", "PRTE_")
"""Prefixes of variables that a submitter has if it is itself part of a run. They describe this outer run's processes,
so a new run does not inherit them."""


class LocalService:
    """The service of the local target. It needs no account and no network, and keeps all data in files below
    `state_dir`."""

    in_flight = 0.0
    names_are_unique = True

    def __init__(self, state_dir: Path, *, environ: Mapping[str, str]) -> None:
        self._state_dir = Path(os.path.abspath(state_dir))  # noqa: PTH100 - as the plan will write it
        self._environ = environ

    def check(self, job: TrainingJob, settings: Local, plan: Plan) -> list[Finding]:  # noqa: ARG002 - the promise's
        """Return no findings, because this machine has no account to check."""
        return []

    def can_check(self, settings: Local) -> bool:  # noqa: ARG002 - the promise's
        """Return True, because `check` of this target needs neither credentials nor a network."""
        return True

    def upload(self, plan: Plan, bundle: BundleWriter, *, on_bytes: ByteProgress | None = None) -> bool:  # noqa: ARG002
        """Write the bundle to the path in the plan, then build the job's environment if the job needs one. Return False
        if the bundle already existed.

        Raises:
            TargetError: the archive or the environment cannot be written, or a requirement cannot be installed.
        """
        archive = Path(plan.uploads[0].destination)
        try:
            make_state_folder(self._state_dir, ours=KEPT)
            is_new = put_archive(archive, bundle)
        except OSError as error:
            raise self._unwritable("the bundle", error) from error
        if "environment" in plan.request:
            self._provide_environment(plan)
        return is_new

    def _provide_environment(self, plan: Plan) -> None:
        from cloudtrain.launch.specification import LaunchSpecification
        from cloudtrain.targets.local.service.environments import provide

        spec = LaunchSpecification.from_json(plan.request)
        assert spec.environment is not None
        try:
            provide(spec.environment, spec.code, self._environ)
        except OSError as error:
            raise self._unwritable("the environment", error) from error

    def submit(self, plan: Plan, *, again: bool = False) -> RunRef:
        """Write the launch specification and start a supervisor. Return when the supervisor has taken over the run.
        `again`: complete an interrupted submission, which may already have written the specification.

        Raises:
            NameTaken: a run of that name already exists.
            TargetError: the supervisor cannot start.
        """
        folder = self._folder(plan.run_name)
        try:
            make_state_folder(self._state_dir, ours=KEPT)
            if _write_launch(folder, plan.request_json.encode(), again=again) or not _is_taken_over(folder):
                how = [QUEUED] if plan.request.get("queue") or plan.request.get("after") else []
                _start_supervisor(folder, _inherit(self._environ), *how)
        except OSError as error:
            raise self._unwritable("the run", error) from error
        return self._ref(plan.run_name)

    def has(self, ref: RunRef) -> bool:
        """Return whether a supervisor ever took over a run of that name."""
        return self._has(ref.name)

    def withdraw(self, ref: RunRef) -> bool:
        """Remove the launch specification of a run, unless a supervisor has taken over. Return False if one has."""
        from cloudtrain.targets.local.service.withdraw import withdraw

        return withdraw(self._folder(ref.name))

    def _has(self, run_name: str) -> bool:
        if not run_name or "/" in run_name or run_name in (".", ".."):
            return False
        return _is_taken_over(self._folder(run_name))

    def status(self, ref: RunRef) -> RunStatus:
        """Return the status of the run. If its supervisor has died, finish the run first."""
        status = self._status(self._folder_of(ref))
        return RunStatus(
            state=RunState(status["state"]),
            reason=status["reason"],
            started=status["started"],
            ended=status["ended"],
            details=tuple(status["details"]),
            failed_rank=status["failed_rank"],
            exit_code=status["exit_code"],
            restarts=status["restarts"],
            metrics=status["metrics"],
            queue_place=status.get("queue_place"),
        )

    def logs(
        self,
        ref: RunRef,
        *,
        follow: bool = False,
        rank: int | None = None,
        instance: int | None = None,
        on_status: Callable[[RunStatus], None] | None = None,
    ) -> Iterator[LogLine]:
        """Yield the output so far. With `follow`, continue until the run has ended and all lines are yielded."""
        folder = self._folder_of(ref)
        lines = self._lines(ref, folder, follow=follow, rank=rank, on_status=on_status)
        return lines if instance is None else (line for line in lines if line.instance == instance)

    def _lines(
        self,
        ref: RunRef,
        folder: RunFolder,
        *,
        follow: bool,
        rank: int | None,
        on_status: Callable[[RunStatus], None] | None,
    ) -> Iterator[LogLine]:
        reader, told = JournalReader(Path(folder.journal)), None
        while True:
            status = self.status(ref)  # before the journal, which is complete when the status is final
            if on_status is not None:
                status = replace(status, steps=steps_of(folder))
                if status != told:
                    on_status(status)
                    told = status
            yield from reader.new_lines(rank)
            if status.state.is_final or not follow:
                return
            time.sleep(_FOLLOW_EVERY)

    def stop(self, ref: RunRef) -> None:
        """Send SIGTERM to the supervisor, which then stops the run's processes. Do nothing for a run that has ended."""
        status = self._status(self._folder_of(ref))
        if status["state"] not in FINAL:
            try:
                os.kill(status["pid"], signal.SIGTERM)
            except ProcessLookupError:  # it ended between the two lines
                return

    def queue(self) -> list[QueuedRun]:
        """Return the runs that hold GPUs or slots, then the waiting runs, both in queue order."""
        return list(queued.listed(str(self._state_dir), self._ref))

    def move(self, ref: RunRef, *, before: RunRef | None = None, last: bool = False) -> None:
        """Move a waiting run before the run `before`, to the front (`before` is None), or to the end."""
        self._folder_of(ref)
        other = None if before is None else Path(self._folder_of(before).path).name
        queued.move(str(self._state_dir), ref.name, other, last=last)

    def drop(self, ref: RunRef) -> None:
        """Stop a waiting run. Refuse to stop a run that has started."""
        self._folder_of(ref)
        queued.drop(str(self._state_dir), ref.name)

    def runs(self, place: str = "") -> Iterator[ListedRun]:  # noqa: ARG002 - the promise's
        """Yield the runs of this machine's state folder, newest first. `place` is ignored."""
        found = []
        try:
            entries = list(os.scandir(self._state_dir / "runs"))
        except FileNotFoundError:
            return
        for entry in entries:
            try:
                started = os.stat(f"{entry.path}/launch.json").st_mtime_ns  # noqa: PTH116 - thousands of runs
            except OSError:
                continue
            if self._has(entry.name):
                found.append((started, entry.name))
        for _, name in sorted(found, reverse=True):
            with suppress(RunNotFound):  # removed meanwhile
                yield ListedRun(self._ref(name), self.status(self._ref(name)))

    def code(self, ref: RunRef, upload: Upload, scratch: Path) -> Iterator[Path]:
        """Yield folders with the run's code: first its code folders, then the bundle, unpacked below `scratch`."""
        spec = self._read_launch(ref)
        if spec is not None:
            yield from (Path(folder) for folder in (spec.code.directory, *(spec.code.copies or ())) if folder)
        yield from unpacked(Path(upload.destination), upload.sha256, scratch)

    def _read_launch(self, ref: RunRef) -> LaunchSpecification | None:
        with suppress(CloudtrainError):
            return self._folder_of(ref).read_launch()
        return None

    def download(self, ref: RunRef, path: str, destination: Path) -> list[Path]:
        """Copy the run's files at `path` to the folder `destination`, as `copy_places` does. Return the copies."""
        folder = self._folder_of(ref)
        spec = folder.read_launch()
        is_wanted = path.strip("/").partition("/")[0] in ("", NAME, "outputs")
        work = working_files(spec, Path(folder.unpacked)) if is_wanted else {}
        return copy_places(spec.downloads(), path, destination, chosen={NAME: work})

    def _unwritable(self, what: str, error: OSError) -> TargetError:
        hint = f"make room, or move the state folder: CLOUDTRAIN_STATE_DIR (now `{self._state_dir}`)"
        return TargetError(f"{what} cannot be written: {error}", hint=hint)

    def _folder(self, run_name: str) -> RunFolder:
        return RunFolder(f"{self._state_dir}/runs/{run_name}")

    def _ref(self, run_name: str) -> RunRef:
        return RunRef(DEFAULT_TARGET, host_name(), run_name)

    def _folder_of(self, ref: RunRef) -> RunFolder:
        """Return the folder of a run on this machine.

        Raises:
            RunNotFound: the run does not exist, or runs on another machine that shares the folder.
        """
        if ref.place != host_name():
            hint = f"log in to `{ref.place}` and run the command there"
            raise RunNotFound(f"the run `{ref.name}` belongs to the machine `{ref.place}`", hint=hint, code="CT934")
        if not self._has(ref.name):
            raise RunNotFound(f"this machine has no run `{ref.name}`", hint="`cloudtrain ps` lists the runs")
        return self._folder(ref.name)

    def _status(self, folder: RunFolder) -> dict[str, Any]:
        """Return the run's status. If the state is not final and the run's lock is free, finish the run first."""
        status = _read(folder)
        if status["state"] in FINAL or is_held(Path(folder.lock)):
            return status | queued.standing(folder.path) if status["state"] == "queued" else status
        try:
            finish(folder.path)
        except OSError as error:
            reason = f"the supervisor was killed, and the run's folder cannot be written: {error}"
            return {**_read(folder), "state": "lost", "reason": reason}
        return _read(folder)


def _is_taken_over(folder: RunFolder) -> bool:
    return os.path.exists(folder.status)  # noqa: PTH110 - RunFolder speaks in strings


def _read(folder: RunFolder) -> dict[str, Any]:
    """Return the status in a run's folder.

    Raises:
        RunNotFound: the run was removed.
    """
    status = folder.read_status()
    if status is None:
        name = Path(folder.path).name
        raise RunNotFound(f"this machine has no run `{name}`", hint="`cloudtrain ps` lists the runs")
    return status


def _inherit(environ: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environ.items()
        if name not in _NOT_INHERITED and not name.startswith(_NOT_INHERITED_PREFIXES)
    }


def _write_launch(folder: RunFolder, content: bytes, *, again: bool) -> bool:
    """Write `launch.json` in one atomic step. With `again`, return False if the file already has this content.

    Raises:
        NameTaken: another submission wrote the file.
    """
    make_private_folder(folder.path)
    is_written = write_once(folder.launch, content)
    if not is_written and not (again and Path(folder.launch).read_bytes() == content):
        name = Path(folder.path).name
        raise NameTaken(f"a run `{name}` already exists", hint="give the job another name")
    return is_written


def _start_supervisor(folder: RunFolder, environ: Mapping[str, str], *how: str) -> None:
    """Start a supervisor with the further arguments `how`. Return when this supervisor, or another one for the
    same run, has taken over. If the run must wait, it has entered the queue by that time.

    Raises:
        TargetError: the supervisor could not start; the message is its output.
    """

    def argv(ready: int) -> list[str]:
        return command("supervisor", folder.path, str(ready), *how)

    if not start_detached(argv, folder.log, env=environ, cwd=folder.path):
        message = f"the supervisor did not start: {last_line(folder.log) or 'it wrote no message'}"
        raise TargetError(message, hint=f"read its log: `{folder.log}`", code="CT951")
