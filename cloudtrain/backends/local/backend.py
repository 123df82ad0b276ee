"""The local backend: runs as folders, each owned by a detached supervisor."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from threading import get_native_id
from typing import TYPE_CHECKING, Any

from cloudtrain._lock import is_held
from cloudtrain.backends.base import BundleWriter, OnBytes
from cloudtrain.backends.local.children import command
from cloudtrain.backends.local.download import download
from cloudtrain.backends.local.folder import FINAL, RunFolder
from cloudtrain.backends.local.lost import finish
from cloudtrain.backends.local.machine import host_name, this_machine
from cloudtrain.backends.local.reading import JournalReader
from cloudtrain.compile.local import compile_local
from cloudtrain.errors import RunNotFound, TargetError
from cloudtrain.job import TrainingJob
from cloudtrain.plans import CompileContext, Finding, LocalAccount, Plan
from cloudtrain.states import Listed, LogLine, RunRef, RunState, RunStatus
from cloudtrain.targets import Local

if TYPE_CHECKING:
    from cloudtrain.processing import AnyJob

_FOLLOW_EVERY = 0.05
"""Seconds between two looks at a run that is followed."""

_NOT_INHERITED = (
    "RANK LOCAL_RANK GROUP_RANK NODE_RANK ROLE_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_WORLD_SIZE ROLE_WORLD_SIZE "
    "MASTER_ADDR MASTER_PORT TF_CONFIG"
).split()
_NOT_INHERITED_PREFIXES = ("CLOUDTRAIN_", "TORCHELASTIC_", "OMPI_", "PMIX_", "PRTE_")
"""Variables of a launcher around the submitter (a run that submits a run): its processes are not ours."""


class LocalBackend:
    """This machine. Needs no account, no network and no service; everything is files below `state_dir`."""

    name = "local"
    in_flight = 0.0

    def __init__(self, state_dir: Path, *, environ: Mapping[str, str]) -> None:
        self._state_dir = Path(os.path.abspath(state_dir))  # noqa: PTH100 - as the plan will write it
        self._environ = environ

    def account(self, target: Local) -> LocalAccount:  # noqa: ARG002 - the protocol's
        """This machine as the compile context wants it."""
        return LocalAccount(
            state_dir=str(self._state_dir),
            python=sys.executable,
            machine=this_machine(self._environ),
            host=host_name(),
            mpirun=shutil.which("mpirun", path=self._environ.get("PATH", os.defpath)),
        )

    def compile(self, job: AnyJob, target: Local, context: CompileContext) -> Plan:
        """The plan of a job on this machine."""
        if isinstance(job, TrainingJob):
            return compile_local(job, target, context)
        from cloudtrain.compile.local_processing import compile_local_processing

        return compile_local_processing(job, target, context)

    def check(self, job: TrainingJob, target: Local, plan: Plan) -> list[Finding]:  # noqa: ARG002 - the protocol's
        """Nothing: there is no account."""
        return []

    def can_check(self, target: Local) -> bool:  # noqa: ARG002 - the protocol's
        """Nothing is missing for checks that do not exist."""
        return True

    def upload(self, plan: Plan, bundle: BundleWriter, *, on_bytes: OnBytes | None = None) -> bool:  # noqa: ARG002
        """Write the archive where the plan says; False when it is there already."""
        archive = Path(plan.uploads[0].destination)
        if archive.exists():
            return False
        archive.parent.mkdir(parents=True, exist_ok=True)
        bundle.write(archive)
        return True

    def submit(self, plan: Plan, *, since: float = 0.0) -> RunRef:  # noqa: ARG002 - its runs and the store are one
        """Write the launch specification and start a supervisor; returns once it has taken over.

        A run that exists with the very same specification is left alone: a submission may be repeated.

        Raises:
            TargetError: a run of that name exists and is another one, or the supervisor cannot start.
        """
        folder = self._folder(plan.run_name)
        try:
            _write_launch(folder, plan.request_json.encode())
            if not os.path.exists(folder.status):  # noqa: PTH110 - RunFolder speaks in strings
                _start_supervisor(folder, _inherited(self._environ))
        except OSError as error:
            hint = f"make room, or move the state folder: CLOUDTRAIN_STATE_DIR (now `{self._state_dir}`)"
            raise TargetError(f"the run cannot be written: {error}", hint=hint) from error
        return self._ref(plan.run_name)

    def has(self, ref: RunRef, *, since: float = 0.0) -> bool:  # noqa: ARG002 - as for `submit`
        """Whether a supervisor ever took over a run of that name."""
        return self._has(ref.name)

    def _has(self, run_name: str) -> bool:
        if not run_name or "/" in run_name or run_name in (".", ".."):
            return False
        return os.path.exists(self._folder(run_name).status)  # noqa: PTH110 - RunFolder speaks in strings

    def status(self, ref: RunRef) -> RunStatus:
        """Where the run is now. A run that lost its supervisor is cleaned up first."""
        status = self._status(self._known(ref))
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
        """The output so far; with `follow`, until the run has ended and its last line is out."""
        folder = self._known(ref)
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
            status = self.status(ref)  # before the journal, which is whole when the status is final
            if on_status is not None and status != told:
                on_status(status)
                told = status
            yield from reader.new_lines(rank)
            if status.state.is_final or not follow:
                return
            time.sleep(_FOLLOW_EVERY)

    def stop(self, ref: RunRef) -> None:
        """SIGTERM to the supervisor, which passes it on. Nothing for a run that has ended."""
        status = self._status(self._known(ref))
        if status["state"] not in FINAL:
            try:
                os.kill(status["pid"], signal.SIGTERM)
            except ProcessLookupError:  # it ended between the two lines
                return

    def runs(self, place: str = "") -> Iterator[Listed]:  # noqa: ARG002 - the protocol's
        """The runs of this machine's state folder, newest first."""
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
            yield Listed(self._ref(name), self.status(self._ref(name)))

    def download(self, ref: RunRef, path: str, destination: Path) -> list[Path]:
        """Copy what the run wrote; see `cloudtrain.backends.local.download`."""
        try:
            spec = self._known(ref).read_launch()
        except (OSError, ValueError) as error:
            hint = f"look into its folder: `{self._folder(ref.name).path}`"
            raise TargetError(f"where the run has written cannot be read: {error}", hint=hint) from error
        return download(spec, path, destination)

    def _folder(self, run_name: str) -> RunFolder:
        return RunFolder(f"{self._state_dir}/runs/{run_name}")

    def _ref(self, run_name: str) -> RunRef:
        return RunRef("local", host_name(), run_name)

    def _known(self, ref: RunRef) -> RunFolder:
        """The folder of a run that exists here.

        Raises:
            RunNotFound: there is none, or it runs on another machine that shares the folder.
        """
        if ref.place != host_name():
            hint = f"log in to `{ref.place}` and ask there"
            raise RunNotFound(f"the run `{ref.name}` belongs to the machine `{ref.place}`", hint=hint)
        if not self._has(ref.name):
            raise RunNotFound(f"there is no run `{ref.name}` on this machine", hint="`cloudtrain ps` lists the runs")
        return self._folder(ref.name)

    def _status(self, folder: RunFolder) -> dict[str, Any]:
        """The status; when nobody holds the lock of a run that is not final, the run is finished first."""
        status = _read(folder)
        if status["state"] in FINAL or is_held(Path(folder.lock)):
            return status
        try:
            finish(folder.path)
        except OSError as error:
            reason = f"the supervisor was killed, and the run's folder cannot be written: {error}"
            return {**_read(folder), "state": "lost", "reason": reason}
        return _read(folder)


