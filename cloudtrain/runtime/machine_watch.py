"""Watch a machine during a run: write what it does as metrics of the source `machine`, and notices
of idle GPUs, of memory that is nearly used up, and of a disk that fills.

One process of each machine does it. On this machine that is the run's supervisor, so that a script
needs nothing of the runtime. On a node of Slurm it is this module, which the first task starts. In
the clouds, where nothing of ours runs beside the script, it is a thread of local rank 0. A machine
without a folder for metrics prints a line instead, once a minute:

    [machine] cpu=45.2 memory=6.4e+10 memory_limit=2.1e+12 gpu0.utilization=93
"""

from __future__ import annotations

import os
import sys
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from tempfile import gettempdir
from threading import Thread
from types import ModuleType
from typing import NamedTuple

from .environment import detect_environment
from .hardware import VISIBLE, visible_ids
from .machine import Disk, Machine
from .metrics_file import MACHINE, MACHINE_LINE, MetricWriter, metrics_folder
from .notices import end_left, write_notice

EVERY = 10.0
"""Seconds between two looks at the machine."""

_FIRST = 2.0
"""Seconds before the first values, so that a short run has some, and starts without delay."""

_PRINT_EVERY = 60.0
"""Seconds between two lines."""

_IDLE = 10.0
"""Percent of utilization below which a GPU is idle."""

_IDLE_FOR = 15 * 60.0
"""Seconds for which a GPU is idle before a notice."""

_FULL = 0.95
"""The share of the memory's limit that is nearly all."""

_CALM = 5 * 60.0
"""Seconds without an alarm after which memory or disk are well again."""

_PAUSE = 5 * 60.0
"""Seconds without a look, as while a laptop sleeps, after which what was seen before is over."""

_TRENDS = (120.0, 300.0, 900.0, 3600.0)
"""Seconds over which a disk is seen to fill."""

_TRUST = 4.0
"""A trend is believed for so many times the time over which it was seen."""

_SOON = 3600.0
"""Seconds in which a disk must fill for a notice."""

_GIB = 1 << 30

_WRITTEN = (
    "CLOUDTRAIN_CHECKPOINT_DIR",
    "CLOUDTRAIN_MODEL_DIR",
    "CLOUDTRAIN_OUTPUT_",
    "SM_MODEL_DIR",
)
"""The beginnings of variables with folders that a script writes to."""

_lock: list[int] = []
"""The descriptor by which this process, or the one that has forked it, is the one that watches."""


class Alarm(NamedTuple):
    """A notice to write. `is_over` tells that the state has ended."""

    kind: str
    text: str
    is_over: bool = False


