"""Derive the argv and environment of every process on the instances from the body of an Azure ML
job.

None of this was recorded on Azure. The sources are Microsoft's documentation ("Distributed GPU
training guide", and the TensorFlow guides), code that reads the service's variables (DeepSpeed's
`comm.py`, hi-ml, Microsoft's own examples), and environments that users have published. A variable
that these sources do not mention is left out, or the docstring of its function says that it is
inferred.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from shlex import quote

from cloudtrain.documents import JsonMapping
from cloudtrain.job.data import find_references
from cloudtrain.plans.processes import Alike, Process, Processes
from cloudtrain.rules.engine import text_at
from cloudtrain.targets.azureml.parts import without
from cloudtrain.targets.azureml.reading import Body

# The paths of inputs and outputs on an instance, and the command line with these paths filled in.
#
# The folder names follow published logs: the folder of the input `train` is `INPUT_train`, and that
# of the output `model` is `model`. A few paths in these logs suggest that a single input file keeps
# its name in the folder.

_FILE_NAME = r"/paths/(?:.*/)?([^/]+)$|^(?!azureml:)\w+://.*/([^/?]+)(?:\?.*)?$"
"""The last part of a datastore path or of an address; data assets do not have it."""


def local_paths(body: Body, data: str) -> dict[str, str]:
    """Map `inputs.NAME` and `outputs.NAME` to the texts that replace them in the command: a path in
    the folder `data`; for a literal input, its value."""
    paths = {}
    for name, item in body.inputs.items():
        paths[f"inputs.{name}"] = _input_text(name, item, data)
    for name in body.outputs:
        paths[f"outputs.{name}"] = f"{data}/{name}"
    return paths


def service_paths(body: Body, data: str) -> dict[str, str]:
    """Return the texts of `local_paths`; with the mode `Direct`, the data's address."""
    paths = local_paths(body, data)
    for kind, items in (("inputs", body.inputs), ("outputs", body.outputs)):
        for name, item in items.items():
            if item.get("mode") == "Direct" and item.get("uri"):
                paths[f"{kind}.{name}"] = str(item["uri"])
    return paths


def is_literal(item: JsonMapping) -> bool:
    return item.get("jobInputType") == "literal"


def _input_text(name: str, item: JsonMapping, data: str) -> str:
    """The path of a folder is `INPUT_NAME`, and that of a single file `INPUT_NAME/FILE`."""
    if is_literal(item):
        return str(item.get("value", ""))
    folder = f"{data}/INPUT_{name}"
    match = re.search(_FILE_NAME, text_at(item, "uri"))
    if item.get("jobInputType") != "uri_file" or match is None:
        return folder
    return f"{folder}/{match[1] or match[2]}"


def fill_command(body: Body, paths: Mapping[str, str]) -> str:
    """Values of literal inputs are inserted unchanged, as the service does. Every other text in
    `paths` is escaped to fit the quotes around its reference, so that the script gets even a path
    with spaces as one argument."""
    literals = {f"inputs.{name}" for name, item in body.inputs.items() if is_literal(item)}
    command = body.command

    parts = []
    end = 0
    quote_before = ""
    for reference in find_references(command):
        value = paths.get(reference.inner)
        if value is None:
            continue
        between = command[end : reference.start]
        quote_before = open_quote(quote_before + between)
        if reference.inner not in literals:
            value = _quote_for(value, quote_before)
        parts += [between, value]
        end = reference.end
    return "".join([*parts, command[end:]])


def _quote_for(text: str, around: str) -> str:
    """Escape a text for the quotes `around` it; quote it if there are none."""
    if around == "'":
        return text.replace("'", "'\\''")
    if around == '"':
        return re.sub(r'([\\"$`])', r"\\\1", text)
    return quote(text)


_CLOSED = r"""(?s)\\.|'[^']*'|"(?:\\.|[^"\\])*\""""
"""Matches an escaped character, or a text with the quotes around it."""


def open_quote(text: str) -> str:
    """Return the quote that is open at the end of a shell text: `'`, `"` or nothing."""
    match = re.search("['\"]", re.sub(_CLOSED, "", text))
    return match[0] if match else ""


# The addresses of a job's instances and the paths of its data and code, on the service or in an
# emulation.

FIRST_ADDRESS = 4
"""The first address of a subnet that Azure assigns: 10.0.0.4. The real addresses are known when the
job runs."""

JOBS = "/mnt/azureml/cr/j"
"""The service's folder of jobs. The service names each job's folder by a number; the run's name
stands in for it."""


