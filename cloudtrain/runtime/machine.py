"""What this machine does: CPU, memory, disk, network and GPUs.

    cpu                              percent of the CPUs that this process may use
    memory, memory_limit             bytes, without files that are only cached
    disk_free, disk_written          bytes; bytes a second
    network_received, network_sent   bytes a second
    gpu0.utilization                 percent of the time in which a kernel ran
    gpu0.memory, gpu0.memory_limit   bytes
    gpu0.power                       watts

In a container or a job of Slurm, CPU and memory are those of its control group (cgroup, version 1
or 2), measured against the group's limits. They are read from files of Linux, because `psutil`
reads the whole machine's, and because the containers of training jobs do not have it. On another
system, what `psutil` tells is taken instead.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from glob import glob
from types import ModuleType
from typing import NamedTuple

from .gpus import LIBRARY, NO_GPUS, AmdGpus, NvidiaGpus, NVMLError, read_number

_SECTOR = 512
"""Bytes of a sector in /proc/diskstats, whatever the disk's own are."""

_FAST_COUNTERS = (
    ("counters/port_rcv_data", "counters/port_xmit_data", 4),
    ("hw_counters/rx_bytes", "hw_counters/tx_bytes", 1),
)
"""Files of a port of InfiniBand and of EFA, and the bytes of their unit."""

_MEMORY_FILES = (
    ("memory.max", "memory.current", ""),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
)
"""Of a control group of version 2 and 1: the files of its limit and its use, and what stands before
the names in `memory.stat`."""

_VIRTUAL = re.compile(
    r"lo\d*|docker\d*|veth.*|br-.*|virbr.*|cni.*|flannel.*|cali.*|ifb\d+|tun.*|wg.*|bond\d+|.*\.\d+"
)
"""Interfaces whose traffic stays on this machine, or passes through another interface as well."""


class Disk(NamedTuple):
    """A file system that the run writes to. `folder` is one of the run's folders on it."""

    folder: str
    free: float