def _read(folder: RunFolder) -> dict[str, Any]:
    status = folder.read_status()
    assert status is not None, "a status is replaced, never removed"
    return status


def _inherited(environ: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environ.items()
        if name not in _NOT_INHERITED and not name.startswith(_NOT_INHERITED_PREFIXES)
    }


def _write_launch(folder: RunFolder, content: bytes) -> None:
    """`launch.json` appears whole, and only once.

    Raises:
        TargetError: there is one already, and it is another.
    """
    Path(folder.path).mkdir(parents=True, exist_ok=True)
    temporary = Path(f"{folder.launch}.{os.getpid()}.{get_native_id()}")
    temporary.write_bytes(content)
    try:
        os.link(temporary, folder.launch)  # fails where the file exists, unlike a rename
    except FileExistsError:
        if Path(folder.launch).read_bytes() != content:
            hint = "give the job another name"
            name = Path(folder.path).name
            raise TargetError(f"a run `{name}` exists already, and it is another one", hint=hint) from None
    finally:
        temporary.unlink()


def _start_supervisor(folder: RunFolder, environ: Mapping[str, str]) -> None:
    """Returns when a supervisor, this one or a quicker one, has the run.

    Raises:
        TargetError: it could not start; the message says what it said.
    """
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as ready, Path(folder.log).open("ab") as log:
        try:
            child = subprocess.Popen(
                command("supervisor", folder.path, str(writer)),
                cwd=folder.path,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(writer,),
                start_new_session=True,
            )
        finally:
            os.close(writer)
        answer = ready.read(1)
        child.wait()
    if not answer:
        said = Path(folder.log).read_text("utf-8", "replace").strip().splitlines()
        message = said[-1] if said else "it said nothing"
        raise TargetError(f"the supervisor did not start: {message}", hint=f"see `{folder.log}`")
