"""The common code of services that give each run a folder and a detached process on this
machine."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import sys
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from shlex import quote
from typing import Any, ClassVar, NamedTuple

from cloudtrain.errors import CloudtrainError, NameTaken, TargetError, UsageError
from cloudtrain.plans.plan import Plan
from cloudtrain.plans.progress import ListedRun
from cloudtrain.plans.states import RunRef, RunState
from cloudtrain.system.files import KEPT
from cloudtrain.system.private import (
    make_private_folder,
    make_state_folder,
    open_private,
    write_once,
)
from cloudtrain.system.processes import (
    Owner,
    ProcessLock,
    is_held,
    start_detached,
)
from cloudtrain.targets.common.services import did_not_start
from cloudtrain.targets.contract import BundleWriter, Service
from cloudtrain.targets.registry import ServiceContext

# The folder of a run that a detached process drives: `sweeps/NAME` or `chains/NAME` in the state
# folder.
#
#   sweep.json     the specification, exactly as planned, and the data beside it
#   chain.json     the order, as it was submitted
#   code.tar.gz    the code, in case the target loses it before a trial or the waiting run is sent
#   sending/       the run store of a waiting run's watcher, through which it submits the run to the
#                  target. If the folder exists, the run may already have been sent
#   driver.lock    locked by the driver as long as it lives
#   continue.lock  locked by `continue` and `rerun` until the driver has taken over
#   driver.log     the driver's own output; empty unless something is wrong
#   status.json    the state of the sweep. The file never grows, so the last state can be written
#                  even if the disk is full
#   study.jsonl    the journal: see `sweeps/study.py`
#   stop           written by `cloudtrain stop`, so that the driver stops every trial and ends

_SIZE = 4096
"""Fixed size of `status.json` in bytes. The file is rewritten in place, in one block."""

GLANCE = 0.5
"""Seconds for which a process that needs a lock of this folder tries again. A process that reads
the status of a run holds each lock for some microseconds."""

FOLLOW_EVERY = 0.2
"""Seconds between two checks of a run that is followed."""

_COPIED = "this is a copy of a folder that is driven elsewhere:"

Step = Callable[[str], None]
"""Called with the name of each step of a driver, so that tests can end the process there."""


class DrivenFolder:
    """The folder of one run that a detached process drives: its paths, and methods to read and
    write its status. `kind` is `sweep` or `chain`."""

    def __init__(self, state_dir: Path, kind: str, name: str) -> None:
        self.name = name
        self.path: Path = state_dir / f"{kind}s" / name
        self.specification: Path = self.path / f"{kind}.json"
        self.archive: Path = self.path / "code.tar.gz"
        self.lock: Path = self.path / "driver.lock"
        self.turn: Path = self.path / "continue.lock"
        self.log: Path = self.path / "driver.log"
        self.status: Path = self.path / "status.json"
        self.stop: Path = self.path / "stop"
        self.sending: Path = self.path / "sending"

    @property
    def is_driven(self) -> bool:
        """Whether a driver of this run lives."""
        return is_held(self.lock)

    def write_status(
        self, state: RunState, reason: str | None, *, start_time: float, **more: Any
    ) -> None:
        """Replace the status. `reason` explains the state, `start_time` is the run's start in
        seconds since the epoch, and `more` are additional fields.

        Raises:
            OSError: the status cannot be written.
        """
        make_private_folder(self.path)
        end_time = time.time() if state.is_final else None
        content = {
            "state": str(state),
            "reason": reason,
            "started": start_time,
            "ended": end_time,
            "pid": os.getpid(),
            "owner": Owner.of(self.path),
            **more,
        }
        text = json.dumps(content)
        if len(text) > _SIZE:
            less = {"reason": (reason or "")[:200], "metrics": {}, "progress": {}}
            text = json.dumps(content | less)

        descriptor = open_private(self.status, os.O_WRONLY | os.O_CREAT)
        try:
            os.pwrite(descriptor, text.encode().ljust(_SIZE), 0)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def read_status(self) -> dict[str, Any]:
        """Return the status; empty if no driver has ever taken over the run. A copy of an
        unfinished run's folder has lost it."""
        for _ in range(3):
            try:
                status: dict[str, Any] = json.loads(self.status.read_bytes())
                original = None
                if status.get("owner"):  # an earlier version wrote none
                    driver = Owner(*status["owner"])
                    original = driver.path if driver.is_elsewhere(self.path) else None
            except FileNotFoundError:
                return {}
            except ValueError:  # being written
                time.sleep(0.01)
            else:
                status["original"] = original
                if original and not RunState(status["state"]).is_final:
                    status |= {"state": "lost", "reason": f"{_COPIED} `{original}`"}
                return status
        return {
            "state": "lost",
            "reason": "its status cannot be read",
            "started": None,
            "ended": None,
        }

    def refuse_copy(self) -> None:
        """Raise UsageError if this folder is a copy, whose driver would send all again."""
        original = self.read_status().get("original")
        if original:
            state_dir = quote(str(Path(original).parents[1]))
            hint = f"give the command with `CLOUDTRAIN_STATE_DIR={state_dir}`"
            raise UsageError(f"{_COPIED} `{original}`", hint=hint, code="CT997")


