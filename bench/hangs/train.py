"""A training that hangs in one of ten ways at its 30th step. `bench/hangs/run.py` starts it."""

from __future__ import annotations

import argparse
import os
import signal
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist

from cloudtrain import runtime

AT = 30
FOR_EVER = 3600.0


class Batches(torch.utils.data.IterableDataset[torch.Tensor]):
    """Batches of a data loader, whose worker stops at one of them."""

    def __init__(self, *, stops: bool) -> None:
        self.stops = stops

    def __iter__(self) -> Iterator[torch.Tensor]:
        for step in range(2 * AT):
            if self.stops and step == AT:
                time.sleep(FOR_EVER)
            yield torch.ones(1000)


def fall_asleep() -> None:
    time.sleep(FOR_EVER)


def work() -> None:
    end = time.monotonic() + FOR_EVER
    while time.monotonic() < end:
        torch.randn(100, 100) @ torch.randn(100, 100)


def save() -> None:
    while True:
        try:
            with open("/dev/full", "w") as file:
                file.write("checkpoint")
        except OSError:
            time.sleep(2.0)


def train(kind: str, group: runtime.ProcessGroup) -> None:
    rank = group.rank
    is_guilty = rank == 1
    loader = torch.utils.data.DataLoader(
        Batches(stops=is_guilty and kind == "data-loader"),
        batch_size=None,
        num_workers=1 if kind == "data-loader" else 0,
    )
    for step, batch in enumerate(loader):
        if step == AT:
            if kind == "rank-zero" and rank == 0:
                dist.broadcast(batch, src=1)
            if kind == "all-wait":
                dist.recv(batch, src=1 - rank)
            if kind == "collective" and is_guilty:
                dist.broadcast(batch, src=0)
            if kind == "swallowed" and is_guilty:
                continue
            if is_guilty and kind in STOPS:
                STOPS[kind]()
        if step == AT + 5:
            break
        dist.all_reduce(batch)
        runtime.report(step=step, loss=1.0)
        time.sleep(0.05)
    total = torch.ones(1)
    dist.broadcast(total, src=0)


STOPS = {
    "asleep": fall_asleep,
    "slow": work,
    "disk": save,
    "stopped": lambda: os.kill(os.getpid(), signal.SIGSTOP),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", required=True)
    parser.add_argument("--timeout", type=float, default=90.0)
    options = parser.parse_args()
    group = runtime.init_process_group("gloo", timeout=options.timeout)
    train(options.kind, group)


if __name__ == "__main__":
    main()
