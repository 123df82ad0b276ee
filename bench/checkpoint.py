"""Measure what a sharded checkpoint costs: saving compared with writing its bytes, loading compared with reading them.

    python bench/checkpoint.py [--gigabytes 2] [--processes 1] [--rounds 5]

The reference writes as many bytes into as many files, at once, and syncs them; both take turns, and their medians
count. Exit code 1 when saving takes more than 1.3 times the reference, or when loading reads more than the checkpoint.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent.parent))

from cloudtrain import runtime
from cloudtrain.runtime import sharded
from cloudtrain.runtime.process_group import from_main
from cloudtrain.runtime.sharded import read_shards, write_shards

LIMIT = 1.3


def together() -> float:
    """Return the time when all processes have arrived."""
    if dist.get_world_size() > 1:
        dist.barrier()
    return time.perf_counter()


def write_plainly(tensors: list[torch.Tensor], path: Path) -> None:
    """Write only the bytes."""
    with path.open("wb") as file:
        for tensor in tensors:
            file.write(memoryview(tensor.numpy()).cast("B"))
        file.flush()
        os.fsync(file.fileno())


def kernel_reads() -> int:
    """Return the bytes that this process has read, from files, page cache and sockets; 0 without /proc."""
    try:
        return int(Path("/proc/self/io").read_text().split()[1])
    except OSError:
        return 0


def count_reads() -> list[int]:
    """Return the list that receives the lengths of all blocks that this process reads from now on."""
    lengths: list[int] = []
    read = sharded._read_block

    def counting(*arguments: Any) -> bytearray:
        data = read(*arguments)
        lengths.append(len(data) - 1)
        return data

    sharded._read_block = counting
    return lengths


def main() -> int:
    """Measure in turn, print, compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if options.processes > 1 and "RANK" not in os.environ:
        launcher = [
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            str(options.processes),
        ]
        os.execv(sys.executable, [sys.executable, *launcher, *sys.argv])
    group = runtime.init_process_group("gloo")
    count = 16
    size = int(options.gigabytes * 1e9 / 4 / count / group.world_size)
    mine = [torch.full((size,), float(group.rank + number)) for number in range(count)]
    state = {f"rank{group.rank}.tensor{number}": tensor for number, tensor in enumerate(mine)}
    folder = Path(from_main(tempfile.mkdtemp(dir=Path.cwd())))
    plain, saved = [], []
    for number in range(options.rounds):
        begun = together()
        write_plainly(mine, folder / f"plain-{group.rank}")
        plain.append(together() - begun)
        (folder / f"plain-{group.rank}").unlink()
        checkpoints = runtime.Checkpoints(folder / "checkpoint", keep=1)
        begun = together()
        checkpoints.save_sharded(lambda aside: write_shards(state, aside), number)
        saved.append(together() - begun)
    total = 4 * size * count * group.world_size
    lengths, before, begun = count_reads(), kernel_reads(), together()
    found = checkpoints.load_sharded(lambda saved_at: read_shards(state, saved_at))
    loading = together() - begun
    assert found is not None
    counts = torch.tensor([sum(lengths), kernel_reads() - before], dtype=torch.double)
    if group.world_size > 1:
        dist.all_reduce(counts)
    read, by_kernel = (counts / total).tolist()
    times = median(saved) / median(plain)
    once = read <= 1.01 and (group.world_size > 1 or by_kernel <= 1.05)
    if group.is_main:
        print(f"{total / 1e9:.2f} GB in {group.world_size} processes, medians of {options.rounds}")
        print(
            f"writing the bytes {median(plain):.2f} s, saving {median(saved):.2f} s: {times:.2f} times, at most {LIMIT}"
        )
        print(f"loading {loading:.2f} s reads {read:.2f} times the bytes", end="")
        print(f"; {by_kernel:.2f} as the kernel counts" if group.world_size == 1 else "")
    runtime.destroy_process_group()
    shutil.rmtree(folder, ignore_errors=True)
    return 0 if times <= LIMIT and once else 1


if __name__ == "__main__":
    sys.exit(main())