@dataclass(frozen=True)
class JobLayout:
    """The addresses of one job's instances, and the paths of its data and code.

    Attributes:
        hosts: the address of each instance, as it appears in lists of hosts.
        endpoint: maps an instance and a port to the address and port where other processes reach
            it.
        data: the folder that holds inputs and outputs.
        code: the working directory of each instance.
        paths: maps `inputs.NAME` and `outputs.NAME` to the text that the script gets.
        gpus: number of GPUs of each instance; None if unknown.
    """

    run_name: str
    workspace_id: str
    hosts: tuple[str, ...]
    endpoint: Callable[[int, int], tuple[str, str]]
    data: str
    code: tuple[str, ...]
    paths: dict[str, str]
    gpus: int | None = None

    @property
    def is_multi(self) -> bool:
        return len(self.hosts) > 1


def addresses(network: str, first: int, count: int) -> tuple[str, ...]:
    """Return consecutive addresses: `10.0.0.4`, `10.0.0.5`, ... for the network `10.0` and
    `first=4`."""
    numbers = range(first, first + count)
    return tuple(f"{network}.{number >> 8}.{number & 255}" for number in numbers)


def service_layout(body: Body, run_name: str, workspace_id: str, gpus: int | None) -> JobLayout:
    """The addresses and the job's folder are examples; Azure assigns the real ones when the job
    starts."""
    hosts = addresses("10.0", FIRST_ADDRESS, body.instances)
    folder = f"{JOBS}/{run_name}"
    data = f"{folder}/cap/data-capability/wd"
    return JobLayout(
        run_name=run_name,
        workspace_id=workspace_id,
        hosts=hosts,
        endpoint=lambda instance, port: (hosts[instance], str(port)),
        data=data,
        code=(f"{folder}/exe/wd",) * body.instances,
        paths=service_paths(body, data),
        gpus=gpus,
    )


# The variable TF_CONFIG of Azure ML's TensorFlow distribution.
#
# The documentation shows two clusters of TensorFlow processes, in which every process uses port
# 2222. The first cluster has only workers (`host0:2222`, `host1:2222`, without a key `ps`). The
# second has parameter servers on the first hosts and workers on the next hosts.
#
# If a job has more processes than hosts, some processes share a host. cloudtrain assumes that Azure
# ML then assigns ports as its predecessor Batch AI did: 2222 to the server and 2223 to the worker
# on the same host (recorded with three instances, one server and three workers).

FIRST_PORT = 2222


def tasks(body: Body) -> list[Process]:
    """Return the processes of the TensorFlow cluster, still without variables: the parameter
    servers (`ps`), followed by the workers. Servers have the ranks behind the workers. The number
    of a process on its instance, `local_rank`, also sets its port."""
    servers = body.parameter_servers
    workers = body.workers
    # The workers begin behind the servers if every task can have an instance of its own.
    first_worker = servers if servers + workers <= body.instances else 0
    roles = [("ps", workers + number, number) for number in range(servers)]
    roles += [("worker", number, first_worker + number) for number in range(workers)]

    all_tasks = []
    counts = [0] * body.instances
    for kind, rank, place in roles:
        instance = place % body.instances
        all_tasks.append(Process(instance, kind, (), {}, rank, counts[instance]))
        counts[instance] += 1
    return all_tasks


# The processes that each distribution starts, with the variables that distinguish them.
#
# AZUREML_PROCESS_NAME contains the rank in the whole job, so that only one process is named
# `rank_0`: in Microsoft's own components, only the process `main` or `rank_0` writes files.

MASTER_PORT = 6105
"""The port of PyTorch's rank 0, as in the guide for version 1 of the SDK."""

BATCH_PORT = 6000
"""The port behind the master's address in AZ_BATCH_MASTER_NODE; it belongs to Batch."""

INTERFACE = "eth0"
"""The Ethernet card of Azure's GPU machines, for the first contact; the data then goes over
InfiniBand. A published environment of an Mpi job has it; without NCCL_SOCKET_IFNAME, DeepSpeed
stops."""


_DEFAULTS = {"Mpi": {"NCCL_SOCKET_IFNAME": INTERFACE}}
"""Maps a distribution's type to the variables that the job's own variables override."""


def _pytorch(body: Body, layout: JobLayout) -> Iterator[Alike]:
    """The service starts the processes itself, without torchrun, so variables that only torchrun
    sets are missing."""
    address, port = layout.endpoint(0, MASTER_PORT)

    def variables(rank: int, instance: int, local: int) -> dict[str, str]:
        return {
            "LOCAL_RANK": str(local),
            "MASTER_ADDR": address,
            "MASTER_PORT": port,
            "NODE_RANK": str(instance),
            "RANK": str(rank),
            "WORLD_SIZE": str(body.ranks),
        }

    return _on_each(body, variables)