class DrivenService(Service):
    """A service whose runs are each driven by a detached process. A run's folder holds the state of
    the run, so any later process can read it."""

    in_flight: float = 0.0
    names_are_unique = True
    kind: ClassVar[str]
    """The kind of the runs' folders."""
    driver: ClassVar[str]
    """The module whose `main` is the driver process. A process with an earlier version in its
    memory starts it by this name, so the name stays."""
    what: ClassVar[str]
    """The noun for a run in messages, such as `sweep`."""

    def __init__(self, environ: Mapping[str, str], state_dir: Path) -> None:
        self.environ = environ
        # absolute, as in the requests of trials
        self.state_dir: Path = Path(os.path.abspath(state_dir))

    def folder(self, name: str) -> DrivenFolder:
        return DrivenFolder(self.state_dir, self.kind, name)

    @abstractmethod
    def content(self, plan: Plan) -> str:
        """Return the text of the specification, which is the driver's input."""

    def runs(self, place: str) -> Iterator[ListedRun]:  # noqa: ARG002 - the promise's
        """Yield nothing, because the target's own service lists what was sent to the target."""
        return iter(())

    def keep_code(self, plan: Plan, bundle: BundleWriter) -> None:
        folder = self.folder(plan.run_name)
        with self._writing():
            make_state_folder(self.state_dir, ours=KEPT)
            make_private_folder(folder.path)
            if not folder.archive.exists():
                bundle.write(folder.archive)

    def submit(self, plan: Plan, *, again: bool = False) -> RunRef:
        """Write the specification and start a driver. Return once the driver has taken over the
        run."""
        folder = self.folder(plan.run_name)
        with self._writing():
            make_private_folder(folder.path)
            is_new = write_once(folder.specification, self.content(plan).encode(), sync=True)
            # an interrupted attempt may have written it
            is_own = is_new or (again and self.is_written(folder.specification.read_bytes(), plan))
            if not is_own:
                message = f"a {self.what} named `{folder.name}` exists already"
                raise NameTaken(message, hint=f"give the {self.what} another name")
            if is_new or not folder.read_status():
                self._start(folder)
        return plan.ref

    def has(self, ref: RunRef) -> bool:
        """Return whether a driver has ever taken over the run."""
        return bool(self.folder(ref.name).read_status())

    def withdraw(self, ref: RunRef) -> bool:
        """Remove the specification of a run. Return False, and remove nothing, if a driver has
        taken over the run."""
        folder = self.folder(ref.name)
        if not folder.path.is_dir():
            return True
        lock = ProcessLock.take(folder.lock)
        if lock is None:
            return False
        try:
            if folder.read_status():
                return False
            folder.specification.unlink(missing_ok=True)
            return True
        finally:
            lock.release()

    def ask_to_stop(self, folder: DrivenFolder) -> None:
        """Ask the driver to end the run. If the driver has died, start it again to do this. Raises
        `UsageError` in a copy of the run's folder."""
        folder.refuse_copy()
        with self._writing():
            os.close(open_private(folder.stop, os.O_WRONLY | os.O_CREAT))
            if not folder.is_driven:
                self._start(folder)
                return

        pid = folder.read_status().get("pid")
        if pid:  # a driver that is starting has not written its own yet; it will see the file
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Replace an OSError of the block by a TargetError (CT994)."""
        try:
            yield
        except OSError as error:
            hint = (
                "free disk space, or set CLOUDTRAIN_STATE_DIR to another folder (now "
                f"`{self.state_dir}`)"
            )
            message = f"the files of the {self.what} cannot be written: {error}"
            raise TargetError(message, hint=hint, code="CT994") from error

    def _start(self, folder: DrivenFolder) -> None:
        """Start a driver, and return once this or another driver has taken over the run. Raises
        `UsageError` in a copy of the run's folder."""
        folder.refuse_copy()
        has_started = start_driver(self.driver, folder, self.environ)
        if not has_started and not folder.is_driven:
            raise did_not_start("driver", folder.log)

    def is_written(self, content: bytes, plan: Plan) -> bool:
        """Return whether `content` is the specification of this plan."""
        return content == self.content(plan).encode()


