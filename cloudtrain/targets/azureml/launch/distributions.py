"""The processes that each distribution starts, with the variables that distinguish them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from cloudtrain.targets.azureml.launch.body import Body
from cloudtrain.targets.azureml.launch.layout import JobLayout
from cloudtrain.targets.azureml.launch.tf_config import cluster_text, tasks, tf_config

MASTER_PORT = 6105
"""The port of PyTorch's rank 0, as in the guide for version 1 of the SDK."""

BATCH_PORT = 6000
"""The port behind the master's address in AZ_BATCH_MASTER_NODE; it belongs to Batch."""

INTERFACE = "eth0"
"""The interface in a published environment of an Mpi job; without NCCL_SOCKET_IFNAME, DeepSpeed stops."""


class Rank(NamedTuple):
    """One process. `defaults` are variables that the job's own variables override. `env` are variables that override
    both."""

    instance: int
    rank: int
    local_rank: int
    env: dict[str, str]
    defaults: dict[str, str]


class Group(NamedTuple):
    """The processes of one role. `spread` lists the instances, each with its number of processes of this role.
    `make(n)` returns process `n`, counted from 0.
    """

    role: str
    spread: tuple[tuple[int, int], ...]
    make: Callable[[int], Rank]


def process_groups(body: Body, layout: JobLayout) -> Iterator[Group]:
    """Yield the processes by role; none for Ray, whose processes Azure does not document."""
    start = _STARTS.get(body.kind)
    return start(body, layout) if start else iter(())


def _pytorch(body: Body, layout: JobLayout) -> Iterator[Group]:
    """Yield PyTorch's processes.

    The service starts the processes itself, without torchrun, so variables that only torchrun sets are missing.
    """
    address, port = layout.listen(0, MASTER_PORT)
    count = body.processes_per_instance

    def process(rank: int) -> Rank:
        instance, local = divmod(rank, count)
        env = {
            "LOCAL_RANK": str(local),
            "MASTER_ADDR": address,
            "MASTER_PORT": port,
            "NODE_RANK": str(instance),
            "RANK": str(rank),
            "WORLD_SIZE": str(len(layout.hosts) * count),
        }
        return Rank(instance, rank, local, env | _process_name(rank), {})

    yield Group("rank", _on_each(layout, count), process)


def _mpi(body: Body, layout: JobLayout) -> Iterator[Group]:
    """Yield the processes that the service's mpirun starts. MASTER_ADDR, RANK and WORLD_SIZE are not set for them."""
    count = body.processes_per_instance
    world = len(layout.hosts) * count
    master = {"AZ_BATCHAI_MPI_MASTER_NODE": "localhost"}
    if layout.is_multi:
        master = {
            "AZ_BATCHAI_MPI_MASTER_NODE": layout.hosts[0],
            "AZ_BATCH_MASTER_NODE": ":".join(layout.listen(0, BATCH_PORT)),
        }

    def process(rank: int) -> Rank:
        instance, local = divmod(rank, count)
        env = {
            **master,
            "OMPI_COMM_WORLD_LOCAL_RANK": str(local),
            "OMPI_COMM_WORLD_LOCAL_SIZE": str(count),
            "OMPI_COMM_WORLD_RANK": str(rank),
            "OMPI_COMM_WORLD_SIZE": str(world),
            "OMPI_UNIVERSE_SIZE": str(world),
        }
        return Rank(instance, rank, local, env | _process_name(rank), {"NCCL_SOCKET_IFNAME": INTERFACE})

    yield Group("rank", _on_each(layout, count), process)


def _tensorflow(body: Body, layout: JobLayout) -> Iterator[Group]:
    """Yield TensorFlow's processes: parameter servers, then workers. Their AZUREML_PROCESS_NAME is unknown."""
    every = tasks(body)
    workers, cluster = sum(task.kind == "worker" for task in every), cluster_text(every, layout)
    on_instance, local_ranks = [0] * body.instances, []
    for task in every:
        local_ranks.append(on_instance[task.instance])
        on_instance[task.instance] += 1

    def group(kind: str, first: int, count: int) -> Group:
        def process(number: int) -> Rank:
            task = every[first + number]
            rank = task.index + (workers if kind == "ps" else 0)
            return Rank(task.instance, rank, local_ranks[first + number], {"TF_CONFIG": tf_config(cluster, task)}, {})

        return Group(kind, tuple((task.instance, 1) for task in every[first : first + count]), process)

    yield group("ps", 0, len(every) - workers)
    yield group("worker", len(every) - workers, workers)


def _none(body: Body, layout: JobLayout) -> Iterator[Group]:  # noqa: ARG001 - the table's
    """Yield one process, on the first instance.

    Azure does not document what several instances do without a distribution.
    """
    yield Group("process", ((0, 1),), lambda _: Rank(0, 0, 0, {"AZUREML_PROCESS_NAME": "main"}, {}))


_STARTS: dict[str, Callable[[Body, JobLayout], Iterator[Group]]] = {
    "PyTorch": _pytorch,
    "Mpi": _mpi,
    "TensorFlow": _tensorflow,
    "": _none,
}


def _on_each(layout: JobLayout, count: int) -> tuple[tuple[int, int], ...]:
    """Return pairs of instance and number of ranks, in the order of the instances."""
    return tuple((instance, count) for instance in range(len(layout.hosts)))


def _process_name(rank: int) -> dict[str, str]:
    """Return the variable with the process's name.

    `rank` is the rank in the whole job, so that only one process is named `rank_0`: in Microsoft's own components, only
    the process `main` or `rank_0` writes files.
    """
    return {"AZUREML_PROCESS_NAME": f"rank_{rank}"}
