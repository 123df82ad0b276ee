"""The common code of services that give each run a folder and a detached process on this machine."""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from cloudtrain.core.job import TrainingJob
from cloudtrain.core.plan import Finding, Plan
from cloudtrain.core.states import RunRef
from cloudtrain.errors import NameTaken, TargetError
from cloudtrain.sweeps.folder import DrivenFolder
from cloudtrain.system.detached import last_line, start_detached
from cloudtrain.system.lock import ProcessLock
from cloudtrain.system.private import make_private_folder, open_private, write_once
from cloudtrain.targets.base import Service


class DrivenService(Service):
    """A service whose runs are each driven by a detached process.

    A run's folder holds the state of the run, so any later process can read it.
    """

    in_flight = 0.0
    names_are_unique = True
    driver: ClassVar[str]
    """The module whose `main` is the driver process."""
    what: ClassVar[str]
    """The noun for a run in messages, such as `sweep`."""

    def __init__(self, environ: Mapping[str, str], state_dir: Path) -> None:
        self.environ = environ
        self.state_dir = Path(os.path.abspath(state_dir))  # noqa: PTH100 - as trials will write it

    @abstractmethod
    def folder(self, name: str) -> DrivenFolder:
        """Return the folder of a run."""

    def content(self, plan: Plan) -> str:
        """Return the text of the specification, which is the driver's input."""
        return plan.request_json

    def check(self, job: TrainingJob, settings: Any, plan: Plan) -> list[Finding]:  # noqa: ARG002 - the promise's
        """Return no findings, because the target's own service checks the job."""
        return []

    def submit(self, plan: Plan, *, again: bool = False) -> RunRef:
        """Write the specification and start a driver. Return once the driver has taken over the run. Pass `again=True`
        to repeat an interrupted submission.

        Raises:
            NameTaken: a run of that name exists already.
            TargetError: the driver cannot start.
        """
        folder = self.folder(plan.run_name)
        try:
            make_private_folder(folder.path)
            if self._write_once(folder, self.content(plan).encode(), again=again) or folder.read_status() is None:
                self._start(folder)
        except OSError as error:
            raise self._unwritable(error) from error
        return plan.ref

    def has(self, ref: RunRef) -> bool:
        """Return whether a driver has ever taken over the run."""
        return self.folder(ref.name).read_status() is not None

    def withdraw(self, ref: RunRef) -> bool:
        """Remove the specification of a run. Return False, and remove nothing, if a driver has taken over the run."""
        folder = self.folder(ref.name)
        if not folder.path.is_dir():
            return True
        lock = ProcessLock.take(folder.lock)
        if lock is None:
            return False
        try:
            if folder.read_status() is not None:
                return False
            folder.specification.unlink(missing_ok=True)
            return True
        finally:
            lock.release()

    def ask_to_stop(self, folder: DrivenFolder) -> None:
        """Ask the driver to end the run. If the driver has died, start it again to do this.

        Raises:
            TargetError: the folder cannot be written, or the driver cannot start.
        """
        try:
            os.close(open_private(folder.stop, os.O_WRONLY | os.O_CREAT))
            if not folder.is_driven:
                self._start(folder)
                return
        except OSError as error:
            raise self._unwritable(error) from error
        pid = (folder.read_status() or {}).get("pid")
        if pid:  # a driver that is starting has not written its own yet; it will see the file
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    def _unwritable(self, error: OSError) -> TargetError:
        hint = f"free disk space, or set CLOUDTRAIN_STATE_DIR to another folder (now `{self.state_dir}`)"
        return TargetError(f"the files of the {self.what} cannot be written: {error}", hint=hint, code="CT994")

    def _start(self, folder: DrivenFolder) -> None:
        """Start a driver, and return once this or another driver has taken over the run.

        Raises:
            TargetError: no driver could start. The message ends with the last line of the driver's log.
        """
        root = str(Path(__file__).parents[2])
        boot = f"import sys; sys.path.append(sys.argv.pop(1)); from {self.driver} import main; main()"

        def argv(ready: int) -> list[str]:
            return [sys.executable, "-I", "-c", boot, root, str(self.state_dir), folder.name, str(ready)]

        if not start_detached(argv, folder.log, env=self.environ, empty_log=True) and not folder.is_driven:
            message = f"the driver did not start: {last_line(folder.log) or 'it wrote no message'}"
            raise TargetError(message, hint=f"read its log: `{folder.log}`", code="CT951")

    def _write_once(self, folder: DrivenFolder, content: bytes, *, again: bool) -> bool:
        """Write the specification atomically. With `again`, return False if an interrupted attempt has already written
        the same specification.

        Raises:
            NameTaken: another submission has written a specification.
        """
        is_written = write_once(folder.specification, content, sync=True)
        if not is_written and not (again and folder.specification.read_bytes() == content):
            hint = f"give the {self.what} another name"
            raise NameTaken(f"a {self.what} named `{folder.name}` exists already", hint=hint)
        return is_written


class Archive:
    """The stored code archive of a run, as a `BundleWriter`."""

    def __init__(self, file: Path, sha256: str) -> None:
        self._file = file
        self.sha256 = sha256

    def write(self, path: Path) -> None:
        """Copy the archive to `path` atomically."""
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        shutil.copyfile(self._file, temporary)
        temporary.replace(path)


def detach(arguments: list[str] | None) -> tuple[Path, str, Callable[[], None]]:
    """Detach from the process that started this process. `arguments` are `STATE_DIR NAME DESCRIPTOR`; default: the
    arguments of the command line.

    Return STATE_DIR, NAME, and a function that reports that the driver has taken over, by writing to the file
    descriptor DESCRIPTOR.
    """
    state_dir, name, descriptor = arguments or sys.argv[1:]
    if os.fork():
        os._exit(0)

    def ready() -> None:
        os.write(int(descriptor), b"1")
        os.close(int(descriptor))

    return Path(state_dir), name, ready


def woken_by(number: signal.Signals) -> int:
    """Return a file descriptor that becomes readable when the signal `number` arrives. The signal has no other
    effect."""
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(number, lambda _number, _frame: None)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    return reader


def sleep_until_woken(wake: int, seconds: float) -> None:
    """Sleep for `seconds`, or until a signal arrives at `wake`, the file descriptor from `woken_by`. Each signal ends
    only one sleep."""
    select.select([wake], [], [], seconds)
    with suppress(BlockingIOError):
        os.read(wake, 64)
