"""torch.distributed, set up the same way everywhere: environment found, backend chosen, store made fresh."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from .backend import AUTO, choose_backend
from .environment import Environment, detect_environment
from .errors import SetupError
from .notices import notice
from .uncaught import tell_setup_errors

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class ProcessGroup:
    """What a script asks about its processes. `device` is the torch device of this process."""

    environment: Environment
    backend: str
    device: torch.device

    @property
    def rank(self) -> int:
        """0 to `world_size - 1`."""
        return self.environment.rank

    @property
    def world_size(self) -> int:
        """Processes of the job, on all instances."""
        return self.environment.world_size

    @property
    def local_rank(self) -> int:
        """This process among those of its instance."""
        return self.environment.local_rank

    @property
    def is_main(self) -> bool:
        """True for the one process that prints, and writes files."""
        return self.environment.is_main


def init_process_group(backend: str = AUTO, *, timeout: float | None = None) -> ProcessGroup:
    """Join the processes of this job; one process alone gets a group of one, so that a script has one path.

    `auto` takes smddp where its library is installed, nccl where every process has a GPU of its own (with gloo for CPU
    tensors), else gloo. `timeout` is in seconds. On GPUs the process's device becomes the current one.

    Raises:
        SetupError: the backend asked for cannot run here, or nobody says where rank 0 is.
    """
    import torch

    environment = detect_environment()
    limit = None if timeout is None else timedelta(seconds=timeout)
    store = _fresh_store(environment, limit)
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    folded = gpus > 0 and _gpu_is_shared(environment, store, environment.local_rank % gpus)
    chosen = choose_backend(backend, gpus=gpus, folded=folded, alone=environment.world_size == 1)
    device = torch.device("cuda", environment.local_rank % gpus) if gpus else torch.device("cpu")
    if gpus:
        torch.cuda.set_device(device)
    if folded:
        notice("several processes share one GPU, so they cannot be faster than one process")
    rest: dict[str, Any] = {} if limit is None else {"timeout": limit}
    _distributed().init_process_group(
        chosen, store=store, rank=environment.rank, world_size=environment.world_size, **rest
    )
    tell_setup_errors()  # torch has just put a hook around the one that was there, which marks every line with a rank
    return ProcessGroup(environment, chosen, device)


def destroy_process_group() -> None:
    """Wait for all processes, then leave together; without a group, nothing. A process that failed must not call it."""
    dist = _joined()
    if dist is not None:
        _barrier_to_the_end()
        dist.destroy_process_group()


def any_rank(flag: bool) -> bool:
    """True on every rank when it is true on one. Every rank must call it; without a group it is the flag itself."""
    dist = _joined()
    if dist is None or dist.get_world_size() == 1:
        return flag
    import torch

    votes = torch.tensor([int(flag)], device=control_device())
    dist.all_reduce(votes, op=dist.ReduceOp.MAX)
    return bool(votes.item())


def from_main(value: Any) -> Any:
    """Rank 0's value, on every rank. Every rank must call it."""
    dist = _joined()
    if dist is None or dist.get_world_size() == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0, device=control_device())
    return box[0]


def wait_for_all() -> None:
    """A barrier; without a group, nothing."""
    any_rank(False)


def _barrier_to_the_end(rounds: int = 3, patience: float = 1.0) -> None:
    """Barriers that end when gloo's own threads have let go of their tensors, too.

    A thread of gloo drops its reference to a tensor some time after the collective returned, and needs the
    interpreter's lock for that. An interpreter that leaves meanwhile takes the process with it: "terminate called
    without an active exception", SIGABRT, after the training was done (torch 2.13; `bench/leaving.py` counts).
    The thread's reference shows in the reference count. Three rounds, because earlier collectives may be late, too.
    """
    import sys
    import time

    import torch

    for _ in range(rounds if _distributed().get_world_size() > 1 else 0):
        votes = torch.zeros(1, device=control_device())
        ours = sys.getrefcount(votes)
        _distributed().all_reduce(votes)
        deadline = time.monotonic() + patience
        while sys.getrefcount(votes) > ours and time.monotonic() < deadline:
            time.sleep(0.001)


def control_device() -> torch.device:
    """Where small tensors that all ranks agree on must live: the CPU unless the backend knows only GPUs."""
    import torch

    gpu_only = str(_distributed().get_backend()) in ("nccl", "cuda:nccl", "smddp")
    return torch.device("cuda", torch.cuda.current_device()) if gpu_only else torch.device("cpu")


def _distributed() -> Any:
    """torch.distributed, untyped: its stores and `rendezvous` are public but not exported in its type hints."""
    import torch.distributed

    return torch.distributed


def _joined() -> Any:
    """The module when a process group exists. A script that never imported torch has none, so torch stays out."""
    import sys

    if "torch" not in sys.modules:
        return None
    dist = _distributed()
    return dist if dist.is_available() and dist.is_initialized() else None


def _fresh_store(environment: Environment, timeout: timedelta | None) -> Any:
    """The store through which ranks meet, without keys of an earlier attempt.

    torchrun restarts ranks into the store of the first attempt (pytorch issue 135712), where gloo would read the
    addresses of dead processes. On one node the restart count names the attempt; on several it differs between
    agents, and there `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1` makes torchrun use a new store.
    """
    dist = _distributed()
    if environment.world_size == 1:
        return dist.HashStore()
    if environment.master_addr is None:
        raise SetupError(
            f"{environment.world_size} processes on {environment.node_count} instances, and no variable says where "
            "rank 0 is",
            hint="set `MASTER_ADDR` to the first host and `MASTER_PORT` to a free port there, on every process",
        )
    os.environ.setdefault("MASTER_ADDR", environment.master_addr)
    os.environ.setdefault("MASTER_PORT", str(environment.master_port))
    rest: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
    met = dist.rendezvous("env://", environment.rank, environment.world_size, **rest)
    store, _, _ = next(met)
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT")
    if attempt is not None and environment.node_count == 1:
        return dist.PrefixStore(f"attempt_{attempt}", store)
    return store


def _gpu_is_shared(environment: Environment, store: Any, index: int) -> bool:
    """True on every rank when two ranks of the job use the same GPU, which NCCL refuses. One round over the store."""
    import socket

    import torch

    if environment.world_size == 1:
        return False
    properties = torch.cuda.get_device_properties(index)
    gpu = getattr(properties, "uuid", None) or f"{os.environ.get('CUDA_VISIBLE_DEVICES')}/{index}"
    users = store.add(f"cloudtrain/gpu/{socket.gethostname()}/{gpu}", 1)
    shared = store.add("cloudtrain/gpus_shared", int(users > 1))
    if store.add("cloudtrain/gpus_counted", 1) == environment.world_size:
        shared = store.add("cloudtrain/gpus_shared", 0)
        store.set("cloudtrain/gpu_verdict", "shared" if shared else "own")
    return bool(store.get("cloudtrain/gpu_verdict") == b"shared")
