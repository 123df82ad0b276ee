"""The processes that the supervisor starts itself: launchers, or the ranks of a job without a launcher."""

# Paths are strings here: this has to start, and to poll, in no time.
# ruff: noqa: PTH123
from __future__ import annotations

import os
import signal
import subprocess

from cloudtrain.targets.local.service import killing
from cloudtrain.targets.local.service.sources import STREAMS, launched_log

TYPE_CHECKING = False  # as typing.TYPE_CHECKING, without importing typing
if TYPE_CHECKING:
    from collections.abc import Callable

    from cloudtrain.launch.specification import StartedProcess


class Launched:
    """One started process. `exit_code` is None while it runs."""

    def __init__(self, process: StartedProcess, child: subprocess.Popen[bytes]) -> None:
        self.instance = process.instance
        self.role = process.role
        self.rank = process.rank
        self.pid = child.pid
        self.exit_code: int | None = None
        self.is_empty = False
        """The process has ended, and its session is empty. From then on the system may reuse its id."""
        self._signal = process.signal
        self._child = child

    def poll(self) -> bool:
        """Return True once: when the process has ended since the last call."""
        if self.exit_code is not None:
            return False
        self.exit_code = self._child.poll()
        if self.exit_code is None:
            return False
        self.is_empty = not killing.session_members(self.pid)
        return True

    def terminate(self, ranks: list[int]) -> None:
        """Send SIGTERM to the process, which passes it on, to its whole group, or to the ranks that it has started."""
        if self._signal == "group" and not self.is_empty:
            _send(os.killpg, self.pid)
        elif self._signal == "ranks" and ranks:
            for pid in ranks:
                _send(os.kill, pid)
        elif self.exit_code is None:
            _send(os.kill, self.pid)

    def is_leaving(self) -> bool:
        """Return whether anything is still running after `terminate`: the process itself or, if its whole group was
        signalled, any member of its session."""
        if self._signal == "group" and not self.is_empty and self.exit_code is not None:
            self.is_empty = not killing.session_members(self.pid)
            return not self.is_empty
        return self.exit_code is None


def launch(
    process: StartedProcess,
    index: int,
    *,
    logs: str,
    directory: str | None,
    argv: list[str],
    environment: dict[str, str],
    umask: int,
) -> Launched:
    """Start one process in its own session, with its output going to files. `umask` is the submitter's.

    Raises:
        OSError: the process cannot be started.
    """
    paths = [launched_log(logs, process, index, stream) for stream in STREAMS]
    with open(paths[0], "ab") as stdout, open(paths[1], "ab") as stderr:
        child = subprocess.Popen(
            argv,
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
            umask=umask,
        )
    return Launched(process, child)


def _send(kill: Callable[[int, int], None], pid: int) -> None:
    try:
        kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        return
