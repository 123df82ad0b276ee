"""Measure the cost of exchanging gradients, with DistributedDataParallel, a ring in ten lines, parameter servers,
buckets and no_sync.

All tables with two processes; one of them with four, where ring and star are no longer the same:
    torchrun --nproc-per-node 2 compare.py
    torchrun --nproc-per-node 4 compare.py --tables exchange

The gradients are those of real digits, and a network wide enough that moving them takes time. Everything runs on CPUs,
with gloo and one thread for each process.
"""

import contextlib
import gzip
import importlib.util
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector

try:
    from cloudtrain import runtime
# not installed; in a checkout it stands two folders up, and the runtime is plain Python
except ModuleNotFoundError:
    sys.path.append(str(Path(__file__).resolve().parent.parent.parent))
    from cloudtrain import runtime


@dataclass
class Config:
    hidden: int = 1024
    layers: int = 6
    batch: int = 64  # images of each process and step; in the table of no_sync, of each micro-batch
    buckets: list[float] = field(default_factory=lambda: [1, 5, 25, 100])  # sizes to try, MB
    accumulate: list[int] = field(default_factory=lambda: [2, 4, 8])  # micro-batches to try
    # images of each process, for the speed-up
    shares: list[int] = field(default_factory=lambda: [32, 128, 512])
    rounds: int = 15  # each figure is the median of so many, taken in turn
    tables: list[str] = field(default_factory=lambda: ["speed", "exchange", "buckets", "no_sync"])
    seed: int = 1


AT_LEAST = {
    "hidden": 1,
    "layers": 1,
    "batch": 1,
    "buckets": 1e-3,
    "accumulate": 1,
    "shares": 1,
    "rounds": 1,
}


# The exchanges. Each turns the sum's parts, one flat tensor on every process, into the sum, in
# place.


def all_reduce(flat: Tensor) -> None:
    """Average the gradients as DistributedDataParallel does for each bucket."""
    dist.all_reduce(flat)


def ring(flat: Tensor) -> None:
    """Average the gradients by a ring, in which each process exchanges data with its neighbours only. In n - 1 steps
    the sums of n parts are formed, each on another process; in n - 1 more steps they reach all processes. Every process
    sends 2 (n - 1) / n of the gradients.
    """
    rank, n = dist.get_rank(), dist.get_world_size()
    parts = flat.tensor_split(n)
    for step in range(2 * (n - 1)):
        mine, theirs = parts[(rank - step) % n], parts[(rank - step - 1) % n]
        received = torch.empty_like(theirs)
        sending = dist.isend(mine, (rank + 1) % n)
        dist.recv(received, (rank - 1) % n)
        sending.wait()
        theirs.copy_(received if step >= n - 1 else theirs + received)


def star(flat: Tensor) -> None:
    """Average the gradients by a synchronous parameter server: all ranks send to rank 0, which adds up the gradients
    and sends the result back.
    """
    others = range(1, dist.get_world_size())
    if dist.get_rank():
        dist.send(flat, 0)
        dist.recv(flat, 0)
    else:
        received = {other: torch.empty_like(flat) for other in others}
        for waiting in [dist.irecv(received[other], other) for other in others]:
            waiting.wait()
        for gradient in received.values():
            flat += gradient
        for waiting in [dist.isend(flat, other) for other in others]:
            waiting.wait()


def sharded(flat: Tensor) -> None:
    """Average the gradients by n parameter servers, each for a part of them. The bytes are the same as in the ring, in
    two steps instead of 2 (n - 1).
    """
    rank, n = dist.get_rank(), dist.get_world_size()
    parts, others = flat.tensor_split(n), [other for other in range(n) if other != rank]
    received = {other: torch.empty_like(parts[rank]) for other in others}
    waiting = [dist.irecv(received[other], other) for other in others]
    for work in [*waiting, *(dist.isend(parts[other], other) for other in others)]:
        work.wait()
    for part in received.values():
        parts[rank].add_(part)
    waiting = [dist.irecv(parts[other], other) for other in others]
    for work in [*waiting, *(dist.isend(parts[rank], other) for other in others)]:
        work.wait()


