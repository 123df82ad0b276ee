"""Rank, world size and master of this process, from the variables of the launcher that started it.

Launchers differ only in the names of their variables, so each launcher is a row of a table. The
first row whose variables are set wins. The order is torchrun (also on SageMaker), Azure ML's
PyTorch distribution, Open MPI (Azure ML's and SageMaker's MPI), SLURM, then `TF_CONFIG`. Without
any of them the job is a single process. `MASTER_ADDR` and `MASTER_PORT` do not identify a launcher,
because SageMaker's PyTorch toolkit sets them for a single process as well.
"""

from __future__ import annotations

import json
import os
import re
import sys
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .errors import SetupError
from .tf_config import read_tf_config

# The instances of a SageMaker job, from its `SM_*` variables.
#
# `SM_HOSTS` lists the instances by name, `algo-10` before `algo-2`; ranks follow this order. With
# instance groups, the job's processes run in the groups of `SM_DISTRIBUTION_INSTANCE_GROUPS`. The
# first host of the first of these groups is the master, even if other hosts precede it in
# `SM_HOSTS`. If the container sets `SM_MASTER_ADDR` and `SM_MASTER_PORT`, as with SageMaker's SDK
# v3, these are used instead.

Variables = Mapping[str, str]
Names = tuple[str, ...]
"""Variables that may hold the same; the first one that is set counts."""

TOOLKIT_PORT = 7777


def first_host(variables: Variables) -> str | None:
    """Return the host of rank 0; None outside SageMaker."""
    hosts = [variables.get("SM_MASTER_ADDR")]
    groups = _json(variables, "SM_INSTANCE_GROUPS_DICT", {})
    for name in _json(variables, "SM_DISTRIBUTION_INSTANCE_GROUPS", []):
        hosts += groups.get(name, {}).get("hosts") or ()
    hosts += _json(variables, "SM_HOSTS", [])
    return next(filter(None, hosts), None)


def sagemaker_place(variables: Variables) -> tuple[int, int]:
    """Return this instance's number (from 0) and the number of instances; (0, 1) outside
    SageMaker."""
    hosts = _json(variables, "SM_HOSTS", [])
    own = variables.get("SM_CURRENT_HOST")
    if own not in hosts:
        return 0, 1
    return hosts.index(own), len(hosts)


def _json(variables: Variables, name: str, default: Any) -> Any:
    """Return the value of a JSON variable if it has the same type as `default`, else `default`."""
    try:
        value = json.loads(variables.get(name) or "null")
    except ValueError:
        return default
    return value if isinstance(value, type(default)) else default


# Parse SLURM's variables, in which tasks per node look like `2(x3),1` and node names like
# `gpu[01-03,7],login`.

_TASKS = re.compile(r"(\d+)(?:\(x(\d+)\))?")
_FIRST_NODE = re.compile(r"([^\[,]+)(?:\[(\w+)[^\]]*\]([^,]*))?")


def is_started_by_srun(variables: Variables) -> bool:
    """Return whether `srun` started this process. A batch script has the variables of a task, too,
    but only `srun` sets the variable of a step."""
    return "SLURM_STEP_ID" in variables or "SLURM_JOB_ID" not in variables


def tasks_on_this_node(variables: Variables) -> int | None:
    """Return the number of this step's tasks on this node, from a list such as `2(x3),1` and the
    node's number; None without a valid list."""
    text = variables.get("SLURM_STEP_TASKS_PER_NODE") or variables.get("SLURM_TASKS_PER_NODE") or ""
    counts: list[int] = []
    for part in text.split(","):
        match = _TASKS.fullmatch(part.strip())
        if match is None:
            return None
        tasks, nodes = match.groups("1")
        counts += [int(tasks)] * int(nodes)
    node = variables.get("SLURM_NODEID", "0")
    if not node.isdecimal() or int(node) >= len(counts):
        return None
    return counts[int(node)]


def first_node(variables: Variables) -> str | None:
    """Return the host of rank 0, which is the first in the node list: `gpu01` for `gpu[01-03,7]`.
    Return None without a list."""
    text = variables.get("SLURM_STEP_NODELIST") or variables.get("SLURM_JOB_NODELIST") or ""
    match = _FIRST_NODE.match(text)
    return match and "".join(match.groups(""))


