"""Kill every process of a run, including those that left its session.

A process belongs to a run if it was started with `CLOUDTRAIN_RUN_DIR=<the run's folder>` in its environment (data
loader workers, daemons that a script forked), or if the supervisor knows its id. If the supervisor knows a process, all
its descendants also belong to the run, and so do all processes in a session that it leads. In this way, programs that
overwrite their environment, as setproctitle does, are found too.
"""

from __future__ import annotations

import os
import signal
import time

from cloudtrain.targets.local.service import proc

TYPE_CHECKING = False  # as typing.TYPE_CHECKING, without importing typing
if TYPE_CHECKING:
    from collections.abc import Iterable

_PATIENCE = 5.0
"""Seconds after which `kill_run` gives up on a process that survives SIGKILL (stuck in the kernel)."""


def members(run_dir: str, known: Iterable[int] = ()) -> list[int]:
    """Return the ids of a run's running processes, without zombies and without this process. `known`: the ids that the
    supervisor knows."""
    roots, marker, own = set(known), f"CLOUDTRAIN_RUN_DIR={run_dir}", os.getpid()
    stats = {pid: stat for pid in proc.processes() if (stat := proc.stat_of(pid)) is not None}

    def descends(pid: int) -> bool:
        while pid in stats:
            if pid in roots:
                return True
            pid = stats[pid].parent
        return False

    return [
        pid
        for pid, stat in stats.items()
        if pid != own
        and not stat.is_zombie
        and (stat.session in roots or (roots and descends(pid)) or proc.carries(pid, marker))
    ]


def session_members(leader: int) -> list[int]:
    """Return the ids of the running processes in the session that `leader` leads, without zombies."""
    stats = ((pid, proc.stat_of(pid)) for pid in proc.processes())
    return [pid for pid, stat in stats if stat is not None and stat.session == leader and not stat.is_zombie]


def kill_run(run_dir: str, known: Iterable[int] = ()) -> int:
    """Send SIGKILL to every process of a run until no process is left. Return the number of killed processes. `known`:
    the ids that the supervisor knows."""
    roots, killed, deadline = set(known), set[int](), time.monotonic() + _PATIENCE
    while found := members(run_dir, roots):
        for pid in found:
            _kill(pid)
        killed.update(found)
        if time.monotonic() > deadline:
            break
        time.sleep(0.01)
    return len(killed)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return