class Machine:
    """Measures this machine. What it cannot read is left out."""

    def __init__(
        self,
        folders: Sequence[str],
        gpus: Sequence[str] | None = None,
        *,
        root: str = "",
        library: str = LIBRARY,
        psutil: ModuleType | None = None,
    ) -> None:
        """`folders` are those that the run writes to. `gpus` are the ids of its GPUs; None if it
        may use all. `root` stands before the paths of the system's files, and `library` is
        that of NVIDIA's driver."""
        self.disks: list[Disk] = []
        """As `measure` saw them last."""
        self._root = root
        self._folders = folders
        self._psutil = psutil
        self._counters: tuple[float, dict[str, float]] = (0.0, {})
        self._visible = gpus
        self._library = library

    @cached_property
    def _gpus(self) -> NvidiaGpus | AmdGpus:
        """The driver may take a while to open them."""
        try:
            return NvidiaGpus(self._visible, self._library)
        except NVMLError as error:
            alerts = [] if error.code in NO_GPUS else [f"no GPU can be watched: {error}"]
            return AmdGpus(self._root, alerts)

    @property
    def alerts(self) -> Sequence[str]:
        """What is wrong with GPUs."""
        return self._gpus.alerts

    def measure(self, now: float) -> dict[str, float]:
        """Return the present values. Rates are those since the last call; the first call has
        none. `now` is in seconds."""
        counters = dict(self._count(now))
        before, earlier = self._counters
        self._counters = (now, counters)

        values: dict[str, float] = {}
        elapsed = now - before
        change = {name: counters[name] - earlier[name] for name in counters if name in earlier}
        capacity = change.pop("cpu_capacity", 0.0)
        busy = change.pop("cpu_busy", 0.0)
        if capacity > 0 and busy >= 0:
            values["cpu"] = min(100.0, 100 * busy / capacity)
        values.update(self._measure_memory())
        disks: dict[int, Disk] = {}
        for folder in self._folders:
            with suppress(OSError):
                space = os.statvfs(folder)
                free = float(space.f_bavail * space.f_frsize)
                disks.setdefault(os.stat(folder).st_dev, Disk(folder, free))
        self.disks = list(disks.values())
        if self.disks:
            values["disk_free"] = min(disk.free for disk in self.disks)
        for name, amount in change.items():
            if elapsed > 0 and amount >= 0:  # a counter begins again when its device is new
                values[name] = amount / elapsed
        values.update(self._gpus.measure())
        return values

    def _count(self, now: float) -> Iterator[tuple[str, float]]:
        """Yield counters that only grow. Those of the CPU have the same unit."""
        psutil = self._psutil
        if psutil is not None:
            times = psutil.cpu_times()
            yield "cpu_busy", sum(times) - times.idle
            yield "cpu_capacity", sum(times)
            disk = psutil.disk_io_counters()
            if disk is not None:
                yield "disk_written", disk.write_bytes
            traffic = psutil.net_io_counters(pernic=True)
            real = [traffic[name] for name in traffic if not _VIRTUAL.fullmatch(name)]
            yield "network_received", sum(one.bytes_recv for one in real)
            yield "network_sent", sum(one.bytes_sent for one in real)
            return
        for count in (self._count_cpu, self._count_disks, self._count_network):
            with suppress(OSError, ValueError, IndexError):
                yield from count(now)

    def _count_cpu(self, now: float) -> Iterator[tuple[str, float]]:
        """Yield how long the CPUs were busy, and how long they could have been."""
        cpus, busy = min(self._cpu_limits(), default=(0.0, 0.0))
        capacity = cpus * now
        if not cpus:
            numbers = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
            usable = {f"cpu{number}" for number in numbers}
            for line in self._lines("/proc/stat"):
                name, *words = line.split()
                if name in usable:
                    times = list(map(float, words[:8]))  # the others are parts of these
                    capacity += sum(times)
                    busy += sum(times) - times[3] - times[4]  # idle, and waiting for a disk
        yield "cpu_busy", busy
        yield "cpu_capacity", capacity

    def _cpu_limits(self) -> Iterator[tuple[float, float]]:
        """Yield each limit of a control group in CPUs, and the CPU time of the group in
        seconds."""
        for group in self._groups("cpu"):
            with suppress(OSError, ValueError, KeyError):
                if os.path.exists(f"{group}/cpu.max"):
                    quota, period = _text(f"{group}/cpu.max").split()
                    usage = _table(f"{group}/cpu.stat")["usage_usec"] / 1e6
                else:
                    quota = _text(f"{group}/cpu.cfs_quota_us")
                    period = _text(f"{group}/cpu.cfs_period_us")
                    same = group.replace("/cgroup/cpu", "/cgroup/cpuacct", 1)
                    usage = read_number(f"{same}/cpuacct.usage") / 1e9
                cpus = float(quota) / float(period)  # without a limit, `max` or -1
                if cpus > 0:
                    yield cpus, usage

    def _measure_memory(self) -> dict[str, float]:
        """Return the memory in use and its limit: that of the control group, or of the machine,
        which leaves the least."""
        if self._psutil is not None:
            memory = self._psutil.virtual_memory()
            return {"memory": memory.total - memory.available, "memory_limit": memory.total}
        limits = list(self._memory_limits())
        if not limits:
            return {}
        limit, used = min(limits, key=lambda pair: pair[0] - pair[1])
        return {"memory": used, "memory_limit": limit}

    def _memory_limits(self) -> Iterator[tuple[float, float]]:
        """Yield the machine's memory, and each smaller limit of a control group, with what is used
        of it."""
        machine = math.inf
        with suppress(OSError, ValueError, KeyError):
            sizes = _table(f"{self._root}/proc/meminfo")
            machine = sizes["MemTotal:"] * 1024
            yield machine, machine - sizes["MemAvailable:"] * 1024
        for group in self._groups("memory"):
            for limit_file, used_file, prefix in _MEMORY_FILES:
                with suppress(OSError, ValueError, KeyError):
                    limit = read_number(f"{group}/{limit_file}")  # `max` without one
                    if limit < machine:
                        # a file that is read again stays in memory as long as nobody needs it
                        parts = _table(f"{group}/memory.stat")
                        cached = parts[f"{prefix}inactive_file"] + parts[f"{prefix}active_file"]
                        yield limit, max(0.0, read_number(f"{group}/{used_file}") - cached)

    def _groups(self, controller: str) -> Iterator[str]:
        """Yield the folders of the control groups that this process is in, the innermost first. In
        a container, the outermost is the container's own group."""
        lines: list[str] = []
        with suppress(OSError):
            lines = self._lines("/proc/self/cgroup")
        for line in lines:
            controllers, _, path = line.partition(":")[2].partition(":")
            if controllers and controller not in controllers.split(","):
                continue
            top = f"{self._root}/sys/fs/cgroup"
            if controllers:
                top = f"{top}/{controller}"
            parts = [part for part in path.split("/") if part not in ("", "..")]
            for length in range(len(parts), -1, -1):
                yield "/".join([top, *parts[:length]])

    def _count_disks(self, _now: float) -> Iterator[tuple[str, float]]:
        """Yield the bytes that were written. A disk made of others does not count."""
        written = 0.0
        for line in self._lines("/proc/diskstats"):
            words = line.split()
            if os.path.exists(f"{self._root}/sys/block/{words[2]}/device"):
                written += float(words[9]) * _SECTOR
        yield "disk_written", written

    def _count_network(self, _now: float) -> Iterator[tuple[str, float]]:
        """Yield the bytes that were received and sent, also over InfiniBand and EFA."""
        received = 0.0
        sent = 0.0
        for line in self._lines("/proc/net/dev"):
            name, colon, numbers = line.partition(":")
            if colon and not _VIRTUAL.fullmatch(name.strip()):
                words = numbers.split()
                received += float(words[0])
                sent += float(words[8])
        ports = f"{self._root}/sys/class/infiniband/*/ports/*"
        for received_file, sent_file, unit in _FAST_COUNTERS:
            received += unit * sum(map(read_number, glob(f"{ports}/{received_file}")))
            sent += unit * sum(map(read_number, glob(f"{ports}/{sent_file}")))
        yield "network_received", received
        yield "network_sent", sent

    def _lines(self, path: str) -> list[str]:
        return _text(f"{self._root}{path}").splitlines()


def _text(file: str) -> str:
    with open(file, encoding="utf-8", errors="replace") as text:
        return text.read()


def _table(file: str) -> dict[str, float]:
    """Return the first number of each line, by its first word."""
    numbers = {}
    for line in _text(file).splitlines():
        name, number, *_ = line.split()
        numbers[name] = float(number)
    return numbers