def start_driver(
    module: str, folder: DrivenFolder, environ: Mapping[str, str], *, is_awaited: bool = True
) -> bool:
    """Start `main` of a module as the driver of a folder, and return whether it has taken over.
    With `is_awaited=False`, return False before the driver has imported its modules.

    Raises:
        OSError: the log cannot be written, or no process can be started.
    """
    # `-I` keeps modules of the user's folders out, and cloudtrain too if it is not installed
    boot = f"import os, sys; sys.path.append(sys.argv.pop(1)); from {module} import main; main()"
    if not is_awaited:
        boot = f"import os, sys; os.close(int(sys.argv.pop())); os.fork() and os._exit(0); {boot}"
    root = str(Path(__file__).parents[3])
    state_dir = str(folder.path.parents[1])
    program = [sys.executable, "-I", "-c", boot, root, state_dir, folder.name]

    def argv(ready: int) -> list[str]:
        return [*program, str(ready)]

    return start_detached(argv, folder.log, env=environ, empty_log=True)


def ensure_sender(here: ServiceContext) -> None:
    """Start the process that sends notifications, unless it is alive. Without it, the next command
    tries again."""
    folder = sender_folder(here.state_dir)
    if not folder.is_driven:
        with suppress(OSError):
            make_private_folder(folder.path)
            start_driver("cloudtrain.lifecycle.sender", folder, here.environ, is_awaited=False)


def sender_folder(state_dir: Path) -> DrivenFolder:
    return DrivenFolder(Path(os.path.abspath(state_dir)), "notification", "sender")


class Archive(NamedTuple):
    """The stored code archive of a run, as a `BundleWriter`."""

    file: Path
    sha256: str

    def write(self, path: Path) -> None:
        """Copy the archive to `path` atomically."""
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        shutil.copyfile(self.file, temporary)
        temporary.replace(path)


def in_words(error: CloudtrainError) -> str:
    """Return the message of an error with its hint, as the reason of a run."""
    return f"{error.message}; {error.hint}" if error.hint else error.message


def detach(kind: str) -> tuple[DrivenFolder, Callable[[], None]]:
    """Detach from the process that started this process. The arguments of the command line are
    `STATE_DIR NAME DESCRIPTOR`.

    Return the folder of the run NAME, and a function that reports that the driver has taken over,
    by writing to the file descriptor DESCRIPTOR.
    """
    state_dir, name, descriptor = sys.argv[1:]
    if os.fork():
        os._exit(0)

    def ready() -> None:
        os.write(int(descriptor), b"1")
        os.close(int(descriptor))

    return DrivenFolder(Path(state_dir), kind, name), ready


def watch_interval() -> float:
    """Return the seconds between the first and the second check of a run. The
    environment variable `CLOUDTRAIN_WATCH_INTERVAL` sets the value; default: 30."""
    try:
        return max(0.01, float(os.environ.get("CLOUDTRAIN_WATCH_INTERVAL", "")))
    except ValueError:
        return 30.0


def wake_on_stop() -> int:
    """Return a file descriptor that becomes readable when SIGTERM arrives. The signal has no other
    effect."""
    reader, writer = os.pipe()
    for descriptor in (reader, writer):
        os.set_blocking(descriptor, False)
    signal.signal(signal.SIGTERM, lambda _number, _frame: None)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    return reader


def sleep_until_woken(wake: int, seconds: float) -> None:
    """Sleep for `seconds`, or until a signal arrives at `wake`, the file descriptor from
    `wake_on_stop`. Each signal ends only one sleep."""
    select.select([wake], [], [], seconds)
    with suppress(BlockingIOError):
        os.read(wake, 64)
