"""A healthy training with pauses: a slow first step, evaluations, checkpoints. `healthy.py` starts it."""

from __future__ import annotations

import argparse
import random
import time

import torch
import torch.distributed as dist

from cloudtrain import runtime


def compute(seconds: float) -> None:
    """Keep one processor busy."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        torch.randn(64, 64) @ torch.randn(64, 64)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("first", "step", "evaluate", "save", "spread"):
        parser.add_argument(f"--{name}", type=float, default=0.0, help="seconds, or a share")
    for name in ("evaluate-every", "save-every"):
        parser.add_argument(f"--{name}", type=int, default=10**9)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--compiled", action="store_true")
    options = parser.parse_args()
    group = runtime.init_process_group("gloo")
    chance = random.Random(group.rank)
    model = torch.nn.Linear(64, 64)
    run = torch.compile(model) if options.compiled else model
    end = time.monotonic() + options.seconds
    step = 0
    goes_on = torch.ones(1)
    while goes_on.item():
        compute(
            options.first if step == 0 else options.step * (1 + options.spread * chance.random())
        )
        loss = run(torch.randn(8 + step % 2, 64)).sum()
        dist.all_reduce(loss.detach())
        runtime.report(step=step, loss=float(loss))
        step += 1
        if step % options.evaluate_every == 0:
            if group.is_main:
                compute(options.evaluate)
            dist.barrier()
        if step % options.save_every == 0:
            time.sleep(options.save)  # a disk
        goes_on[0] = float(time.monotonic() < end)
        dist.broadcast(goes_on, src=0)


if __name__ == "__main__":
    main()