EXCHANGES: dict[str, tuple[Callable[[Tensor], None], Callable[[int], tuple[float, float]]]] = {
    "all_reduce": (all_reduce, lambda n: (2 * (n - 1) / n, 2 * (n - 1) / n)),
    "ring": (ring, lambda n: (2 * (n - 1) / n, 2 * (n - 1) / n)),
    "sharded servers": (sharded, lambda n: (2 * (n - 1) / n, 2 * (n - 1) / n)),
    "one server": (star, lambda n: (1.0, n - 1.0)),
}
"""The exchanges, with the amounts that a worker and the busiest process send in theory, in sizes of the gradients."""


# Measuring.


def in_turn(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the median seconds of each exchange over all rounds, on the slowest process. The first round does not
    count."""
    seconds = torch.zeros(len(calls), rounds + 1, dtype=torch.double)
    for turn in range(rounds + 1):
        for number, call in enumerate(calls.values()):
            dist.barrier()
            started = time.perf_counter()
            call()
            seconds[number, turn] = time.perf_counter() - started
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    return {
        name: statistics.median(seconds[number, 1:].tolist()) for number, name in enumerate(calls)
    }


def bytes_written() -> int:
    """Return the bytes that this process has written so far, including to sockets, as counted by the kernel; 0 if /proc
    does not exist.
    """
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        return 0
    return next(int(line.split()[1]) for line in lines if line.startswith("wchar:"))


def bytes_sent(call: Callable[[], object]) -> list[int]:
    """Return the bytes that each process sends during `call`."""
    dist.barrier()
    before = bytes_written()
    call()
    sent = torch.tensor([bytes_written() - before])
    everybody = [torch.zeros_like(sent) for _ in range(dist.get_world_size())]
    dist.all_gather(everybody, sent)
    return [int(value) for value in everybody]


def say(text: str = "") -> None:
    if dist.get_rank() == 0:
        print(text, flush=True)


# The work.


def load_digits() -> tuple[Tensor, Tensor]:
    """Return 1,797 scans as 64 grey values from 0 to 1, and their digits, out of scikit-learn."""
    package = importlib.util.find_spec("sklearn")
    if package is None or not package.submodule_search_locations:
        raise runtime.SetupError(
            "the digits come with scikit-learn, which is not installed",
            hint="pip install scikit-learn",
        )
    path = Path(package.submodule_search_locations[0], "datasets", "data", "digits.csv.gz")
    rows = [line.split(b",") for line in gzip.decompress(path.read_bytes()).splitlines()]
    table = torch.tensor([[float(cell) for cell in row] for row in rows])
    return table[:, :64] / 16, table[:, 64].long()


def make_network(config: Config) -> nn.Sequential:
    torch.manual_seed(config.seed)
    sizes = [64, *[config.hidden] * config.layers]
    layers: list[nn.Module] = []
    for number in range(config.layers):
        layers += [nn.Linear(sizes[number], sizes[number + 1]), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(config.hidden, 10))


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def gradients(network: nn.Module) -> Tensor:
    return parameters_to_vector([parameter.grad for parameter in network.parameters()])


def local_step(network: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    network.zero_grad()
    loss_of(network, batch).backward()
    return gradients(network)


# The tables.


def speed_table(config: Config, images: Tensor, labels: Tensor) -> None:
    """Compare the gradients of one batch, from one process and from all. The exchange costs the same for every
    batch."""
    rank, n = dist.get_rank(), dist.get_world_size()
    network, model = make_network(config), DistributedDataParallel(make_network(config))
    calls: dict[str, Callable[[], object]] = {}
    for share in config.shares:
        batch = (images[: n * share], labels[: n * share])
        mine = (batch[0][rank::n], batch[1][rank::n])
        calls[f"one {share}"] = lambda batch=batch: None if rank else local_step(network, batch)
        calls[f"all {share}"] = lambda mine=mine: local_step(model, mine)
    found = in_turn(calls, config.rounds)
    say(f"\n{n} processes against one, the same batch")
    say(f"{'batch':>6} {'of each':>8} {'one, ms':>8} {f'{n}, ms':>8} {'speed-up':>9}")
    for share in config.shares:
        one, everybody = found[f"one {share}"], found[f"all {share}"]
        say(
            f"{n * share:>6} {share:>8} {one * 1e3:>8.1f} {everybody * 1e3:>8.1f} {one / everybody:>8.2f}x"
        )


def exchange_table(
    config: Config, mine: tuple[Tensor, Tensor], everything: tuple[Tensor, Tensor]
) -> None:
    """Compare bytes and time of the exchanges, and check that all of them average the same gradients."""
    n = dist.get_world_size()
    network, model = make_network(config), DistributedDataParallel(make_network(config))
    expected = local_step(make_network(config), everything)
    local = local_step(network, mine)

    def exchanged(exchange: Callable[[Tensor], None]) -> Tensor:
        flat = local_step(network, mine)
        exchange(flat)
        return flat / n

    def with_ddp() -> Tensor:
        return local_step(model, mine)

    size = local.nbytes
    buffer = local.clone()
    alone = in_turn(
        {name: lambda f=f: f(buffer.copy_(local)) for name, (f, _) in EXCHANGES.items()},
        config.rounds,
    )
    steps: dict[str, Callable[[], object]] = {
        name: lambda f=f: exchanged(f) for name, (f, _) in EXCHANGES.items()
    }
    whole = in_turn(
        {"no exchange": lambda: local_step(network, mine), "DDP": with_ddp, **steps}, config.rounds
    )
    with_ddp()  # from its second backward on, it has its final buckets
    say(
        f"\n{n} processes, gradients of {size / 1e6:.1f} MB; sent by a worker and by the busiest process, in MB"
    )
    say(
        f"{'':<16} {'theory':>13} {'as the kernel counts':>21} {'exchange ms':>12} {'step ms':>8} {'difference':>11}"
    )
    say(f"{'no exchange':<16} {'':>13} {'':>21} {'':>12} {whole['no exchange'] * 1e3:>8.1f}")
    for name in ("DDP", *EXCHANGES):
        exchange, theory = EXCHANGES["all_reduce" if name == "DDP" else name]
        run = with_ddp if name == "DDP" else lambda exchange=exchange: exchanged(exchange)
        sent = bytes_sent(run)
        worst = float((run() - expected).abs().max())
        predicted = " ".join(f"{share * size / 1e6:6.1f}" for share in theory(n))
        counted = f"{sent[-1] / 1e6:6.1f} {max(sent) / 1e6:6.1f}"
        milliseconds = f"{alone[name] * 1e3:.1f}" if name in alone else "overlaps"
        say(
            f"{name:<16} {predicted:>13} {counted:>21} {milliseconds:>12} {whole[name] * 1e3:>8.1f} {worst:>11.1e}"
        )


def buckets_table(config: Config, mine: tuple[Tensor, Tensor]) -> None:
    """Show the number of buckets for each bucket size, and the part of the exchange that does not overlap with
    backward.
    """
    counts: dict[str, int] = {}
    calls: dict[str, Callable[[], object]] = {}

    def add(name: str, **options: float) -> None:
        model = DistributedDataParallel(make_network(config), **options)
        calls[name] = lambda: local_step(model, mine)
        counted = DistributedDataParallel(make_network(config), **options)

        def count(state: None, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
            counts[name] = bucket.index() + 1
            return allreduce_hook(state, bucket)

        counted.register_comm_hook(None, count)
        for _ in range(2):  # the second backward has the final buckets
            counts[name] = 0
            local_step(counted, mine)

    for size in config.buckets:
        add(f"{size:g} MB", bucket_cap_mb=size)
    add("default")
    add("default, views", gradient_as_bucket_view=True)
    network = make_network(config)
    flat = torch.empty_like(local_step(network, mine))

    def afterwards() -> None:
        flat.copy_(local_step(network, mine))
        dist.all_reduce(flat)

    calls = {
        "no exchange": lambda: local_step(network, mine),
        "after backward": afterwards,
        **calls,
    }
    counts["after backward"] = 1
    found = in_turn(calls, config.rounds)
    exposed_afterwards = found["after backward"] - found["no exchange"]
    say(f"\n{dist.get_world_size()} processes, one step of {config.batch} images each")
    say(
        f"{'bucket_cap_mb':<16} {'buckets':>7} {'step ms':>8} {'exchange not hidden, ms':>24} {'of all':>7}"
    )
    for name, seconds in found.items():
        left = seconds - found["no exchange"]
        rest = f" {left * 1e3:>24.1f} {left / exposed_afterwards:>7.0%}" if name in counts else ""
        say(f"{name:<16} {counts.get(name, ''):>7} {seconds * 1e3:>8.1f}{rest}")


def no_sync_table(config: Config, mine: tuple[Tensor, Tensor]) -> None:
    """Compare the gradients of an optimizer step over several micro-batches when they are exchanged after each
    micro-batch and when only after the last.
    """
    model = DistributedDataParallel(make_network(config))

    def accumulate(count: int, hold_back: bool) -> None:
        model.zero_grad()
        for number in range(count):
            with model.no_sync() if hold_back and number < count - 1 else contextlib.nullcontext():
                loss_of(model, mine).backward()

    kinds = [(count, hold_back) for count in config.accumulate for hold_back in (False, True)]
    found = in_turn(
        {str(kind): lambda kind=kind: accumulate(*kind) for kind in kinds}, config.rounds
    )
    sent = {str(kind): bytes_sent(lambda kind=kind: accumulate(*kind))[0] / 1e6 for kind in kinds}
    say(
        f"\n{dist.get_world_size()} processes, gradients of several micro-batches of {config.batch} images"
    )
    say(
        f"{'micro-batches':>13} {'sync each, ms':>14} {'no_sync, ms':>12} {'gain':>6} {'MB sent':>8} {'no_sync':>8}"
    )
    for count in config.accumulate:
        each, held = str((count, False)), str((count, True))
        say(
            f"{count:>13} {found[each] * 1e3:>14.1f} {found[held] * 1e3:>12.1f} {1 - found[held] / found[each]:>6.1%} "
            f"{sent[each]:>8.1f} {sent[held]:>8.1f}"
        )


def main() -> None:
    config = runtime.arguments(Config, at_least=AT_LEAST)
    torch.set_num_threads(1)
    group = runtime.init_process_group("gloo")
    images, labels = load_digits()
    ours = range(config.batch * group.world_size)
    chosen = torch.randperm(len(images), generator=torch.Generator().manual_seed(config.seed))[
        : len(ours)
    ]
    share = chosen[group.rank :: group.world_size]
    mine, everything = (images[share], labels[share]), (images[chosen], labels[chosen])
    largest = max([config.batch, *(config.shares if "speed" in config.tables else [])])
    if largest * group.world_size > len(images):
        raise runtime.SetupError(
            f"{group.world_size} processes want more than the {len(images)} images of the data"
        )
    tables: dict[str, Callable[[], None]] = {
        "speed": lambda: speed_table(config, images, labels),
        "exchange": lambda: exchange_table(config, mine, everything),
        "buckets": lambda: buckets_table(config, mine),
        "no_sync": lambda: no_sync_table(config, mine),
    }
    for name in config.tables:
        tables[name]()
    runtime.destroy_process_group()


if __name__ == "__main__":
    main()
