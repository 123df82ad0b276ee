"""Find the ranks of a run among the processes of this machine, and the order in which the ranks end.

torchrun and mpirun start each rank with its number in an environment variable, which the supervisor reads from their
child processes. For a forked process, the system shows the launcher's environment, so the fork launcher writes the
ranks to files. On Linux, a pid file descriptor reports the end of a process at once. The ended process stays as a
zombie with its exit code until its launcher collects it.
"""

# Paths are strings here, because this module must start and poll quickly.
# ruff: noqa: PTH123
from __future__ import annotations

import json
import os
import select
import time

from cloudtrain.targets.local.service import proc
from cloudtrain.targets.local.service.sources import rank_folders

TYPE_CHECKING = False  # as typing.TYPE_CHECKING, without importing typing
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

RANK_FILE = "rank.json"
"""The file beside the output of a forked rank. `cloudtrain.runtime.fork_launcher` writes it in one atomic step."""

_DEPTH = 3
"""Maximum depth of ranks below a launcher in the process tree. A wrapper or a daemon can be between them."""


class Rank:
    """A process that is a rank. `is_last`: its launcher will not restart it."""

    __slots__ = ("attempt", "instance", "is_last", "local_rank", "pid", "rank")

    def __init__(self, pid: int, instance: int, environment: dict[str, str]) -> None:
        self.pid = pid
        self.instance = instance
        self.rank = int(environment.get("RANK") or environment["OMPI_COMM_WORLD_RANK"])
        self.local_rank = int(environment.get("LOCAL_RANK") or environment.get("OMPI_COMM_WORLD_LOCAL_RANK") or 0)
        self.attempt = int(environment.get("TORCHELASTIC_RESTART_COUNT", 0))
        self.is_last = self.attempt >= int(environment.get("TORCHELASTIC_MAX_RESTARTS", 0))


class Exits:
    """Waits until processes end, even if they are not children of this process, and reports their ids in the order in
    which they end."""

    def __init__(self) -> None:
        self._events = select.epoll() if hasattr(os, "pidfd_open") else None
        self._pid_of: dict[int, int] = {}
        self._polled: set[int] = set()
        self._gone: list[int] = []

    def add(self, pid: int) -> None:
        """Watch a process from now on."""
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
        """Wait up to `seconds` for a process to end. Return the ids of the processes that have ended."""
        gone, self._gone = self._gone, []
        timeout = 0 if gone else seconds
        if self._events is None:
            time.sleep(timeout)
        else:
            for descriptor, _ in self._events.poll(timeout):
                self._events.unregister(descriptor)
                os.close(descriptor)
                gone.append(self._pid_of.pop(descriptor))
        for pid in tuple(self._polled):
            stat = proc.stat_of(pid)
            if stat is None or stat.is_zombie:
                self._polled.discard(pid)
                gone.append(pid)
        return gone


class RankTable:
    """The running ranks, found below their launchers in the process tree."""

    def __init__(self, exits: Exits) -> None:
        self._exits = exits
        self._alive: dict[int, Rank] = {}
        self._rank_of: dict[tuple[int, int], int] = {}
        self._read: set[str] = set()

    def pids(self, instance: int | None = None) -> list[int]:
        """Return the process ids of the running ranks of one instance, or of all instances."""
        return [rank.pid for rank in self._alive.values() if instance in (None, rank.instance)]

    def rank_of(self, instance: int, local_rank: int) -> int | None:
        """Return the global rank of the instance's newest process with this local rank; None if there was none."""
        return self._rank_of.get((instance, local_rank))

    def discover(self, launchers: Iterable[tuple[int, int]]) -> list[Rank]:
        """Return the new ranks below the launchers, which are given as pairs (process id, instance)."""
        return self._adopt([rank for pid, instance in launchers for rank in self._below(pid, instance, _DEPTH)])

    def announced(self, logs: str, instances: int) -> list[Rank]:
        """Return the new ranks in the files that the fork launcher writes."""
        new = []
        for instance in range(instances):
            for _, folder in rank_folders(f"{logs}/instance_{instance}"):
                if folder not in self._read and (record := _record(f"{folder}/{RANK_FILE}")):
                    self._read.add(folder)
                    new.append(Rank(record["pid"], instance, record["environment"]))
        return self._adopt(new)

    def _adopt(self, new: list[Rank]) -> list[Rank]:
        for rank in new:
            self._alive[rank.pid] = rank
            self._rank_of[rank.instance, rank.local_rank] = rank.rank
            self._exits.add(rank.pid)
        return new

    def ended(self, pid: int) -> tuple[Rank, int | None] | None:
        """Return the rank of a process that has ended, with its exit code (None if unknown). Return None if the process
        was not a rank."""
        rank = self._alive.pop(pid, None)
        if rank is None:
            return None
        stat = proc.stat_of(pid)
        if stat is None or stat.wait_status is None:
            return rank, None
        return rank, os.waitstatus_to_exitcode(stat.wait_status)

    def _below(self, pid: int, instance: int, depth: int) -> list[Rank]:
        found: list[Rank] = []
        for child in proc.children_of(pid):
            if child in self._alive:
                continue
            environment = proc.environment_of(child) or {}
            if "RANK" in environment or "OMPI_COMM_WORLD_RANK" in environment:
                found.append(Rank(child, instance, environment))
            elif depth > 1:
                found += self._below(child, instance, depth - 1)
        return found


def _record(path: str) -> dict[str, Any] | None:
    try:
        with open(path, "rb") as file:
            record: dict[str, Any] = json.load(file)
    except FileNotFoundError:  # the folder is created before the rank's file
        return None
    return record