def _slurm_port(variables: Variables) -> int:
    """Return a port that is the same for all tasks of a job, and most likely different for other
    jobs on the node."""
    job = decimal_in(variables, "SLURM_JOB_ID", 0)
    step = decimal_in(variables, "SLURM_STEP_ID", 0)
    return 20000 + (job * 7 + step) % 10000


# Find the address of rank 0. Only torchrun and Azure ML's PyTorch distribution provide it; under
# other launchers it is derived.
#
# Azure ML under MPI sets neither `MASTER_ADDR` nor `RANK`; it names the master in
# `AZ_BATCH_MASTER_NODE` (several nodes; for example `10.0.0.4:6000`, where the port is Azure
# Batch's) or in `AZ_BATCHAI_MPI_MASTER_NODE` (one node; `localhost`). Azure ML's documentation uses
# the port 6105. SageMaker lists its hosts; its toolkit's port is 7777.


def find_master(variables: Variables, *, one_node: bool) -> tuple[str | None, int]:
    """Return address and port of rank 0. If no launcher's variable has the address, it is
    `127.0.0.1` on one node, and None on several."""
    node = variables.get("AZ_BATCH_MASTER_NODE") or variables.get("AZ_BATCHAI_MPI_MASTER_NODE", "")
    # and the port to use where `MASTER_PORT` is not set
    known = (
        (variables.get("MASTER_ADDR"), 29500),
        (node.partition(":")[0], 6105),
        (first_host(variables), decimal_in(variables, "SM_MASTER_PORT", TOOLKIT_PORT)),
        (first_node(variables), _slurm_port(variables)),
        ("127.0.0.1" if one_node else None, _port_of_mpirun(variables)),
    )
    address, port = next((pair for pair in known if pair[0]), known[-1])
    return address, decimal_in(variables, "MASTER_PORT", port)


def decimal_in(variables: Variables, name: str, default: int) -> int:
    """Return the number in a variable; `default` if it is not set or holds something else."""
    text = variables.get(name, "")
    return int(text) if text.isdecimal() else default


def _port_of_mpirun(variables: Variables) -> int:
    """Return the default port of rank 0. It is the same for all processes of one `mpirun`, and most
    likely another one for another `mpirun`, so that two jobs can share a machine. Without mpirun,
    it is 29500."""
    name = variables.get("PMIX_NAMESPACE") or variables.get("OMPI_MCA_ess_base_jobid")
    if not name:
        return 29500
    return 20000 + zlib.crc32(name.encode()) % 10000


# The launchers' variables, and what they say about this process.


@dataclass(frozen=True)
class Environment:
    """A process's rank and its position in the job. Ranks count from 0.

    Attributes:
        launcher: the name of the launcher that started the process; `single` without a launcher.
        platform: `sagemaker`, `azureml` or `local`. Under emulation it is the emulated platform.
        rank: 0 to `world_size - 1`. TensorFlow's parameter servers and evaluators have higher ranks
            than the workers.
        world_size: number of training processes on all instances.
        local_rank: rank among the processes of this instance; chooses the GPU.
        local_world_size: number of training processes on this instance.
        node_rank: number of this instance, from 0. It distinguishes the shards of a processing job,
            and the copies of a job that SageMaker runs on several instances without a distribution:
            each of them is rank 0 of 1.
        node_count: number of instances.
        master_addr: address of rank 0; None if it is unknown.
        master_port: port on which rank 0 listens.
        role: `worker`, or one of TensorFlow's `chief`, `ps` and `evaluator`.
    """

    launcher: str = "single"
    platform: str = "local"
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    node_rank: int = 0
    node_count: int = 1
    master_addr: str | None = None
    master_port: int | None = None
    role: str = "worker"

    @property
    def is_main(self) -> bool:
        """Return True for the one process that prints and writes files."""
        return self.rank == 0


