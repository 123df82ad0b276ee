"""Processes: those that outlive their command, locks, the clock, the user's environment, progress
messages."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cloudtrain.runtime.proc import boot_id, start_of
from cloudtrain.system.private import make_private_folder, open_private

if TYPE_CHECKING:
    from types import ModuleType

    from cloudtrain.system.private import StrPath


def start_detached(
    command: Callable[[int], Sequence[str]],
    log: StrPath,
    *,
    env: Mapping[str, str],
    cwd: StrPath | None = None,
    empty_log: bool = False,
) -> bool:
    """Start a process that forks and leaves its work to the child. Return when the child has
    written a byte into a pipe or has closed the pipe. The result is whether it wrote the byte.

    Args:
        command: returns the command line. Its argument is the descriptor of the pipe's write end.
        log: the private file that gets stdout and stderr.
        env: the variables of the process.
        cwd: the working directory of the process. Default: the working directory of this process.
        empty_log: remove what earlier processes have written to the log.

    Raises:
        OSError: the log cannot be opened, or the process cannot be started.
    """
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as ready:
        try:
            flags = os.O_WRONLY | os.O_CREAT
            flags |= os.O_TRUNC if empty_log else os.O_APPEND
            with os.fdopen(open_private(log, flags), "ab") as output:
                child = subprocess.Popen(
                    command(writer),
                    cwd=cwd,
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=(writer,),
                    start_new_session=True,
                )
        finally:
            # Otherwise the read below would not end when the child has closed its copy.
            os.close(writer)
        has_answered = bool(ready.read(1))
        child.wait()
    return has_answered


def last_line(log: StrPath) -> str:
    """Return the last line of a log; empty if the log is empty or cannot be read."""
    try:
        lines = Path(log).read_text("utf-8", "replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1] if lines else ""


# A lock that a process holds exactly until it ends, so that other processes can see its end, even
# after a crash.

_PAUSE = 0.01
"""Seconds between two attempts to take a lock."""


class ProcessLock:
    """An exclusive `flock` on a file. Programs that the process starts do not inherit the lock. The
    kernel releases the lock when the process dies."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor

    @classmethod
    def take(cls, path: Path, *, patience: float = 0.0) -> ProcessLock | None:
        """Take the lock and return it. Return None if a living process holds it, and still holds it
        after `patience` seconds. `is_held` holds the lock for a moment too, so pass `patience` if a
        false None does harm."""
        make_private_folder(path.parent)
        deadline = time.monotonic() + patience
        while True:
            descriptor = open_private(path, os.O_RDWR | os.O_CREAT)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                if time.monotonic() >= deadline:
                    return None
                time.sleep(_PAUSE)
                continue

            if _is_at(path, descriptor):
                return cls(path, descriptor)
            # The file was removed between the two calls, so no other process can find this lock.
            os.close(descriptor)

    def is_in_place(self) -> bool:
        """Return whether the file of the lock is still there. If it is not, no other process can
        see the lock."""
        return _is_at(self._path, self._descriptor)

    def release(self, *, remove: bool = False) -> None:
        """Release the lock. With `remove`, delete the file before the release, because afterwards
        another process could hold a lock on it."""
        if remove:
            self._path.unlink(missing_ok=True)
        os.close(self._descriptor)


def _is_at(path: Path, descriptor: int) -> bool:
    """Return whether the open file is the one at the path."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def is_held(path: Path) -> bool:
    """Return whether a living process holds the lock on the file. Writes nothing. If the file is
    missing, return False."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


# Elapsed time that is independent of changes to the wall clock.


class Moment(NamedTuple):
    """A point in time: the wall clock in seconds since the epoch, the id of the current boot, and
    the seconds since that boot. `boot` is empty if the system has no boot ids."""

    wall: float
    boot: str = ""
    uptime: float = 0.0

    def elapsed_since(self, earlier: Moment) -> float:
        """Return the seconds since `earlier`, at least 0. They are exact within one boot; otherwise
        they come from the wall clock."""
        elapsed = self.wall - earlier.wall
        if self._is_same_boot(earlier):
            elapsed = self.uptime - earlier.uptime
        return max(0.0, elapsed)

    def least_elapsed_since(self, earlier: Moment) -> float:
        """Return a lower bound of the seconds since `earlier`. After a reboot, this is the time
        since the reboot."""
        if earlier.boot and self.boot and not self._is_same_boot(earlier):
            return self.uptime
        return self.elapsed_since(earlier)

    def _is_same_boot(self, other: Moment) -> bool:
        return bool(self.boot) and self.boot == other.boot


