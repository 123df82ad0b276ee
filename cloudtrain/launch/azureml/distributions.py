"""Which processes each distribution starts, with the variables that tell them apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cloudtrain.launch.azureml.body import Body
from cloudtrain.launch.azureml.site import Site
from cloudtrain.launch.azureml.tf_config import tasks, tf_config

MASTER_PORT = 6105
"""Of PyTorch's rank 0, as the guide for version 1 of the SDK has it."""

BATCH_PORT = 6000
"""Behind the master's address in AZ_BATCH_MASTER_NODE; it belongs to Batch."""

INTERFACE = "eth0"
"""In a published environment of an Mpi job; DeepSpeed stops where NCCL_SOCKET_IFNAME is not set."""


@dataclass(frozen=True)
class Started:
    """One process. `defaults` are variables that the job's own replace."""

    instance: int
    role: str
    rank: int
    local_rank: int
    env: dict[str, str]
    defaults: dict[str, str]


def started(body: Body, site: Site) -> Iterator[Started]:
    """Every process. Nothing for a distribution that nobody has described, as Ray's is here."""
    start = _STARTS.get(body.kind)
    return start(body, site) if start else iter(())


def _pytorch(body: Body, site: Site) -> Iterator[Started]:
    """The service starts the processes itself, without torchrun, whose other variables are not there."""
    address, port = site.listen(0, MASTER_PORT)
    for instance, local, rank, world in _ranks(body, site):
        env = {
            "LOCAL_RANK": str(local),
            "MASTER_ADDR": address,
            "MASTER_PORT": port,
            "NODE_RANK": str(instance),
            "RANK": str(rank),
            "WORLD_SIZE": str(world),
        }
        yield Started(instance, "rank", rank, local, env | _process_name(rank), {})


def _mpi(body: Body, site: Site) -> Iterator[Started]:
    """An mpirun of the service starts the processes; neither MASTER_ADDR nor RANK and WORLD_SIZE are there."""
    master = {"AZ_BATCHAI_MPI_MASTER_NODE": "localhost"}
    if site.is_multi:
        master = {
            "AZ_BATCHAI_MPI_MASTER_NODE": site.hosts[0],
            "AZ_BATCH_MASTER_NODE": ":".join(site.listen(0, BATCH_PORT)),
        }
    for instance, local, rank, world in _ranks(body, site):
        env = {
            **master,
            "OMPI_COMM_WORLD_LOCAL_RANK": str(local),
            "OMPI_COMM_WORLD_LOCAL_SIZE": str(body.processes_per_instance),
            "OMPI_COMM_WORLD_RANK": str(rank),
            "OMPI_COMM_WORLD_SIZE": str(world),
            "OMPI_UNIVERSE_SIZE": str(world),
        }
        yield Started(instance, "rank", rank, local, env | _process_name(rank), {"NCCL_SOCKET_IFNAME": INTERFACE})


def _tensorflow(body: Body, site: Site) -> Iterator[Started]:
    """Workers first in rank, parameter servers behind them. What the service names the processes is not known."""
    every = tasks(body)
    workers = sum(task.kind == "worker" for task in every)
    on_instance = [0] * body.instances
    for task in every:
        rank = task.index + (workers if task.kind == "ps" else 0)
        local, on_instance[task.instance] = on_instance[task.instance], on_instance[task.instance] + 1
        yield Started(task.instance, task.kind, rank, local, {"TF_CONFIG": tf_config(every, task, site)}, {})


def _none(body: Body, site: Site) -> Iterator[Started]:  # noqa: ARG001 - the table's
    """One process, on the first instance. Nobody has described what several instances without a distribution do."""
    yield Started(0, "process", 0, 0, {"AZUREML_PROCESS_NAME": "main"}, {})


_STARTS: dict[str, Callable[[Body, Site], Iterator[Started]]] = {
    "PyTorch": _pytorch,
    "Mpi": _mpi,
    "TensorFlow": _tensorflow,
    "": _none,
}


def _ranks(body: Body, site: Site) -> Iterator[tuple[int, int, int, int]]:
    """Instance, local rank, rank, and how many there are: one instance is filled after the other."""
    count = body.processes_per_instance
    for rank in range(len(site.hosts) * count):
        yield rank // count, rank % count, rank, len(site.hosts) * count


def _process_name(rank: int) -> dict[str, str]:
    """Microsoft's own components take `main` or `rank_0` for the one process that writes, so the rank is the job's."""
    return {"AZUREML_PROCESS_NAME": f"rank_{rank}"}