def _mpi(body: Body, layout: JobLayout) -> Iterator[Alike]:
    """MASTER_ADDR, RANK and WORLD_SIZE are not set for the processes of the service's mpirun."""
    world = str(body.ranks)
    master = {"AZ_BATCHAI_MPI_MASTER_NODE": "localhost"}
    if layout.is_multi:
        master = {
            "AZ_BATCHAI_MPI_MASTER_NODE": layout.hosts[0],
            "AZ_BATCH_MASTER_NODE": ":".join(layout.endpoint(0, BATCH_PORT)),
        }

    def variables(rank: int, _: int, local: int) -> dict[str, str]:
        return {
            **master,
            "OMPI_COMM_WORLD_LOCAL_RANK": str(local),
            "OMPI_COMM_WORLD_LOCAL_SIZE": str(body.processes_per_instance),
            "OMPI_COMM_WORLD_RANK": str(rank),
            "OMPI_COMM_WORLD_SIZE": world,
            "OMPI_UNIVERSE_SIZE": world,
        }

    return _on_each(body, variables)


def _tensorflow(body: Body, layout: JobLayout) -> Iterator[Alike]:
    """Parameter servers come first. The AZUREML_PROCESS_NAME of TensorFlow's processes is
    unknown."""
    all_tasks = tasks(body)
    cluster: dict[str, list[str]] = {}
    for task in all_tasks:
        address = layout.endpoint(task.instance, FIRST_PORT + (task.local_rank or 0))
        cluster.setdefault(task.role, []).append(":".join(address))
    shared = json.dumps(cluster)

    def group(kind: str) -> Alike:
        members = [task for task in all_tasks if task.role == kind]

        def process(number: int) -> Process:
            own = json.dumps({"type": kind, "index": number})
            env = {"TF_CONFIG": f'{{"cluster": {shared}, "task": {own}, "environment": "cloud"}}'}
            return replace(members[number], env=env)

        places = tuple((task.instance, 1) for task in members)
        return Alike(kind, places, process)

    yield group("ps")
    yield group("worker")


def _one_process(_: Body, __: JobLayout) -> Iterator[Alike]:
    """Without a distribution, the first instance starts one process. Azure does not document what
    the others do."""

    env = {"AZUREML_PROCESS_NAME": "main"}
    yield Alike.listed([Process(0, "process", (), env, rank=0, local_rank=0)])


_STARTS: dict[str, Callable[[Body, JobLayout], Iterator[Alike]]] = {
    "PyTorch": _pytorch,
    "Mpi": _mpi,
    "TensorFlow": _tensorflow,
    "": _one_process,
}
"""Maps a distribution's type to its processes, each with only its own variables, and still without
an argv."""


def _on_each(body: Body, variables: Callable[[int, int, int], dict[str, str]]) -> Iterator[Alike]:
    """Yield the ranks of all instances, each with the variables for its rank, its instance and its
    rank on the instance."""
    count = body.processes_per_instance

    def process(rank: int) -> Process:
        instance, local = divmod(rank, count)
        env = {"AZUREML_PROCESS_NAME": f"rank_{rank}", **variables(rank, instance, local)}
        return Process(instance, "rank", (), env, rank, local)

    yield Alike("rank", tuple((instance, count) for instance in range(body.instances)), process)


# The environment variables that the processes of all distributions have.
#
# Some variables are left out because they are unknown before the job runs: the run's token, the
# service's endpoints, and the settings of the common runtime (`AZUREML_CR_..._CONFIG`) and of
# MLflow.

UNKNOWN_ID = "00000000-0000-0000-0000-000000000000"
"""Stands in for the ids of experiment and workspace, which the service makes up."""

LONG = (
    "AZUREML_ARM_PROJECT_NAME", "AZUREML_ARM_RESOURCEGROUP", "AZUREML_ARM_SUBSCRIPTION",
    "AZUREML_ARM_WORKSPACE_NAME",
    "AZUREML_CR_DISTRIBUTED_CONFIG", "AZUREML_CR_EXECUTION_WORKING_DIR_PATH",
    "AZUREML_EXPERIMENT_ID",
    "AZUREML_EXPERIMENT_SCOPE", "AZUREML_ROOT_RUN_ID", "AZUREML_WORKSPACE_ID",
    "AZUREML_WORKSPACE_SCOPE",
    "AZ_BATCH_HOST_LIST", "AZ_BATCH_NODE_LIST",
)  # fmt: skip
"""Variables left out of a plan's processes: they repeat the request, or list the addresses of all
instances."""