class Alarms:
    """Decides when the values of a machine are worth a notice. Times are parameters."""

    def __init__(self) -> None:
        self._newest = 0.0
        self.idle_seconds = 0.0
        """For how long all GPUs have been idle; 0 without GPUs, or if one is at work."""
        self._idle_since: dict[str, float] = {}
        self._told_idle: list[str] = []
        self._told: set[str] = set()
        self._raised: dict[str, tuple[str, float]] = {}
        """The text of each alarm of memory and disk, and the time at which there was reason for
        it last."""
        self._free: dict[str, list[tuple[float, float]]] = {}

    def look(
        self, values: Mapping[str, float], disks: Sequence[Disk], alerts: Sequence[str], now: float
    ) -> Iterator[Alarm]:
        """Yield what is new. Each text of `alerts` comes once."""
        if not 0 <= now - self._newest <= _PAUSE:
            self._idle_since.clear()
            self._free.clear()
        self._newest = now
        yield from self._look_at_gpus(values, now)
        for text in alerts:
            if text not in self._told:
                self._told.add(text)
                yield Alarm("alert", text)
        yield from self._keep("memory", _memory_text(values), now)
        texts = [self._disk_text(disk, now) for disk in disks]
        yield from self._keep("disk", next(filter(None, texts), ""), now)

    def _look_at_gpus(self, values: Mapping[str, float], now: float) -> Iterator[Alarm]:
        count = 0
        since: dict[str, float] = {}
        for name, value in values.items():
            gpu, _, what = name.partition(".")
            if what == "utilization":
                count += 1
                if value < _IDLE:
                    since[gpu] = self._idle_since.get(gpu, now)
        self._idle_since = since
        self.idle_seconds = 0.0
        if since and len(since) == count:
            self.idle_seconds = now - max(since.values())

        idle = sorted(gpu for gpu in since if now - since[gpu] >= _IDLE_FOR)
        if idle != self._told_idle:
            self._told_idle = idle
            limit = f"under {_IDLE:.0f}% for {_IDLE_FOR / 60:.0f} minutes"
            text = f"{len(idle)} of {count} GPUs have been {limit}: {', '.join(idle)}"
            yield Alarm("idle", text, is_over=not idle)

    def _keep(self, kind: str, text: str, now: float) -> Iterator[Alarm]:
        """Raise the alarm of a kind if there is a text, and end it after some calm."""
        if text:
            if kind not in self._raised:
                yield Alarm(kind, text)
            self._raised[kind] = (text, now)
        elif kind in self._raised:
            told, last = self._raised[kind]
            if not 0 <= now - last < _CALM:
                del self._raised[kind]
                yield Alarm(kind, told, is_over=True)

    def _disk_text(self, disk: Disk, now: float) -> str:
        """Return when a disk will be full; empty unless that is soon. It must have filled in each
        third of the time over which it was seen, so that a large file alone is no trend."""
        seen = self._free.setdefault(disk.folder, [])
        seen.append((now, disk.free))
        while now - seen[0][0] > _TRENDS[-1] + EVERY:
            del seen[0]
        for seconds in _TRENDS:
            if now - seen[0][0] < seconds:
                break
            first, second, third = [_free_at(seen, now - seconds * part / 3) for part in (3, 2, 1)]
            falls = (first - second, second - third, third - disk.free)
            rate = min(falls) / (seconds / 3)
            if rate > 0 and disk.free / rate < min(_SOON, _TRUST * seconds):
                left = f"{disk.free / _GIB:.1f} GiB"
                minutes = max(1, round(disk.free / rate / 60))
                return f"the disk of `{disk.folder}` has {left} left, for {minutes} more minutes"
        return ""


def _free_at(seen: list[tuple[float, float]], moment: float) -> float:
    """Return what was free at a moment, or at the first look after it."""
    return seen[bisect_left(seen, (moment,))][1]


def _memory_text(values: Mapping[str, float]) -> str:
    """Return how much memory is used; empty unless that is nearly all."""
    used = values.get("memory", 0.0)
    limit = values.get("memory_limit", 0.0)
    if not limit or used < _FULL * limit:
        return ""
    sizes = f"{used / _GIB:.1f} of {limit / _GIB:.1f} GiB"
    return f"memory is at {used / limit:.0%} of its limit: {sizes}"


