"""Set up torch.distributed in the same way on every target: detect the environment, choose the
backend, and find the store through which the ranks meet."""

from __future__ import annotations

import os
import socket
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .environment import Environment, detect_environment, notice
from .errors import SetupError, name_ranks
from .loopback import hold_master_store
from .observing import record_flights, watch_memory
from .taking_part import take_part
from .uncaught import tell_setup_errors

if TYPE_CHECKING:
    import torch

# Choose the backend of the collectives: smddp, nccl, gloo or mpi. `auto` chooses the fastest one
# that works in this process.

AUTO = "auto"

NCCL = "cpu:gloo,cuda:nccl"
"""nccl for GPU tensors, and gloo for the small CPU tensors beside them."""

SMDDP_MODULE = "smdistributed.dataparallel.torch.torch_smddp"
"""The module that registers the backend `smddp` when it is imported. Only SageMaker's images have
it."""


def choose_backend(
    backend: str, *, gpus: int, folded: bool, alone: bool, sends: bool = False
) -> str:
    """Return the backend string for torch.distributed. `backend` is `auto` or the required backend;
    `gpus` are those that this process sees; `folded`: two processes share a GPU; `alone`: the job
    has one process; `sends`: the script sends tensors from process to process, which smddp does not
    support."""
    if backend != AUTO:
        problem = _problem(backend, gpus=gpus, folded=folded)
        if problem:
            raise SetupError(
                f"the backend `{backend}` cannot run here: {problem}",
                hint="use `auto`, which chooses a backend that can run",
            )
        return NCCL if backend == "nccl" else backend
    may_be_smddp = gpus and not (folded or alone or sends)
    if may_be_smddp and _smddp_problem() is None:
        return "smddp"
    return "gloo" if _problem("nccl", gpus=gpus, folded=folded) else NCCL


def _problem(backend: str, *, gpus: int, folded: bool) -> str | None:
    """Return the reason why `backend` cannot run in this process, which sees `gpus` GPUs; None if
    it can. `folded` means that two processes share a GPU."""
    import torch.distributed as dist

    if "nccl" in backend or backend == "smddp":
        if not gpus:
            return "this process sees no GPU"
        if folded:
            return "several processes share one GPU"
    if backend == "smddp":
        return _smddp_problem()
    for name in ("nccl", "mpi", "ucc"):
        is_available = getattr(dist, f"is_{name}_available", bool)
        if name in backend and not is_available():
            return f"this PyTorch is built without {name}"
    parts = {part.rpartition(":")[2] for part in backend.split(",")}
    unknown = sorted(parts - {"gloo", "nccl", "mpi", "smddp", "ucc", "fake"})
    if not unknown:
        return None
    return f"`{unknown[0]}` is not a backend; there are `auto`, `smddp`, `nccl`, `gloo` and `mpi`"


def _smddp_problem() -> str | None:
    try:
        import_module(SMDDP_MODULE)
    except ModuleNotFoundError:
        return (
            "`smdistributed.dataparallel` is not installed; only SageMaker's images for "
            "PyTorch up to 2.5 have it"
        )
    # installed, but not for this instance type or driver
    except (ImportError, OSError, RuntimeError) as error:
        notice(f"smddp is installed but does not load: {error}")
        return f"its library does not load: {error}"
    return None


@dataclass(frozen=True)
class ProcessGroup:
    """Rank, number of processes and device of this process. `device` is its torch device."""

    environment: Environment
    backend: str
    device: torch.device

    @property
    def rank(self) -> int:
        """Return this process's rank, from 0 to `world_size - 1`."""
        return self.environment.rank

    @property
    def world_size(self) -> int:
        """Return the number of the job's processes, on all instances."""
        return self.environment.world_size

    @property
    def local_rank(self) -> int:
        """Return this process's rank among those of its instance."""
        return self.environment.local_rank

    @property
    def is_main(self) -> bool:
        """Return True for the one process that prints and writes files."""
        return self.environment.is_main


