"""Train a small model on 1 to n processes, with the same work for each process and with the same work for all, and
project the result to slower networks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from statistics import median

import torch
import torch.distributed as dist
from messages import settled
from torch import nn
from torch.nn.parallel import DistributedDataParallel

NETWORKS = (100.0, 50.0, 25.0)
"""Gb/s for each process: InfiniBand EDR, and half and a quarter of it."""


def counts(world: int) -> list[int]:
    """Return 1, 2, 4, ... and the number of all processes."""
    found = [1]
    while found[-1] * 2 < world:
        found.append(found[-1] * 2)
    return [*found, world] if world > 1 else found


def step_seconds(
    device: torch.device, width: int, layers: int, batch: int, rounds: int, *, is_divided: bool
) -> Iterator[tuple[int, float, int]]:
    """Yield the number of processes, the seconds of a training step on the slowest process, and the bytes of gradients.
    Each process computes `batch` rows, or with `is_divided` its share of them. Every process must call it; processes that do not take part in a measurement wait.
    """
    for count in counts(dist.get_world_size()):
        group = dist.new_group(list(range(count)))
        seconds, size = 0.0, 0
        if dist.get_rank() < count:
            torch.manual_seed(0)
            pairs = [
                module for _ in range(layers) for module in (nn.Linear(width, width), nn.ReLU())
            ]
            network = nn.Sequential(*pairs).to(device)
            size = sum(parameter.nbytes for parameter in network.parameters())
            ids = [device.index] if device.type == "cuda" else None
            model: nn.Module = network
            if count > 1:
                model = DistributedDataParallel(
                    network, device_ids=ids, process_group=group, gradient_as_bucket_view=True
                )
            optimizer = torch.optim.SGD(network.parameters(), lr=1e-3)
            rows = max(1, batch // count) if is_divided else batch
            images = torch.randn(rows, width, device=device)
            times = []
            for _ in range(rounds + 2):
                settled(device, barrier=False)
                if count > 1:
                    dist.barrier(group)
                begun = time.perf_counter()
                model(images).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                settled(device, barrier=False)
                times.append(time.perf_counter() - begun)
            seconds = median(times[2:])
        found = torch.tensor([seconds, size], dtype=torch.float, device=device)
        dist.all_reduce(found, op=dist.ReduceOp.MAX)
        yield count, float(found[0]), int(found[1])


def exchange_seconds(size: int, processes: int, gigabits: float, latency: float) -> float:
    """Return the seconds of a ring all-reduce: 2 (n - 1) messages, each with 1 / n of the gradients."""
    steps = 2 * (processes - 1)
    return steps * latency + steps / processes * size * 8 / (gigabits * 1e9)


def projected(
    alone: float, size: int, latency: float, processes: list[int]
) -> Iterator[tuple[int, list[float]]]:
    """Map processes to efficiency over each network of NETWORKS. `alone` is the measured seconds of a step on one
    process, `latency` that of the smallest measured message. The result is a lower bound, because it assumes that no
    part of the exchange is hidden."""
    for n in processes:
        yield n, [alone / (alone + exchange_seconds(size, n, rate, latency)) for rate in NETWORKS]