class MachineWatch:
    """Looks at a machine, and writes or prints what it sees."""

    def __init__(
        self, machine: Machine, instance: int = 0, *, folder: str | None, rank: int | None = None
    ) -> None:
        """`folder` is that for metrics; None to print. `rank` is the first one of the instance, if
        there are several instances."""
        self.alarms: Alarms = Alarms()
        self._machine = machine
        self._folder = folder
        self._rank = rank
        self._prefix = "" if rank is None else f"instance {instance}: "
        self._writer: MetricWriter | None = None
        if folder is not None:
            self._writer = MetricWriter(folder, MACHINE, f"instance{instance}")
        self._unprinted: list[Mapping[str, float]] = []
        self._printed = time.time()

    def work(self) -> None:
        """Look as long as this process lives."""
        if self._folder is not None:
            with suppress(OSError):
                end_left(self._folder, ("idle", "memory", "disk"), (self._rank,))
        self._machine.measure(time.time())  # from here on, counters have a rate
        time.sleep(_FIRST)
        while True:
            self.look(time.time())
            time.sleep(EVERY)

    def look(self, now: float) -> None:
        """Write the values of this moment, in seconds since 1970."""
        values = self._machine.measure(now)
        if self._writer is None:
            self._print(values, now)
        else:
            self._writer.add(values, now)
            with suppress(OSError):  # such as a full disk: they are kept
                self._writer.flush()
        for kind, text, is_over in self.alarms.look(
            values, self._machine.disks, self._machine.alerts, now
        ):
            ended = now if is_over else None
            full = self._prefix + text
            write_notice(kind, full, rank=self._rank, ended=ended, folder=self._folder)

    def _print(self, values: Mapping[str, float], now: float) -> None:
        """Print the means of the last minute as one line."""
        self._unprinted.append(values)
        if 0 <= now - self._printed < _PRINT_EVERY:
            return
        words = [MACHINE_LINE]
        for name in values:
            known = [some[name] for some in self._unprinted if name in some]
            words.append(f"{name}={sum(known) / len(known):.4g}")
        self._unprinted.clear()
        self._printed = now
        # one write, so that lines of other processes stay outside; not of `sys.stdout`, whose lock
        # a thread must not hold when the process ends
        with suppress(OSError):
            os.write(1, f"{' '.join(words)}\n".encode("ascii"))


def start_watch(
    folder: str | None,
    instance: int = 0,
    *,
    folders: Sequence[str],
    gpus: Sequence[str] | None = None,
    rank: int | None = None,
    psutil: ModuleType | None = None,
) -> MachineWatch:
    """Watch from a thread. The arguments are those of `Machine` and `MachineWatch`; without `gpus`,
    they are those in CUDA_VISIBLE_DEVICES, or all."""
    if gpus is None and VISIBLE in os.environ:
        gpus = visible_ids(os.environ[VISIBLE])
    machine = Machine(folders, gpus, psutil=psutil)
    watch = MachineWatch(machine, instance, folder=folder, rank=rank)
    Thread(target=watch.work, name="cloudtrain-machine", daemon=True).start()
    return watch


def written_folders() -> list[str]:
    """Return the folders that the script of this process writes to."""
    folders = [os.getcwd(), gettempdir()]
    for name, value in os.environ.items():
        if name.startswith(_WRITTEN) and os.path.isdir(value):
            folders.append(value)
    return folders


def watch_in_cloud() -> None:
    """Watch this machine from a thread of this process, if it is the first process of an instance
    in a cloud, and no other one does it."""
    environment = detect_environment()
    if environment.platform == "local" or environment.local_rank or _lock:
        return
    path = f"{gettempdir()}/cloudtrain-machine-{os.getuid()}.lock"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        flock(descriptor, LOCK_EX | LOCK_NB)
    except OSError:  # another process has it
        return
    _lock.append(descriptor)
    rank = environment.rank if environment.node_count > 1 else None
    start_watch(None, environment.node_rank, folders=written_folders(), rank=rank)


def main(arguments: Sequence[str]) -> None:
    """Watch a node of Slurm until the task that has started this process ends. The arguments are
    the number of the node, the number of nodes, the ranks of a node, and the seconds of
    `stop_when_idle`, or 0.

    As long as the GPUs have been idle for so long, there is a file for this node in the folder of
    the logs, and the batch script stops the job when all nodes have one.
    """
    instance, count, ranks, limit = map(int, arguments)
    folders = [gettempdir()]
    if instance == 0:
        folders += written_folders()  # shared ones, of which one notice is enough
    rank = instance * ranks if count > 1 else None
    watch = start_watch(metrics_folder(), instance, folders=folders, rank=rank)
    mark = f"{os.environ['CLOUDTRAIN_LOGS']}/idle_{instance}"
    task = os.getppid()
    while os.getppid() == task:
        with suppress(OSError):
            if limit and watch.alarms.idle_seconds >= limit:
                open(mark, "w").close()
            elif os.path.exists(mark):
                os.remove(mark)
        time.sleep(1.0)


if __name__ == "__main__":
    main(sys.argv[1:])