def init_process_group(
    backend: str = AUTO,
    *,
    timeout: float | None = None,
    patience: float | None = None,
    sends: bool = False,
) -> ProcessGroup:
    """Join the process group of this job. A single process gets a group of one, so a script needs
    no special case.

    `auto` chooses smddp if its library is installed, nccl if every process has a GPU of its own
    (with gloo for CPU tensors), else gloo. The process's GPU, if any, becomes torch's current
    device.

    Args:
        backend: `auto`, or the required backend.
        timeout: seconds after which an incomplete collective fails; default: `CLOUDTRAIN_TIMEOUT`,
            else 1800.
        patience: seconds to wait for all processes; default: `CLOUDTRAIN_PATIENCE`, else 300. The
            error names the missing processes, while a collective would only time out.
        sends: whether the script sends tensors from process to process, as pipelines do. smddp does
            not support that, so `auto` takes nccl.

    Raises:
        SetupError: the requested backend cannot run here, the address of rank 0 is unknown, or not
            all processes
        arrived.
    """
    import torch

    environment = detect_environment()
    tell_setup_errors()
    if timeout is None:
        timeout = seconds_from("CLOUDTRAIN_TIMEOUT", 1800)
    if patience is None:
        patience = seconds_from("CLOUDTRAIN_PATIENCE", 300)
    limit = timedelta(seconds=timeout)
    store = _fresh_store(environment, limit, patience)
    meet(store, environment, patience)
    take_part(timeout)

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    device = torch.device("cpu")
    folded = False
    if gpus:
        device = torch.device("cuda", environment.local_rank % gpus)
        folded = _gpu_is_shared(environment, store, device.index)
        record_flights()
    alone = environment.world_size == 1
    backend = choose_backend(backend, gpus=gpus, folded=folded, alone=alone, sends=sends)
    if gpus:
        torch.cuda.set_device(device)
        watch_memory()
    if folded:
        notice("several processes share one GPU, so they cannot be faster than one process")
    _torch_distributed().init_process_group(
        backend,
        store=store,
        rank=environment.rank,
        world_size=environment.world_size,
        timeout=limit,
    )
    # torch has just put a hook around the one that was there, which marks every line with a rank
    tell_setup_errors()
    return ProcessGroup(environment, backend, device)


def destroy_process_group() -> None:
    """Wait for all processes, then destroy the process group. Without a group, do nothing. A
    process that failed must not call it."""
    dist = _active_group()
    if dist is not None:
        _barrier_to_the_end()
        dist.destroy_process_group()


def any_rank(flag: bool) -> bool:
    """Return True on every rank if `flag` is true on any rank. Every rank must call it. Without a
    process group, return `flag`."""
    dist = _several_ranks()
    if dist is None:
        return flag
    import torch

    votes = torch.tensor([int(flag)])
    dist.all_reduce(votes, op=dist.ReduceOp.MAX, group=control_group())
    return bool(votes.item())


def from_main(value: Any) -> Any:
    """Return rank 0's `value` on every rank. Every rank must call it."""
    dist = _several_ranks()
    if dist is None:
        return value
    import torch

    box = [value]
    dist.broadcast_object_list(box, src=0, group=control_group(), device=torch.device("cpu"))
    return box[0]


def from_every(value: Any) -> list[Any]:
    """Return the values of all ranks, in rank order, on every rank. Every rank must call it."""
    dist = _several_ranks()
    if dist is None:
        return [value]
    return _gather(value, dist.get_world_size(), control_group())


def _gather(value: Any, count: int, group: Any) -> list[Any]:
    values: list[Any] = [None] * count
    _torch_distributed().all_gather_object(values, value, group=group)
    return values


def wait_for_all() -> None:
    """Wait until all ranks have called this function. Without a process group, do nothing."""
    any_rank(False)


def _barrier_to_the_end() -> None:
    """Run barriers until gloo's threads have released their tensors.

    A gloo thread releases its reference to a tensor some time after the collective has returned,
    and needs Python's interpreter lock to do so. If the interpreter exits before that, the process
    aborts with SIGABRT after the training was done: "terminate called without an active exception"
    (torch 2.13; `bench/leaving.py` counts how often; a single process has gloo's threads, too). The
    tensor's reference count shows whether a thread still refers to it. There are several rounds,
    because threads of earlier collectives may be late, too, and at last all threads must sleep.
    """
    import torch

    for _ in range(3):
        votes = torch.zeros(1)
        ours = sys.getrefcount(votes)
        _torch_distributed().all_reduce(votes, group=control_group())
        deadline = time.monotonic() + _LEAVING
        while sys.getrefcount(votes) > ours and time.monotonic() < deadline:
            time.sleep(0.001)
    deadline = time.monotonic() + _LEAVING
    while True:
        time.sleep(0.001)  # a thread that waits for the interpreter lock gets it now
        if not _gloo_runs() or time.monotonic() > deadline:
            return


