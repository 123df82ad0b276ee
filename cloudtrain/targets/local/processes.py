"""The process table of this machine, read from /proc, or with psutil on systems without /proc.

Every function returns None or an empty result for a process that has ended or belongs to another
user.
"""

# Paths are strings here, because this module must start and poll quickly.
from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from contextlib import suppress
from typing import NamedTuple

from cloudtrain.runtime.proc import child_pids, read_proc, stat_fields, state_of
from cloudtrain.system.processes import HAS_PROC, process_table
from cloudtrain.targets.local.output import STREAMS, launched_log, rank_folders

TYPE_CHECKING = False  # like typing.TYPE_CHECKING, without importing typing
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from cloudtrain.targets.common.specification import StartedProcess


class Stat(NamedTuple):
    """The entry of one process in the process table. `wait_status` is the status that `wait` would
    return, for a zombie on Linux; otherwise None."""

    parent: int
    session: int
    is_zombie: bool
    wait_status: int | None = None


def processes() -> list[int]:
    """Return the ids of all processes of this machine."""
    if HAS_PROC:
        return [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    return list(process_table().pids())


def stat_of(pid: int) -> Stat | None:
    if not HAS_PROC:
        table = process_table()
        try:
            process = table.Process(pid)
            return Stat(process.ppid(), os.getsid(pid), process.status() == table.STATUS_ZOMBIE)
        except (table.Error, OSError):
            return None
    fields = stat_fields(pid)
    if not fields:
        return None
    is_zombie = not state_of(fields)
    wait_status = int(fields[49]) if is_zombie else None
    return Stat(int(fields[1]), int(fields[3]), is_zombie, wait_status)


def environment_of(pid: int) -> dict[str, str] | None:
    if not HAS_PROC:
        table = process_table()
        try:
            environment: dict[str, str] = table.Process(pid).environ()
        except (table.Error, OSError):
            return None
        return environment
    content = read_proc(f"{pid}/environ")
    if content is None:
        return None
    pairs = (item.partition("=") for item in os.fsdecode(content).split("\0") if item)
    return {name: value for name, _, value in pairs}


def carries(pid: int, variable: str) -> bool:
    """Return whether the process was started with `variable`, written as `NAME=value`, in its
    environment."""
    name, _, value = variable.partition("=")
    return (environment_of(pid) or {}).get(name) == value


RUN_DIR = "CLOUDTRAIN_RUN_DIR"
"""The environment variable that the supervisor of a run, and all processes that it starts, have."""


def is_folder_in_use(run_dir: str) -> bool:
    """Return whether a process lives that was started for a run in this folder, which may have been
    removed since."""
    return any(carries(pid, f"{RUN_DIR}={run_dir}") for pid in processes())


def children_of(pid: int) -> list[int]:
    """Return the ids of the processes that a process, or any thread of it, has started."""
    if not HAS_PROC:
        table = process_table()
        try:
            return [child.pid for child in table.Process(pid).children()]
        except table.Error:
            return []

    children = child_pids(pid)
    if children is None:
        return [child for child, stat in _table().items() if stat.parent == pid]
    return children


# Kill every process of a run, including those that left its session.
#
# A process belongs to a run if it was started with `CLOUDTRAIN_RUN_TOKEN=<the run's token>` in its
# environment (data loader workers, daemons that a script forked), or if the supervisor knows its
# id. The supervisor makes the token; a path would not do, because another run can get the folder of
# a run that was removed. If the supervisor knows a process, all its descendants also belong to the
# run, and so do all processes in a session that it leads. In this way, programs that overwrite
# their environment, as setproctitle does, are found too.

TOKEN = "CLOUDTRAIN_RUN_TOKEN"

_PATIENCE = 5.0
"""Seconds after which `kill_run` gives up on a process that survives SIGKILL (stuck in the
kernel)."""


def members(token: str, known_pids: Iterable[int] = ()) -> list[int]:
    """Return a run's processes without zombies and this process. `known_pids`: ids that the
    supervisor knows."""
    roots = set(known_pids)
    own = os.getpid()
    marker = f"{TOKEN}={token}"

    stats = _table()

    def descends(pid: int) -> bool:
        while pid in stats:
            if pid in roots:
                return True
            pid = stats[pid].parent
        return False

    found = []
    for pid, stat in stats.items():
        if pid == own or stat.is_zombie:
            continue
        is_known = stat.session in roots or (roots and descends(pid))
        # a file is read only where the table does not tell
        if is_known or (token and carries(pid, marker)):
            found.append(pid)
    return found


def _table() -> dict[int, Stat]:
    """Return the entries of all processes of this machine, by their ids."""
    table = {pid: stat_of(pid) for pid in processes()}
    return {pid: stat for pid, stat in table.items() if stat is not None}


def session_members(leader: int) -> list[int]:
    """Return the ids of the running processes in the session that `leader` leads, without
    zombies."""
    table = _table().items()
    return [pid for pid, stat in table if stat.session == leader and not stat.is_zombie]


def kill_run(token: str, known_pids: Iterable[int] = ()) -> int:
    """Kill until no process of the run is left. Return the number of killed processes.
    `known_pids`: see `members`."""
    roots = set(known_pids)
    victims = set[int]()
    deadline = time.monotonic() + _PATIENCE
    while pids := members(token, roots):
        for pid in pids:
            # the process has ended meanwhile, or belongs to another user
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        victims.update(pids)
        if time.monotonic() > deadline:
            break
        time.sleep(0.01)
    return len(victims)


# Find the ranks of a run among the processes of this machine, and the order in which the ranks end.
#
# torchrun and mpirun start each rank with its number in an environment variable, which the
# supervisor reads from their child processes. For a forked process, the system shows the launcher's
# environment, so the fork launcher writes the ranks to files. On Linux, a pid file descriptor
# reports the end of a process at once. The ended process stays as a zombie with its exit code until
# its launcher collects it.

RANK_FILE = "rank.json"
"""The file beside the output of a forked rank. `cloudtrain.runtime.fork_launcher` writes it in one
atomic step."""

_DEPTH = 3
"""Maximum depth of ranks below a launcher in the process tree. A wrapper or a daemon can be between
them."""


class RankProcess:
    """A process that is a rank. `is_last`: its launcher will not restart it."""

    def __init__(self, pid: int, instance: int, environment: dict[str, str]) -> None:
        self.pid: int = pid
        self.instance: int = instance
        self.rank: int = int(environment.get("RANK") or environment["OMPI_COMM_WORLD_RANK"])
        self.local_rank: int = int(
            environment.get("LOCAL_RANK") or environment.get("OMPI_COMM_WORLD_LOCAL_RANK") or 0
        )
        self.attempt: int = int(environment.get("TORCHELASTIC_RESTART_COUNT", 0))
        self.is_last: bool = self.attempt >= int(environment.get("TORCHELASTIC_MAX_RESTARTS", 0))


class Exits:
    """Reports the ids of processes, which need not be children, in the order in which they end."""

    def __init__(self) -> None:
        self._events = select.epoll() if hasattr(os, "pidfd_open") else None
        self._pid_of: dict[int, int] = {}
        self._polled: set[int] = set()
        self._gone: list[int] = []

    def add(self, pid: int) -> None:
        """Watch a process. One that has already ended is reported by the next `wait`."""
        if self._events is None:
            self._polled.add(pid)
            return
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            self._gone.append(pid)
        except OSError:  # a kernel before 5.3
            self._polled.add(pid)
        else:
            self._pid_of[descriptor] = pid
            self._events.register(descriptor, select.EPOLLIN)

    def wait(self, seconds: float) -> list[int]:
        """Wait up to `seconds` for a process to end. Return the ids of the processes that have
        ended."""
        pids = self._gone
        self._gone = []
        timeout = 0 if pids else seconds

        if self._events is None:
            time.sleep(timeout)
        else:
            for descriptor, _ in self._events.poll(timeout):
                self._events.unregister(descriptor)
                os.close(descriptor)
                pids.append(self._pid_of.pop(descriptor))

        for pid in tuple(self._polled):
            stat = stat_of(pid)
            if stat is None or stat.is_zombie:
                self._polled.discard(pid)
                pids.append(pid)
        return pids


class RankTable:
    """The running ranks, found below their launchers in the process tree."""

    def __init__(self, exits: Exits) -> None:
        self._exits = exits
        self._alive: dict[int, RankProcess] = {}
        self._rank_of: dict[tuple[int, int], int] = {}
        self._read: set[str] = set()

    def pids(self, instance: int | None = None) -> list[int]:
        """Return the ids of the running ranks, of one instance or of all."""
        return [rank.pid for rank in self._alive.values() if instance in (None, rank.instance)]

    def pid_of_rank(self) -> dict[int, int]:
        """Map the running ranks to the ids of their processes. Another thread may call it."""
        return {rank.rank: rank.pid for rank in list(self._alive.values())}

    def rank_of(self, instance: int, local_rank: int) -> int | None:
        """Return the global rank of the instance's newest process with this local rank; None if
        there was none."""
        return self._rank_of.get((instance, local_rank))

    def discover(self, launchers: Iterable[tuple[int, int]]) -> list[RankProcess]:
        """Return the new ranks below the launchers, which are given as pairs (process id,
        instance)."""
        new: list[RankProcess] = []
        for pid, instance in launchers:
            new += self._below(pid, instance, _DEPTH)
        return self._adopt(new)

    def announced(self, logs: str, instances: int) -> list[RankProcess]:
        """Return the new ranks in the files that the fork launcher writes."""
        new = []
        for instance in range(instances):
            for _, folder in rank_folders(f"{logs}/instance_{instance}"):
                if folder in self._read:
                    continue
                try:
                    with open(f"{folder}/{RANK_FILE}", "rb") as file:
                        record = json.load(file)
                except FileNotFoundError:  # the launcher writes it after it has made the folder
                    continue
                self._read.add(folder)
                new.append(RankProcess(record["pid"], instance, record["environment"]))
        return self._adopt(new)

    def _adopt(self, new: list[RankProcess]) -> list[RankProcess]:
        """Watch new ranks for their end, and return them."""
        for rank in new:
            self._alive[rank.pid] = rank
            self._rank_of[rank.instance, rank.local_rank] = rank.rank
            self._exits.add(rank.pid)
        return new

    def ended(self, pid: int) -> tuple[RankProcess, int | None] | None:
        """Return the rank that has ended, with its exit code (None if unknown); None if the process
        was not a rank."""
        rank = self._alive.pop(pid, None)
        if rank is None:
            return None
        stat = stat_of(pid)
        if stat is None or stat.wait_status is None:
            return rank, None
        return rank, os.waitstatus_to_exitcode(stat.wait_status)

    def _below(self, pid: int, instance: int, depth: int) -> list[RankProcess]:
        """Return the new ranks among the descendants of a process, down to `depth` levels."""
        ranks: list[RankProcess] = []
        for child in children_of(pid):
            if child in self._alive:
                continue
            environment = environment_of(child) or {}
            if "RANK" in environment or "OMPI_COMM_WORLD_RANK" in environment:
                ranks.append(RankProcess(child, instance, environment))
            elif depth > 1:
                ranks += self._below(child, instance, depth - 1)
        return ranks


# The processes that the supervisor starts directly: launchers, or the ranks of a job without a
# launcher.


class Launched:
    """A process that the supervisor started. `exit_code` is None while it runs."""

    def __init__(self, process: StartedProcess, child: subprocess.Popen[bytes]) -> None:
        self.instance: int = process.instance
        self.role: str = process.role
        self.rank: int | None = process.rank
        self.pid: int = child.pid
        self.exit_code: int | None = None
        self.is_empty: bool = False
        """Whether the process has ended and its session is empty. The system may then reuse its
        id."""
        self._signal = process.signal
        self._child = child

    def poll(self) -> bool:
        """Return True once: at the first call after the process has ended."""
        if self.exit_code is not None:
            return False
        self.exit_code = self._child.poll()
        if self.exit_code is None:
            return False
        self.is_empty = not session_members(self.pid)
        return True

    def terminate(self, ranks: list[int]) -> None:
        """Send SIGTERM to the process, to its process group, or to its ranks, depending on its
        `signal` setting."""
        if self._signal == "group" and not self.is_empty:
            _send(os.killpg, self.pid)
        elif self._signal == "ranks" and ranks:
            for pid in ranks:
                _send(os.kill, pid)
        elif self.exit_code is None:
            _send(os.kill, self.pid)

    def is_leaving(self) -> bool:
        """Whether the process, or with the signal `group` any process of its session, still runs
        after `terminate`."""
        if self._signal == "group" and not self.is_empty and self.exit_code is not None:
            self.is_empty = not session_members(self.pid)
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
    """Start one process in its own session. Its output goes to files under `logs`. `index` is the
    process's position in the launch specification, `umask` the submitter's umask. Raises `OSError`
    if the process cannot be started."""
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
    """Send SIGTERM with `os.kill` or `os.killpg`. Ignore a process that has ended."""
    try:
        kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        return
