"""What a machine does, read from trees of files as Linux has them: with control groups of version 1
and 2, in containers and outside, and from psutil on another system."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cloudtrain.runtime.machine import Machine
from cloudtrain.system.processes import HAS_PROC, process_table

GIB = 1 << 30
NONE = "9223372036854771712"
"""The limit of a control group of version 1 that has none."""

MACHINE = {
    "proc/meminfo": f"MemTotal: {64 * GIB // 1024} kB\nMemFree: 1 kB\nMemAvailable: {48 * GIB // 1024} kB\n",
    "proc/stat": "cpu 1 2 3 4\ncpu0 10 0 10 70 10 0 0 0 5 5\nintr 7\n",
    "proc/diskstats": "259 0 nvme0n1 1 0 8 1 1 0 2000 1\n259 1 nvme0n1p1 1 0 8 1 1 0 2000 1\n7 0 dm-0 1 0 8 1 1 0 2000 1\n",
    "sys/block/nvme0n1/device/model": "",
    "sys/block/dm-0/size": "",
    "proc/net/dev": (
        "Inter-| Receive | Transmit\n face |bytes packets\n"
        "    lo: 999 0 0 0 0 0 0 0 999 0\n  eth0: 1000 0 0 0 0 0 0 0 500 0\nveth12: 7 0 0 0 0 0 0 0 7 0\n"
    ),
}


def tree(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def machine(root: Path, **options: Any) -> Machine:
    return Machine([str(root)], root=str(root), library=str(root / "libnvidia-ml.so.1"), **options)


def version_2(path: str, limit: str, used: int, cached: int = 0) -> dict[str, str]:
    group = f"sys/fs/cgroup{path}"
    return {
        f"{group}/memory.max": f"{limit}\n",
        f"{group}/memory.current": f"{used}\n",
        f"{group}/memory.stat": f"anon 5\ninactive_file {cached // 2}\nactive_file {cached // 2}\n",
    }


def version_1(path: str, limit: str, used: int, cached: int = 0) -> dict[str, str]:
    group = f"sys/fs/cgroup/memory{path}"
    return {
        f"{group}/memory.limit_in_bytes": f"{limit}\n",
        f"{group}/memory.usage_in_bytes": f"{used}\n",
        f"{group}/memory.stat": f"cache 5\ntotal_inactive_file {cached}\ntotal_active_file 0\n",
    }


GROUPS: dict[str, tuple[dict[str, str], tuple[int, int]]] = {
    "no control group": ({}, (16, 64)),
    "version 2, no limit": (
        {"proc/self/cgroup": "0::/user.slice\n", **version_2("/user.slice", "max", 3 * GIB)},
        (16, 64),
    ),
    "version 2": (
        {
            "proc/self/cgroup": "0::/slurm/job_7/step_0\n",
            **version_2("/slurm/job_7/step_0", "max", 3 * GIB),
            **version_2("/slurm/job_7", str(8 * GIB), 7 * GIB, cached=2 * GIB),
        },
        (5, 8),
    ),
    "version 2, in a container": (
        {"proc/self/cgroup": "0::/\n", **version_2("", str(4 * GIB), 2 * GIB)},
        (2, 4),
    ),
    "version 2, the group above is nearer to its limit": (
        {
            "proc/self/cgroup": "0::/a/b\n",
            **version_2("/a/b", str(4 * GIB), 1 * GIB),
            **version_2("/a", str(10 * GIB), 9 * GIB),
        },
        (9, 10),
    ),
    "version 2, the machine is nearer to its limit": (
        {
            "proc/self/cgroup": "0::/a\n",
            "proc/meminfo": f"MemTotal: {64 << 20} kB\nMemAvailable: {1 << 20} kB\n",
            **version_2("/a", str(32 * GIB), 1 * GIB),
        },
        (63, 64),
    ),
    "version 1": (
        {
            "proc/self/cgroup": "9:name=systemd:/\n4:memory:/slurm/uid_0/job_7\n0::/\n",
            **version_1("/slurm/uid_0/job_7", str(8 * GIB), 7 * GIB, cached=GIB),
            **version_1("", NONE, 50 * GIB),
        },
        (6, 8),
    ),
    "version 1, in a container": (
        # the path is that of the machine outside, the files are those of the container
        {"proc/self/cgroup": "4:memory:/docker/abc\n", **version_1("", str(2 * GIB), GIB)},
        (1, 2),
    ),
}


@pytest.mark.parametrize("case", GROUPS)
def test_memory_is_measured_against_the_limit_that_ends_a_run(case: str, tmp_path: Path) -> None:
    """Without what is only cached, which is no reason to end it."""
    files, (used, limit) = GROUPS[case]
    values = machine(tree(tmp_path, MACHINE | files)).measure(0.0)
    assert (values["memory"] / GIB, values["memory_limit"] / GIB) == (used, limit)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="a system without /proc")
def test_rates_are_those_since_the_last_look(tmp_path: Path) -> None:
    """The first look has none. A counter that begins again has none either. Partitions, disks made
    of others and virtual interfaces count once."""
    root = tree(tmp_path, MACHINE)
    it = machine(root)
    assert set(it.measure(100.0)) == {"memory", "memory_limit", "disk_free"}
    tree(
        root,
        {
            "proc/stat": "cpu0 30 0 20 80 10 0 0 0 5 5\n",
            "proc/diskstats": MACHINE["proc/diskstats"].replace("2000", "4000"),
            "proc/net/dev": MACHINE["proc/net/dev"].replace("1000", "6000").replace("500", "700"),
        },
    )
    values = it.measure(110.0)
    assert values["cpu"] == 75.0
    assert values["disk_written"] == 2000 * 512 / 10
    assert (values["network_received"], values["network_sent"]) == (500.0, 20.0)
    tree(root, {"proc/net/dev": MACHINE["proc/net/dev"]})
    assert "network_received" not in it.measure(120.0)
    assert not {"disk_written", "network_sent"} & set(it.measure(119.0))  # the clock was set back


def test_infiniband_and_efa_are_networks(tmp_path: Path) -> None:
    """Most traffic of a distributed training is there, and not in /proc/net/dev."""
    ports = "sys/class/infiniband"
    first = {
        f"{ports}/mlx5_0/ports/1/counters/port_rcv_data": "1000",
        f"{ports}/mlx5_0/ports/1/counters/port_xmit_data": "0",
        f"{ports}/efa_0/ports/1/hw_counters/rx_bytes": "0",
        f"{ports}/efa_0/ports/1/hw_counters/tx_bytes": "5",
    }
    it = machine(tree(tmp_path, MACHINE | first))
    it.measure(0.0)
    tree(tmp_path, dict.fromkeys(first, "2000"))
    values = it.measure(1.0)
    assert values["network_received"] == 1000 * 4 + 2000
    assert values["network_sent"] == 2000 * 4 + 1995


QUOTAS = {
    "version 2": {
        "proc/self/cgroup": "0::/a/b\n",
        "sys/fs/cgroup/a/b/cpu.max": "max 100000\n",
        "sys/fs/cgroup/a/b/cpu.stat": "usage_usec 0\n",
        "sys/fs/cgroup/a/cpu.max": "200000 100000\n",
        "sys/fs/cgroup/a/cpu.stat": "usage_usec {usage}000000\nuser_usec 1\n",
    },
    "version 1": {
        "proc/self/cgroup": "3:cpuacct:/a\n2:cpu:/a\n",
        "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "200000\n",
        "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/cpuacct/a/cpuacct.usage": "{usage}000000000\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
    },
}


@pytest.mark.parametrize("version", QUOTAS)
def test_cpu_is_measured_against_the_quota(version: str, tmp_path: Path) -> None:
    """Of a group that may use two CPUs and used 15 seconds of them in 10."""
    files = MACHINE | QUOTAS[version]
    it = machine(tree(tmp_path, {name: text.format(usage=100) for name, text in files.items()}))
    it.measure(0.0)
    tree(tmp_path, {name: text.format(usage=115) for name, text in files.items()})
    assert it.measure(10.0)["cpu"] == 75.0


def test_an_empty_or_strange_system(tmp_path: Path) -> None:
    """What cannot be read is left out, whatever stands there."""
    assert set(machine(tmp_path).measure(0.0)) == {"disk_free"}
    strange = dict.fromkeys((*MACHINE, *QUOTAS["version 2"]), "?\n\n: :\n")
    it = machine(tree(tmp_path, strange))
    assert set(it.measure(0.0)) == {"disk_free"}
    assert set(it.measure(1.0)) <= {"disk_free", "disk_written", "network_received", "network_sent"}


def test_a_system_without_proc(tmp_path: Path) -> None:
    """Such as a Mac: what psutil tells of the machine."""

    class Times(tuple[float, ...]):
        idle = 50.0

    def traffic(received: int) -> SimpleNamespace:
        return SimpleNamespace(bytes_recv=received, bytes_sent=20)

    psutil: Any = SimpleNamespace(
        cpu_times=lambda: Times((25.0, 25.0, 50.0)),
        virtual_memory=lambda: SimpleNamespace(total=8 * GIB, available=2 * GIB),
        disk_io_counters=lambda: None,
        net_io_counters=lambda pernic: {name: traffic(10) for name in ("lo0", "en0")},
    )
    it = machine(tmp_path, psutil=psutil)
    it.measure(0.0)
    psutil.cpu_times = lambda: Times((75.0, 25.0, 50.0))
    psutil.net_io_counters = lambda pernic: {"lo0": traffic(999), "en0": traffic(110)}
    values = it.measure(10.0)
    values.pop("disk_free")
    assert values == {
        "cpu": 100.0,
        "memory": 6 * GIB,
        "memory_limit": 8 * GIB,
        "network_received": 10.0,
        "network_sent": 0.0,
    }


def test_each_disk_counts_once(tmp_path: Path) -> None:
    """Folders on one file system are one disk; a folder that there is not is none."""
    folders = [str(tmp_path), str(tmp_path / "missing"), os.fspath(tmp_path.parent)]
    it = Machine(folders, root=str(tmp_path))
    it.measure(0.0)
    (disk,) = it.disks
    assert disk.folder == str(tmp_path)


def test_this_machine() -> None:
    """Whatever runs this test has a CPU, and memory that it does not use up."""
    it = Machine(["/"], psutil=None if HAS_PROC else process_table())
    it.measure(time.monotonic())
    end = time.monotonic() + 0.1
    while time.monotonic() < end:
        pass
    values = it.measure(time.monotonic())
    assert 0 < values["cpu"] <= 100
    assert 0 < values["memory"] < values["memory_limit"]
