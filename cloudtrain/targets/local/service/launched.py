"""The processes that the supervisor starts directly: launchers, or the ranks of a job without a launcher."""

# Paths are strings here, because this module must start and poll quickly.
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
    """A process that the supervisor started. `exit_code` is None while it runs."""

    def __init__(self, process: StartedProcess, child: subprocess.Popen[bytes]) -> None:
        self.instance = process.instance
        self.role = process.role
        self.rank = process.rank
        self.pid = child.pid
        self.exit_code: int | None = None
        self.is_empty = False
        """Whether the process has ended and its session is empty. The system may then reuse its id."""
        self._signal = process.signal
        self._child = child

    def poll(self) -> bool:
        """Return True once: at the first call after the process has ended."""
        if self.exit_code is not None:
            return False
        self.exit_code = self._child.poll()
        if self.exit_code is None:
            return False
        self.is_empty = not killing.session_members(self.pid)
        return True

    def terminate(self, ranks: list[int]) -> None:
        """Send SIGTERM to the process, to its process group, or to the ranks that it started, depending on its
        `signal` setting."""
        if self._signal == "group" and not self.is_empty:
            _send(os.killpg, self.pid)
        elif self._signal == "ranks" and ranks:
            for pid in ranks:
                _send(os.kill, pid)
        elif self.exit_code is None:
            _send(os.kill, self.pid)

    def is_leaving(self) -> bool:
        """Return whether the process is still running after `terminate`. If `terminate` signals its whole group, return
        whether any process of its session is still running."""
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
    """Start one process in its own session. Its output goes to files under `logs`.

    `index` is the process's position in the launch specification, `umask` the submitter's umask.

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