def common_variables(
    body: Body, layout: JobLayout, instance: int, *, with_long: bool = True
) -> dict[str, str]:
    """The service's variables override the job's. If `with_long` is false, the variables in `LONG`
    are left out."""
    variables = dict(body.variables)
    for name, item in body.inputs.items():
        prefix = "AZUREML_PARAMETER" if is_literal(item) else "AZURE_ML_INPUT"
        variables[f"{prefix}_{name}"] = layout.paths[f"inputs.{name}"]
    for name in body.outputs:
        variables[f"AZURE_ML_OUTPUT_{name}"] = layout.paths[f"outputs.{name}"]

    variables |= _of_the_run(body, layout) | _of_the_instance(layout, instance)
    if with_long:
        return variables | _of_all_hosts(layout, instance)
    return without(variables, LONG)


def _of_the_run(body: Body, layout: JobLayout) -> dict[str, str]:
    """These are in a published pod specification. `AZUREML_ARM_PROJECT_NAME` is the name of the
    experiment."""
    parts = layout.workspace_id.split("/")
    return {
        "AZUREML_ARM_PROJECT_NAME": body.experiment,
        "AZUREML_ARM_RESOURCEGROUP": parts[4],
        "AZUREML_ARM_SUBSCRIPTION": parts[2],
        "AZUREML_ARM_WORKSPACE_NAME": parts[-1],
        "AZUREML_EXPERIMENT_ID": UNKNOWN_ID,
        "AZUREML_EXPERIMENT_SCOPE": f"{layout.workspace_id}/experiments/{body.experiment}",
        "AZUREML_ROOT_RUN_ID": layout.run_name,
        "AZUREML_RUN_ID": layout.run_name,
        "AZUREML_WORKSPACE_ID": UNKNOWN_ID,
        "AZUREML_WORKSPACE_SCOPE": layout.workspace_id,
    }


def _of_the_instance(layout: JobLayout, instance: int) -> dict[str, str]:
    """AZ_BATCH_* are set only if the job has several instances, as documented. Microsoft's
    DeepSpeed example relies on their absence from jobs with one instance."""
    variables = {
        "AZUREML_CR_EXECUTION_WORKING_DIR_PATH": layout.code[instance],
        "AZUREML_CR_NODE_RANK": str(instance),
        "AZUREML_NODE_COUNT": str(len(layout.hosts)),
        "AZ_BATCHAI_JOB_MASTER_NODE_IP": layout.hosts[0],
        "AZ_BATCHAI_TASK_INDEX": str(instance),
    }
    if layout.gpus is not None:
        variables["AZ_BATCHAI_GPU_COUNT"] = str(layout.gpus)
    if layout.is_multi:
        variables["AZ_BATCH_IS_CURRENT_NODE_MASTER"] = str(instance == 0).lower()
    return variables


def _of_all_hosts(layout: JobLayout, instance: int) -> dict[str, str]:
    """`rank` in AZUREML_CR_DISTRIBUTED_CONFIG is the instance's number. On Kubernetes, Azure ML
    writes the name of a variable instead."""
    config = {"rank": instance, "host_list": layout.hosts}
    variables = {"AZUREML_CR_DISTRIBUTED_CONFIG": json.dumps(config)}
    if layout.is_multi:
        variables["AZ_BATCH_HOST_LIST"] = ",".join(layout.hosts)
        variables["AZ_BATCH_NODE_LIST"] = ";".join(layout.hosts)
    return variables


# Every process of a job, with its argv and environment.


def processes(body: Body, layout: JobLayout, *, with_long: bool = True) -> Processes:
    """Return every process, in order of start; none for Ray, whose processes are unknown. If
    `with_long` is false, the variables in `LONG` are left out, as for `Plan.processes`."""
    argv = ("bash", "-c", fill_command(body, layout.paths))
    defaults = _DEFAULTS.get(body.kind, {})

    @lru_cache(maxsize=4)
    def variables_of(instance: int) -> dict[str, str]:
        return common_variables(body, layout, instance, with_long=with_long)

    def complete(own: Process) -> Process:
        env = {**defaults, **variables_of(own.instance), **own.env}
        return replace(own, argv=argv, env=dict(sorted(env.items())))

    start = _STARTS.get(body.kind)  # Azure does not document Ray's processes
    return Processes(start(body, layout) if start else ()).mapped(complete)