@dataclass(frozen=True)
class Launcher:
    """One row of the table of launchers. For each number, such as `world_size`, it names the
    variables that may hold the number; the first one that is set wins. Numbers without a variable
    are derived.

    `tasks_on_node` computes the local world size where no variable holds it as a plain number.
    `is_task` distinguishes a process of the launcher from one that merely inherited its variables.
    """

    name: str
    rank: str
    world_size: Names
    local_rank: Names
    local_world_size: Names = ()
    node_rank: Names = ()
    node_count: Names = ()
    tasks_on_node: Callable[[Variables], int | None] = lambda _: None
    is_task: Callable[[Variables], bool] = lambda _: True

    def has_started(self, variables: Variables) -> bool:
        """Return whether this launcher started the process that has these environment variables."""
        has_size = not variables.keys().isdisjoint(self.world_size)
        return has_size and self.rank in variables and self.is_task(variables)


def _is_torchrun(variables: Variables) -> bool:
    # accelerate sets LOCAL_WORLD_SIZE to 1 on CPUs, also where Azure ML has started several
    # processes
    if "LOCAL_WORLD_SIZE" not in variables:
        return False
    return "GROUP_RANK" in variables or "AZUREML_NODE_COUNT" not in variables


LAUNCHERS = (
    Launcher(
        "torchrun",
        rank="RANK",
        world_size=("WORLD_SIZE",),
        local_rank=("LOCAL_RANK",),
        local_world_size=("LOCAL_WORLD_SIZE",),
        node_rank=("GROUP_RANK",),
        node_count=("GROUP_WORLD_SIZE",),
        is_task=_is_torchrun,
    ),
    # Azure ML's PyTorch flavour starts the processes itself; so does anyone who sets RANK by hand
    Launcher(
        "pytorch",
        rank="RANK",
        world_size=("WORLD_SIZE",),
        local_rank=("LOCAL_RANK",),
        node_rank=("NODE_RANK",),
        node_count=("AZUREML_NODE_COUNT",),
    ),
    # OMPI_COMM_WORLD_NODE_RANK is the rank within the node, so the node's own rank is derived
    Launcher(
        "openmpi",
        rank="OMPI_COMM_WORLD_RANK",
        world_size=("OMPI_COMM_WORLD_SIZE",),
        local_rank=("OMPI_COMM_WORLD_LOCAL_RANK",),
        local_world_size=("OMPI_COMM_WORLD_LOCAL_SIZE",),
    ),
    Launcher(
        "slurm",
        rank="SLURM_PROCID",
        world_size=("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
        local_rank=("SLURM_LOCALID",),
        node_rank=("SLURM_NODEID",),
        node_count=("SLURM_STEP_NUM_NODES", "SLURM_NNODES"),
        tasks_on_node=tasks_on_this_node,
        is_task=is_started_by_srun,
    ),
)

PLATFORMS = (
    ("sagemaker", ("SM_HOSTS", "SM_CURRENT_HOST", "SM_MODEL_DIR")),
    ("azureml", ("AZUREML_RUN_ID", "AZUREML_EXPERIMENT_ID", "AZUREML_NODE_COUNT")),
)
"""Variables that identify a platform."""


def detect_environment(variables: Variables | None = None) -> Environment:
    """Return the environment of this process, from `os.environ` or the given variables.

    Raises:
        SetupError: a variable is not a whole number, or the numbers contradict each other.
    """
    if variables is None:
        variables = os.environ
    platform = _platform_of(variables)
    for launcher in LAUNCHERS:
        if launcher.has_started(variables):
            return _of_launcher(launcher, variables, platform)
    return _of_tensorflow(variables, platform) or _of_instance(variables, platform)


def _platform_of(variables: Variables) -> str:
    for name, marks in PLATFORMS:
        if not variables.keys().isdisjoint(marks):
            return name
    return "local"


def _of_launcher(launcher: Launcher, variables: Variables, platform: str) -> Environment:
    rank = _number(variables, (launcher.rank,), 0)
    world_size = _number(variables, launcher.world_size, 1)
    local_rank = _number(variables, launcher.local_rank, 0)
    local_world_size = _local_world_size(launcher, variables, rank, world_size, local_rank)
    is_rank = 0 <= rank < world_size
    if not is_rank or not 0 <= local_rank < local_world_size <= world_size:
        raise SetupError(
            f"the variables of {launcher.name} contradict each other: rank {rank} of {world_size}, "
            f"local rank {local_rank} of {local_world_size}",
            hint=(
                f"unset `{launcher.rank}` to run a single process, or start the script with "
                "`torchrun`"
            ),
        )
    node_count = _number(variables, launcher.node_count, -(-world_size // local_world_size))
    address, port = find_master(variables, one_node=node_count == 1)
    return Environment(
        launcher=launcher.name,
        platform=platform,
        rank=rank,
        world_size=world_size,
        local_rank=local_rank,
        local_world_size=local_world_size,
        node_rank=_number(variables, launcher.node_rank, rank // local_world_size),
        node_count=node_count,
        master_addr=address,
        master_port=port,
    )


def _local_world_size(
    launcher: Launcher, variables: Variables, rank: int, world_size: int, local_rank: int
) -> int:
    """Return the local world size: the value of the launcher's variable, or if it is not set, a
    value derived from the other numbers."""
    size = _number(variables, launcher.local_world_size, 0) or launcher.tasks_on_node(variables)
    if size:
        return size
    nodes = _number(variables, launcher.node_count, 0)
    if nodes and world_size % nodes == 0:
        return world_size // nodes
    node_rank = _number(variables, launcher.node_rank, 0)
    if node_rank > 0:  # the ranks below this instance's first one fill the instances before it
        return max(1, (rank - local_rank) // node_rank)
    return 1 if variables.keys().isdisjoint(launcher.local_rank) else world_size


def _of_instance(variables: Variables, platform: str) -> Environment:
    """Return the environment of a process that no launcher started: rank 0 of 1. A processing job,
    or a SageMaker job without a distribution, may run such a process on several instances; only
    `node_rank` differs between them."""
    number, count = sagemaker_place(variables)
    return Environment(
        platform=platform,
        node_rank=_number(variables, ("CLOUDTRAIN_INSTANCE",), number),
        node_count=_number(variables, ("CLOUDTRAIN_INSTANCE_COUNT",), count),
    )


def _of_tensorflow(variables: Variables, platform: str) -> Environment | None:
    """Return the environment of a TensorFlow task; None if `TF_CONFIG` names no cluster. The chief
    has the first rank, then come the workers, then the other roles, which the world size does not
    count."""
    config = read_tf_config(variables)
    if config is None or not config["cluster"]:
        return None
    role = str(config["task"].get("type", "worker"))
    index = config["task"].get("index", 0)
    hosts: dict[tuple[str, int], str] = {}  # of the tasks, in the order of ranks
    for kind in ("chief", "worker", "ps", "evaluator"):
        for number, address in enumerate(config["cluster"].get(kind, ())):
            hosts[kind, number] = address.rpartition(":")[0]
    own = (role, index)
    if own not in hosts:
        if role != "evaluator":  # TensorFlow keeps the evaluator out of the cluster
            raise SetupError(f"`TF_CONFIG` has no `{role}` {index} in its cluster")
        hosts[own] = ""
    names = list(dict.fromkeys(hosts.values()))
    trainers = [task for task in hosts if task[0] in ("chief", "worker")]
    neighbours = [task for task in trainers if hosts[task] == hosts[own]]
    return Environment(
        launcher="tensorflow",
        platform=platform,
        rank=list(hosts).index(own),
        world_size=len(trainers),
        local_rank=neighbours.index(own) if own in neighbours else 0,
        local_world_size=max(1, len(neighbours)),
        node_rank=names.index(hosts[own]),
        node_count=len(list(filter(None, names))),
        master_addr=hosts[trainers[0]] if trainers else None,
        role=role,
    )


def _number(variables: Variables, names: Names, default: int) -> int:
    for name in names:
        if name in variables:
            try:
                return int(variables[name])
            except ValueError:
                raise SetupError(
                    f"`{name}` is `{variables[name]}`, which is not a whole number"
                ) from None
    return default


def own_host() -> str:
    """Return the name of this machine. Slurm may run several nodes on one."""
    return os.environ.get("SLURMD_NODENAME") or os.uname().nodename


# Messages from the runtime to the user. They go to stderr, one line each, so stdout holds only the
# script's own output and metrics.


def notice(text: str, *, every_rank: bool = False) -> None:
    """Print `cloudtrain: text` on stderr, on rank 0 or on every rank."""
    rank = detect_environment().rank
    if rank == 0 or every_rank:
        who = f"cloudtrain: rank {rank}:" if every_rank else "cloudtrain:"
        sys.stderr.write(f"{who} {text}\n")
        sys.stderr.flush()