def read_clock() -> Moment:
    uptime = 0.0
    if hasattr(time, "CLOCK_BOOTTIME"):
        uptime = time.clock_gettime(time.CLOCK_BOOTTIME)
    return Moment(time.time(), boot_id(), uptime)


# The process that works in a folder. A copy of the folder names this process too, but is not its
# folder, so nothing may be done to the process because of what the copy says.


class Owner(NamedTuple):
    """The process that drives what is in a folder: its id, its start as `_birth_of` tells it, the
    boot `boot` ("" if the system does not tell), and the path, device and inode of its folder."""

    pid: int
    start: str
    boot: str
    path: str
    device: int
    inode: int

    @classmethod
    def of(cls, folder: str | os.PathLike[str]) -> Owner:
        """Return this process as the owner of a folder."""
        status = os.stat(folder)
        path = os.path.realpath(folder)
        pid = os.getpid()
        return cls(pid, _birth_of(pid), boot_id(), path, status.st_dev, status.st_ino)

    def owns(self, folder: str | os.PathLike[str]) -> bool:
        """Return whether the folder is the owner's, wherever it was moved, and no copy. A reboot
        can give a device another number. Raises `OSError` if there is no such folder."""
        status = os.stat(folder)
        is_same_device = status.st_dev == self.device or self.boot != boot_id()
        return is_same_device and status.st_ino == self.inode

    def is_elsewhere(self, folder: str | os.PathLike[str]) -> bool:
        """Return whether the folder is a copy, while the original, or the process that drove it,
        is still there. What was only moved to another disk is no copy."""
        with suppress(FileNotFoundError):
            if self.owns(self.path):
                return not os.path.samefile(folder, self.path)
        return self.is_alive and not self.owns(folder)

    @property
    def is_alive(self) -> bool:
        """Whether the process lives and this process can see it. Another process that has got its
        id is not it."""
        if self.boot != boot_id() or self.start != _birth_of(self.pid):
            return False
        try:
            os.kill(self.pid, 0)
        except OSError:
            return False
        return True


HAS_PROC = os.path.exists("/proc/self/environ")


def process_table() -> ModuleType:
    """Return psutil, which reads the process table of systems without /proc."""
    if "site" not in sys.modules:  # the supervisor runs without site-packages
        import site

        site.main()
    import psutil

    return psutil


def _birth_of(pid: int) -> str:
    """Return when a process started, in ticks since the boot, or in seconds since the epoch on a
    system without /proc; "" if it has ended, also if nobody has collected it."""
    if HAS_PROC:
        return start_of(pid)
    table = process_table()
    try:
        process = table.Process(pid)
        has_ended = process.status() == table.STATUS_ZOMBIE
        return "" if has_ended else str(process.create_time())
    except table.Error:
        return ""


# A faster start and exit of the command line, and the environment without the variables that
# cloudtrain adds to it.

_ADDED: set[str] = set()
"""The names of the variables that cloudtrain has added to its own environment."""


def without_pydantic_plugins() -> None:
    """Keep pydantic from looking for plugins. The command line needs none, and searching all
    installed packages takes 11 of the 70 ms of `import pydantic, typer`."""
    if "PYDANTIC_DISABLE_PLUGINS" not in os.environ:
        os.environ["PYDANTIC_DISABLE_PLUGINS"] = "__all__"
        _ADDED.add("PYDANTIC_DISABLE_PLUGINS")


def user_environment() -> dict[str, str]:
    """Return the environment variables without those that cloudtrain has added."""
    return {name: value for name, value in os.environ.items() if name not in _ADDED}


# Progress messages from inner functions. The command line listens and prints them; other callers do
# not see them.

_listener: ContextVar[Callable[[str], None] | None] = ContextVar("listener", default=None)


def tell(text: str) -> None:
    """Send a progress message to the listener, if there is one."""
    listener = _listener.get()
    if listener is not None:
        listener(text)


@contextmanager
def listening(listener: Callable[[str], None]) -> Iterator[None]:
    """Pass the progress messages of the `with` block to `listener`."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)