def _gloo_runs() -> bool:
    """Return whether one of gloo's threads in this process runs, or waits for a processor. Only
    Linux shows it."""
    for path in Path("/proc/self/task").glob("*/stat"):
        with suppress(OSError):  # the thread has just ended
            if f"({_GLOO_THREAD}) R " in path.read_text(errors="replace"):
                return True
    return False


_LEAVING = 1.0
"""Seconds to wait for gloo's threads in each round."""

_GLOO_THREAD = "pt_gloo_runloop"
"""The name that torch gives to gloo's threads."""


@cache
def _gloo_beside(_main: int) -> Any:
    """Return the group for CPU tensors beside the group with this id, which handles only GPUs."""
    return _torch_distributed().new_group(backend="gloo")


def control_group() -> Any:
    """Return the group for small CPU tensors: None for the process group itself, or an additional
    gloo group if the process group handles only GPU tensors. CPU tensors are used because a
    collective on the GPU would wait for all work in its queue."""
    dist = _torch_distributed()
    if str(dist.get_backend()) not in ("nccl", "cuda:nccl", "smddp"):
        return None
    return _gloo_beside(id(dist.group.WORLD))


@dataclass(frozen=True)
class InstanceProcesses:
    """A group of this instance's processes for exchanging bytes in host memory. The methods
    identify a process by its index in `ranks`."""

    ranks: tuple[int, ...]
    local_rank: int
    group: Any

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all processes, in the order of `ranks`. Every process of the
        instance must call it."""
        if len(self.ranks) == 1:
            return [value]
        return _gather(value, len(self.ranks), self.group)

    def send(self, data: bytearray, users: list[int]) -> None:
        """Send `data` to each process in `users`. These processes must call `receive`."""
        sending = []
        for user in users:
            tensor = _as_tensor(data)
            work = _torch_distributed().isend(tensor, self.ranks[user], group=self.group)
            sending.append(work)
        for work in sending:
            work.wait()

    def receive(self, data: bytearray, sender: int) -> None:
        """Receive bytes from `sender` into `data`, which must have the right length."""
        _torch_distributed().recv(_as_tensor(data), self.ranks[sender], group=self.group)


def _as_tensor(data: bytearray) -> Any:
    import torch

    return torch.frombuffer(data, dtype=torch.uint8)


def instance_group() -> InstanceProcesses:
    """Return the processes of this instance as a group. Every rank must call it."""
    dist = _several_ranks()
    if dist is None:
        return InstanceProcesses((0,), 0, None)
    return _instance_group(id(dist.group.WORLD))


@cache
def _instance_group(_main: int) -> InstanceProcesses:
    """Return the instance's group in the process group with this id. A second one would meet in the
    store under the keys of the first."""
    dist = _torch_distributed()
    own = dist.get_rank()
    nodes = from_every(detect_environment().node_rank)
    ranks = tuple(rank for rank, node in enumerate(nodes) if node == nodes[own])
    group = control_group()
    if 1 < len(ranks) < len(nodes):
        group = dist.new_group(list(ranks), backend="gloo", use_local_synchronization=True)
    return InstanceProcesses(ranks, ranks.index(own), group)


def _torch_distributed() -> Any:
    """Return the module torch.distributed, typed as Any because its type hints lack public names
    such as `rendezvous`."""
    import torch.distributed

    return torch.distributed


def _active_group() -> Any:
    """Return the module torch.distributed if a process group exists, else None. torch is not
    imported for this, because a script that has not imported torch has no process group."""
    if "torch" not in sys.modules:
        return None
    dist = _torch_distributed()
    return dist if dist.is_available() and dist.is_initialized() else None


def _several_ranks() -> Any:
    """Return the module torch.distributed if a process group of several ranks exists, else
    None."""
    dist = _active_group()
    if dist is None or dist.get_world_size() == 1:
        return None
    return dist


def _fresh_store(environment: Environment, timeout: timedelta, patience: float) -> Any:
    """Return the store through which ranks meet, without keys of an earlier attempt.

    torchrun restarts ranks into the store of the first attempt (pytorch issue 135712), where gloo
    would read the addresses of dead processes. On one node, the keys get the restart count as
    prefix. On several nodes, this count differs between agents; there
    `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1` makes torchrun use a new store.
    """
    dist = _torch_distributed()
    if environment.world_size == 1:
        return dist.HashStore()
    if environment.master_addr is None:
        raise SetupError(
            f"the address of rank 0 is unknown, and the job has {environment.world_size} processes "
            f"on {environment.node_count} instances",
            hint=(
                "set `MASTER_ADDR` to the first host and `MASTER_PORT` to a free port there, on "
                "every process"
            ),
        )
    os.environ.setdefault("MASTER_ADDR", environment.master_addr)
    os.environ.setdefault("MASTER_PORT", str(environment.master_port))
    master_store = hold_master_store({**os.environ, "RANK": str(environment.rank)})
    store = find_store(environment, patience)
    del master_store  # the store that was met keeps its server
    store.set_timeout(timeout)
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT")
    if attempt is not None and environment.node_count == 1:
        return dist.PrefixStore(f"attempt_{attempt}", store)
    return store


def _gpu_is_shared(environment: Environment, store: Any, index: int) -> bool:
    """Return True on every rank if any two ranks of the job use the same GPU, which NCCL refuses.
    `index` is the number of this rank's GPU. The ranks exchange the result through `store`."""
    import torch

    if environment.world_size == 1:
        return False
    number = f"{os.environ.get('CUDA_VISIBLE_DEVICES')}/{index}"
    gpu = getattr(torch.cuda.get_device_properties(index), "uuid", None) or number
    users = store.add(f"cloudtrain/gpu/{socket.gethostname()}/{gpu}", 1)
    shared = store.add("cloudtrain/gpus_shared", int(users > 1))
    if store.add("cloudtrain/gpus_counted", 1) == environment.world_size:
        shared = store.add("cloudtrain/gpus_shared", 0)
        store.set("cloudtrain/gpu_verdict", "shared" if shared else "own")
    return bool(store.get("cloudtrain/gpu_verdict") == b"shared")


