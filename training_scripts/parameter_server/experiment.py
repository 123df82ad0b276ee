"""`--experiment`: ring all-reduce, an unbounded and a bounded parameter server, with workers of different speeds.

All methods compute the same gradients, in the same processes, one after the other. There are two kinds of trouble: one
worker is always slow, or any worker is slow now and then. A sleep stands for the computing, so that two cores can
simulate many.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import mean
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.rpc as rpc
from server import Seen, Server, largest_staleness, serving
from torch import Tensor
from worker import Digits, compute, learning_rate_at, work

METHODS = {"ring all-reduce": None, "asynchronous": None, "bounded": 2}
"""The methods, with their largest lead. `--max_staleness` overrides the lead."""


@dataclass
class Outcome:
    """The result of one run. Bytes are those that the process sent over the whole run; rank 0 is the server."""

    method: str
    seconds: float = 0.0
    seen: list[Seen] = field(default_factory=list)
    curve: list[tuple[float, float]] = field(default_factory=list)  # seconds, test accuracy
    sent: dict[int, float] = field(default_factory=dict)  # process to megabytes
    bound: int | None = None

    def idle(self, worker: int) -> float:
        """Return the share of its time in which the worker waits for others."""
        mine = [row for row in self.seen if row.worker == worker]
        return sum(row.waiting for row in mine) / sum(row.waiting + row.computing for row in mine)

    def seconds_to(self, accuracy: float) -> float:
        return next((seconds for seconds, reached in self.curve if reached >= accuracy), math.inf)


def run_experiment(config: Any, digits: Digits, group: Any, call: Callable[..., Any]) -> None:
    """Run the experiment. Every rank calls it; rank 0 prints and draws."""
    workers = group.world_size - 1
    base = replace(config, step_seconds=config.step_seconds or 0.01, slow_worker=0, hiccups=0.0)
    slow, share = config.slow_worker or 1, config.hiccups or 0.1
    times = f"{config.slow_factor:g} times slower"
    scenarios = {
        f"worker {slow} is {times}": replace(base, slow_worker=slow),
        f"{share:.0%} of all gradients are {times}": replace(base, hiccups=share),
    }
    ring = dist.new_group(list(range(1, workers + 1)))
    # the first one takes a second, in which others would run ahead
    digits.gradient(start_of(base), 0)
    found: dict[str, list[Outcome]] = {}
    for title, setting in scenarios.items():
        found[title] = []
        for method, lead in METHODS.items():
            setting.max_staleness = (
                lead if lead is None or config.max_staleness is None else config.max_staleness
            )
            run = run_ring if method == "ring all-reduce" else run_server
            outcome = run(method, setting, digits, group, call if run is run_server else ring)
            dist.barrier()
            found[title].append(outcome)
    if group.is_main:
        print("\n".join(table(found, workers)), flush=True)
        draw(found, workers, config.picture)


def start_of(config: Any) -> Tensor:
    """Return the weights that every run starts with, independent of the previous run."""
    return Digits(
        hidden=config.hidden, batch=config.batch, seed=config.seed, device=torch.device("cpu")
    ).weights()


def run_server(
    method: str, config: Any, digits: Digits, group: Any, call: Callable[..., Any]
) -> Outcome:
    workers, last = group.world_size - 1, config.epochs * digits.batches_per_epoch
    server = Server(
        start_of(config),
        workers=workers,
        last_update=last,
        learning_rate_at=lambda update: learning_rate_at(config, digits, update),
        max_staleness=config.max_staleness,
        report_every=last,
        evaluate_every=10,
        save_every=last,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
    )
    serving[:] = [server]
    if group.rank:
        rpc.rpc_sync("server", int)  # connects, which is no part of the training
    dist.barrier()
    if group.rank:
        work(config, digits, group.rank, call, lambda: False)
        return Outcome(method)
    while server.here:
        time.sleep(0.01)
    kept = []
    while not server.events.empty():
        kept.append(server.events.get())
    curve = [
        (event.seconds, digits.accuracy(event.content))
        for event in kept
        if event.kind == "evaluate"
    ]
    megabytes = server.weights.nbytes / 1e6
    sent = {
        worker: megabytes * sum(row.worker == worker for row in server.seen)
        for worker in range(1, workers + 1)
    }
    bound = largest_staleness(workers, config.max_staleness)
    # a task carries the weights one way, its result a gradient the other way
    return Outcome(
        method, kept[-1].seconds, server.seen, curve, {0: sum(sent.values()), **sent}, bound
    )


def run_ring(method: str, config: Any, digits: Digits, group: Any, ring: Any) -> Outcome:
    """Do the same as DistributedDataParallel with one bucket: gloo's ring averages gradients, then every process makes
    the same step. A step counts as one update for each worker, at the sum of their learning rates."""
    workers, last = group.world_size - 1, config.epochs * digits.batches_per_epoch
    weights = torch.nn.Parameter(start_of(config))
    optimizer = torch.optim.SGD(
        [weights], lr=0.0, momentum=config.momentum, weight_decay=config.weight_decay
    )
    seen, snapshots = [], []
    dist.barrier()
    started = time.perf_counter()
    for first in range(0, last - last % workers if group.rank else 0, workers):
        gradient, _, computing = compute(
            config, digits, group.rank, first + group.rank - 1, weights.detach()
        )
        asked = time.perf_counter()
        dist.all_reduce(gradient, group=ring)
        seen.append(Seen(group.rank, 0, computing, time.perf_counter() - asked))
        optimizer.param_groups[0]["lr"] = workers * learning_rate_at(config, digits, first)
        weights.grad = gradient / workers
        optimizer.step()
        if first // 10 != (first + workers) // 10:
            snapshots.append((time.perf_counter() - started, weights.detach().clone()))
    seconds = time.perf_counter() - started
    curve = [(at, digits.accuracy(kept)) for at, kept in snapshots] if group.rank == 1 else []
    gathered: list[Any] = [None] * group.world_size
    dist.all_gather_object(gathered, (seen, curve, seconds))
    megabytes = 2 * (workers - 1) / workers * weights.nbytes / 1e6
    sent = {
        0: 0.0,
        **{worker: megabytes * len(gathered[worker][0]) for worker in range(1, workers + 1)},
    }
    return Outcome(
        method,
        gathered[1][2],
        [row for rows, _, _ in gathered for row in rows],
        gathered[1][1],
        sent,
    )


def table(found: dict[str, list[Outcome]], workers: int) -> list[str]:
    """Return one line for each run. MB are sent bytes; `busiest` is the process that sends most."""
    lines = []
    head = f"{'':<16} {'seconds':>7} {'to 95%':>7} {'idle':>6} {'staleness':>9} {'max':>4} {'bound':>5}"
    head += f" {'MB/gradient':>11} {'MB/worker':>9} {'busiest':>8} {'accuracy':>8}"
    for title, outcomes in found.items():
        lines += ["", f"{workers} workers, {title}", head]
        for one in outcomes:
            stale = [row.staleness for row in one.seen]
            per_worker = [one.sent[worker] for worker in range(1, workers + 1)]
            reached, bound = one.seconds_to(0.95), "-" if one.bound is None else one.bound
            lines.append(
                f"{one.method:<16} {one.seconds:>7.2f} {reached:>7.2f} "
                f"{mean(one.idle(worker) for worker in range(1, workers + 1)):>6.1%} {mean(stale):>9.2f} "
                f"{max(stale):>4} {bound:>5} {sum(per_worker) / len(one.seen):>11.3f} {mean(per_worker):>9.1f} "
                f"{max(one.sent.values()):>8.1f} {one.curve[-1][1]:>8.4f}"
            )
    return lines


def draw(found: dict[str, list[Outcome]], workers: int, picture: str) -> None:
    """Draw a row of four panels for each kind of trouble."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        print("no picture: it needs matplotlib (pip install matplotlib)")
        return
    figure = Figure(figsize=(17, 4 * len(found)), layout="constrained")
    longest = max(one.seconds for outcomes in found.values() for one in outcomes)
    last = min(
        12,
        max(row.staleness for outcomes in found.values() for one in outcomes for row in one.seen),
    )
    names = [str(worker) for worker in range(1, workers + 1)]
    for band, (title, outcomes) in zip(
        figure.subfigures(len(found), squeeze=False)[:, 0], found.items(), strict=True
    ):
        band.suptitle(f"{workers} workers, {title}", fontweight="bold")
        accuracy, idle, staleness, sent = band.subplots(1, 4)
        accuracy.set(
            title="accuracy",
            xlabel="seconds",
            ylabel="test accuracy",
            xlim=(0, 1.03 * longest),
            ylim=(0.5, 1),
        )
        idle.set(title="idle", xlabel="worker", ylabel="% of its time", ylim=(0, 100))
        staleness.set(
            title="staleness",
            xlabel="updates by others meanwhile",
            ylabel="% of all gradients",
            ylim=(0, 100),
        )
        sent.set(title="sent", xlabel="process", ylabel="MB over the whole run")
        idle.set_xticks(range(workers), names)
        sent.set_xticks(range(workers + 1), ["server", *names])
        staleness.set_xticks(range(last + 1), [*map(str, range(last)), f"{last}+"])
        accuracy.axhline(0.95, linestyle=":", color="grey")
        for number, one in enumerate(outcomes):
            place = (number - (len(outcomes) - 1) / 2) * 0.27
            accuracy.plot(*zip(*one.curve, strict=True), label=one.method)
            accuracy.plot(*one.curve[-1], "o", color=f"C{number}")
            idle.bar(
                [w + place for w in range(workers)],
                [100 * one.idle(w + 1) for w in range(workers)],
                0.27,
            )
            sent.bar(
                [p + place for p in range(workers + 1)],
                [one.sent[p] for p in range(workers + 1)],
                0.27,
            )
            stale = [min(row.staleness, last) for row in one.seen]
            shares = [100 * stale.count(value) / len(stale) for value in range(last + 1)]
            staleness.bar([value + place for value in range(last + 1)], shares, 0.27)
        accuracy.legend(loc="lower right")
    figure.savefig(picture, dpi=100)
    print(f"wrote {picture}")
