"""The files that receive the output of a run's processes, and which process writes each file."""

# Paths are strings here, because this module must start and poll quickly.
# ruff: noqa: PTH110, PTH116, PTH208
from __future__ import annotations

import os
import time

from cloudtrain.targets.local.service.lines import Lines

TYPE_CHECKING = False  # as typing.TYPE_CHECKING, without importing typing
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from cloudtrain.launch.specification import LaunchSpecification, StartedProcess

    RankOf = Callable[[int, int], int | None]
    """Maps an instance and a local rank to the global rank; None if it is not yet known."""

STREAMS = ("stdout", "stderr")

_KNOWN_SOON = 10.0
"""Seconds to wait until the process that writes a new file is found. Its environment has the rank."""


def launched_log(logs: str, process: StartedProcess, index: int, stream: str) -> str:
    """Return the path of the output file of a process that the supervisor starts. `index` is the process's position in
    the launch specification."""
    return f"{logs}/instance_{process.instance}/{process.role}_{index}.{stream}.log"


class Source:
    """One output file, with the position `offset` up to which it was read."""

    def __init__(self, path: str, *, instance: int, rank: int | None, stream: str, attempt: int = 0) -> None:
        self.path = path
        self.instance = instance
        self.rank = rank
        self.stream = stream
        self.attempt = attempt
        self.lines = Lines()
        self.offset = 0
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.inode = os.fstat(self._descriptor).st_ino

    @property
    def consumed(self) -> int:
        """Return the number of bytes in complete lines that were read. Another reader can continue at this position."""
        return self.offset - len(self.lines.pending)

    def read(self, limit: int) -> bytes:
        """Return the next bytes, at most `limit`. Return an empty result at the end of the file."""
        chunk = os.pread(self._descriptor, limit, self.offset)
        self.offset += len(chunk)
        return chunk

    def erase(self, start: int, secrets: Iterable[bytes]) -> None:
        """Overwrite secrets with stars in the file, between the positions `start` and `consumed`."""
        found = data = os.pread(self._descriptor, self.consumed - start, start)
        for secret in secrets:
            data = data.replace(secret, b"*" * len(secret))
        if data != found:
            with open(self.path, "r+b", buffering=0) as file:  # noqa: PTH123
                os.pwrite(file.fileno(), data, start)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


class SourceFinder:
    """Finds new output files: those of launched processes, and those of every attempt of the ranks.

    Ranks of mpirun write `logs/instance_0/rank_<r>.stdout.log`. Ranks of torchrun and forked ranks write
    `logs/instance_<i>/<random>/attempt_<n>/<local rank>/stdout.log`. When another instance makes torchrun repeat an
    attempt, torchrun removes that attempt's folder and creates it again. So a file is identified by path and inode
    together.
    """

    def __init__(self, logs: str, spec: LaunchSpecification, rank_of: RankOf) -> None:
        self._logs = logs
        self._spec = spec
        self._rank_of = rank_of
        self._known: dict[str, int] = {}
        self._attempts: dict[tuple[int, int, str], int] = {}
        self._waiting: dict[str, float] = {}

    @property
    def restarts(self) -> int:
        """Return how often the ranks were restarted, according to their files."""
        return max(self._attempts.values(), default=1) - 1

    def launched(self) -> Iterator[Source]:
        """Yield new output files of the processes that the supervisor starts."""
        for index, process in enumerate(self._spec.processes):
            for stream in STREAMS:
                path = launched_log(self._logs, process, index, stream)
                if path not in self._known and os.path.exists(path):
                    source = Source(path, instance=process.instance, rank=process.rank, stream=stream)
                    self._known[path] = source.inode
                    yield source

    def new_ranks(self, *, at_once: bool = False) -> Iterator[Source]:
        """Yield the output files of ranks that appeared since the last call. Without `at_once`, leave out files whose
        rank is not known yet, but may be soon."""
        if self._spec.launcher == "mpirun":
            for rank in range(self._spec.world_size):
                yield from self._streams(f"{self._logs}/instance_0/rank_{rank}.", 0, rank, rank)
        if self._spec.launcher not in ("torchrun", "fork"):
            return
        for instance in range(self._spec.instances):
            for local_rank, folder in rank_folders(f"{self._logs}/instance_{instance}"):
                found = self._rank(instance, local_rank, folder, at_once)
                if found is not None:
                    yield from self._streams(f"{folder}/", instance, local_rank, found)

    def _streams(self, stem: str, instance: int, local_rank: int, rank: int) -> Iterator[Source]:
        for stream in STREAMS:
            path = f"{stem}{stream}.log"
            try:
                if self._known.get(path) == os.stat(path).st_ino:
                    continue
                key = (instance, local_rank, stream)
                attempt = self._attempts.get(key, 0)
                source = Source(path, instance=instance, rank=rank, stream=stream, attempt=attempt)
            except FileNotFoundError:
                continue
            self._attempts[key] = attempt + 1
            self._known[path] = source.inode
            yield source

    def _rank(self, instance: int, local_rank: int, folder: str, at_once: bool) -> int | None:
        """Return the global rank of the process whose output is in `folder`. Return None if the rank is not
        known yet, but may be soon. With `at_once`, or after a short wait, return the most likely rank instead.

        Only ranks of torchrun on several instances can be unknown: torchrun assigns global ranks at each rendezvous.
        """
        per_instance = self._spec.world_size // self._spec.instances
        usual = instance * per_instance + local_rank
        if self._spec.instances == 1 or self._spec.launcher == "fork":
            return usual
        rank = self._rank_of(instance, local_rank)
        if rank is not None or at_once:
            return usual if rank is None else rank
        seen = self._waiting.setdefault(folder, time.monotonic())
        return usual if time.monotonic() - seen > _KNOWN_SOON else None


def rank_folders(folder: str) -> Iterator[tuple[int, str]]:
    """Yield each rank's local rank and the folder of its output, attempt by attempt. `folder` is the log folder of one
    instance."""
    found = [
        f"{folder}/{run}/{attempt}"
        for run in _names(folder)
        for attempt in _names(f"{folder}/{run}")
        if attempt.startswith("attempt_")
    ]
    for attempt in sorted(found, key=lambda path: int(path.rpartition("_")[2])):
        for name in sorted(filter(str.isdecimal, _names(attempt)), key=int):
            yield int(name), f"{attempt}/{name}"


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