# Wait for all processes of a job before the first collective, and name those that are missing.
#
# If a process never starts, a collective times out after minutes without naming that process. Here
# every process first registers in the store, so the others can name the missing processes.


def seconds_from(variable: str, default: float) -> float:
    """Return the number of seconds in an environment variable, or `default` if it is not set."""
    text = os.environ.get(variable) or str(default)
    number = -1.0
    with suppress(ValueError):
        number = float(text)
    if number <= 0:
        raise SetupError(f"`{variable}` is `{text}`, which is not a number of seconds")
    return number


def find_store(environment: Environment, patience: float) -> Any:
    """Return the store at `MASTER_ADDR` and `MASTER_PORT`. The store's server is torchrun's agent,
    or without torchrun, rank 0."""
    dist = _torch_distributed()
    rank = environment.rank
    limit = timedelta(seconds=patience)
    try:
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            return next(dist.rendezvous("env://", rank, environment.world_size, timeout=limit))[0]
        return dist.TCPStore(
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            environment.world_size,
            rank == 0,
            limit,
            wait_for_workers=False,
            multi_tenant=True,
        )
    # torch's DistStoreError and its kin are RuntimeErrors
    except (RuntimeError, ValueError) as error:
        address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        reason = "".join(str(error).strip().splitlines()[:1])
        message = f"rank {rank} cannot reach rank 0 at `{address}` within {patience:g} s: {reason}"
        raise SetupError(
            message,
            hint=(
                "read the log of rank 0; check its address, and that its port is open between the "
                "instances"
            ),
        ) from None


def meet(store: Any, environment: Environment, patience: float) -> None:
    """Wait until all processes of the job have registered in the store, for at most `patience`
    seconds."""
    if environment.world_size == 1:
        return
    store.set(_key(environment.rank), socket.gethostname())
    keys = [_key(rank) for rank in range(environment.world_size)]
    deadline = time.monotonic() + patience
    while not store.check(keys):
        if time.monotonic() > deadline:
            _raise_missing(store, environment, patience)
        time.sleep(0.02)


def _raise_missing(store: Any, environment: Environment, patience: float) -> None:
    ranks = range(environment.world_size)
    missing = [rank for rank in ranks if not store.check([_key(rank)])]
    if not missing:
        return
    came = sorted(set(ranks).difference(missing))
    hosts = sorted({store.get(_key(rank)).decode() for rank in came[:64]})
    arrived = f"{len(came)} of {environment.world_size} processes have arrived"
    problem = f"{name_ranks(missing)} did not arrive within {patience:g} s"
    hint = (
        "read the logs of the missing ranks, which may have failed while starting; to wait "
        "longer, set `CLOUDTRAIN_PATIENCE` to a number of seconds"
    )
    raise SetupError(f"{problem}; {arrived}, on {', '.join(hosts[:8])}", hint=hint)


def _key(rank: int) -> str:
    return f"cloudtrain/here/{rank}"
