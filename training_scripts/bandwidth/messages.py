"""Measure the time of collectives for a range of message sizes. Names and units are those of nccl-tests.

Algorithm bandwidth is size / time. Bus bandwidth is algorithm bandwidth times a factor that depends on the operation
and the number of processes. It can be compared with a link's rate for any number of processes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch
import torch.distributed as dist

Call = Callable[[], object]


@dataclass(frozen=True)
class Operation:
    """A row of nccl-tests. `factor` maps the number of processes to bus bandwidth / algorithm bandwidth. `make` takes
    the size in bytes as nccl-tests counts it: the size of a process's output or input.
    """

    name: str
    factor: Callable[[int], float]
    make: Callable[[int, torch.device], Call]


def elements(size: int, parts: int) -> int:
    """Return float32 numbers of `size` bytes, a multiple of `parts`."""
    return max(parts, size // 4 // parts * parts)


def _all_reduce(size: int, device: torch.device) -> Call:
    tensor = torch.ones(elements(size, 1), device=device)
    return lambda: dist.all_reduce(tensor)


def _all_gather(size: int, device: torch.device) -> Call:
    n = dist.get_world_size()
    whole = torch.ones(elements(size, n), device=device)
    mine = whole[: len(whole) // n].clone()
    # its name from torch 2.13 on
    gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
    return lambda: gather(whole, mine)


def _reduce_scatter(size: int, device: torch.device) -> Call:
    n = dist.get_world_size()
    whole = torch.ones(elements(size, n), device=device)
    mine = torch.empty(len(whole) // n, device=device)
    scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
    return lambda: scatter(mine, whole)


def _send(size: int, device: torch.device) -> Call:
    """Let every process send to the next process at the same time."""
    rank, n = dist.get_rank(), dist.get_world_size()
    there, here = (
        torch.ones(elements(size, 1), device=device),
        torch.empty(elements(size, 1), device=device),
    )

    def exchange() -> None:
        operations = [
            dist.P2POp(dist.isend, there, (rank + 1) % n),
            dist.P2POp(dist.irecv, here, (rank - 1) % n),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    return exchange


OPERATIONS = (
    Operation("all_reduce", lambda n: 2 * (n - 1) / n, _all_reduce),
    Operation("all_gather", lambda n: (n - 1) / n, _all_gather),
    Operation("reduce_scatter", lambda n: (n - 1) / n, _reduce_scatter),
    Operation("send", lambda _: 1.0, _send),
)


def seconds_of(call: Call, device: torch.device, iterations: int, batches: int = 5) -> float:
    """Return the seconds of one call on the slowest process: the median over batches of `iterations`, after a
    warm-up."""
    times = torch.zeros(batches, dtype=torch.double)
    for _ in range(2):
        call()
    for batch in range(batches):
        settled(device)
        begun = time.perf_counter()
        for _ in range(iterations):
            call()
        settled(device, barrier=False)
        times[batch] = (time.perf_counter() - begun) / iterations
    shared = times.float().to(device)
    dist.all_reduce(shared, op=dist.ReduceOp.MAX)
    return median(shared.tolist())


def settled(device: torch.device, *, barrier: bool = True) -> None:
    """Wait until this process's device has finished its work; with `barrier`, until all devices have."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    if barrier:
        dist.barrier()


def iterations_for(size: int) -> int:
    """Return the number of iterations: many for small messages, few for large ones."""
    return max(2, min(50, (64 << 20) // max(1, size)))


def sizes(smallest: int, largest: int, factor: int) -> list[int]:
    """Return the message sizes in bytes. Each size is `factor` times the previous size."""
    found = [smallest]
    while found[-1] * factor <= largest:
        found.append(found[-1] * factor)
    return found


def words(size: int) -> str:
    """Format a size as nccl-tests does: `4K`, `64M`."""
    for unit, power in (("G", 30), ("M", 20), ("K", 10)):
        if size >= 1 << power:
            return f"{size / (1 << power):g}{unit}"
    return str(size)
