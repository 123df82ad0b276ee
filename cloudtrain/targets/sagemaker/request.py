"""The names of the hyperparameters for sagemaker-training. The SageMaker SDK and cloudtrain set
them in the request."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import groupby
from typing import Any, NamedTuple

from cloudtrain.runtime.sagemaker_launcher import ROOT
from cloudtrain.runtime.sagemaker_launcher.variables import HOMOGENEOUS
from cloudtrain.targets.sagemaker.fields import ALGORITHM, CHANNELS, MACHINES, PARAMETERS, TAGS
from cloudtrain.targets.sagemaker.fields import JsonMapping as JsonMapping
from cloudtrain.targets.sagemaker.fields import JsonObject as JsonObject

PROGRAM = "sagemaker_program"
SUBMIT_DIRECTORY = "sagemaker_submit_directory"
LOG_LEVEL = "sagemaker_container_log_level"
INFO = 20
"""The level logging.INFO, as the SDK sets it."""

RUN_NAME = "${{run.name}}"
"""Stands for the name of the run in settings, places and overrides, such as
`s3://mine/${{run.name}}/model`."""

JOB_NAME = "sagemaker_job_name"
REGION = "sagemaker_region"

MPI = "sagemaker_mpi_enabled"
PARAMETER_SERVER = "sagemaker_parameter_server_enabled"
SMDDP = "sagemaker_distributed_dataparallel_enabled"
PYTORCH_DDP = "sagemaker_pytorch_ddp_enabled"
XLA = "sagemaker_pytorch_xla_multi_worker_enabled"
MIRRORED = "sagemaker_multi_worker_mirrored_strategy_enabled"
TORCH = "sagemaker_torch_distributed_enabled"
LAUNCHER_KEYS = (PARAMETER_SERVER, MIRRORED, MPI, PYTORCH_DDP, TORCH, SMDDP, XLA)
"""The hyperparameters that select a launcher."""

GROUPS = "sagemaker_distribution_instance_groups"
INSTANCE_TYPE = "sagemaker_instance_type"
PROCESSES = "sagemaker_mpi_num_of_processes_per_host"
"""The number of ranks on each host, for torchrun and mpirun."""

RANKS = "sagemaker_mpi_num_processes"
MPI_OPTIONS = "sagemaker_mpi_custom_mpi_options"
SMDDP_OPTIONS = "sagemaker_distributed_dataparallel_custom_mpi_options"
MODEL_PARALLEL = "mp_parameters"

NATIVE_LAUNCHER = "sagemaker_toolkit_native_launcher_enabled"
"""The PyTorch toolkit's hyperparameter for a start without error capture, where no version uses a
shell.

With torchrun the toolkit mixes up two arguments: it captures errors anyway, and ignores the exit
code.
"""


# The hosts of a job, and the files that SageMaker writes for them in `/opt/ml/input/config`.

_MODULE = "cloudtrain.runtime.sagemaker_launcher"

Request = JsonMapping
"""The body of CreateTrainingJob."""


def without_nulls(values: JsonMapping) -> JsonObject:
    return {name: value for name, value in values.items() if value is not None}


def without(values: JsonMapping, names: Container[str]) -> JsonObject:
    """Return the values whose names are not among `names`."""
    return {name: value for name, value in values.items() if name not in names}


def only(values: JsonMapping, names: Iterable[str]) -> JsonObject:
    """Return the values of these names that there are, in the order of `names`."""
    return {name: values[name] for name in names if name in values}


INTERFACE = "eth0"
"""The network interface of every container."""


@dataclass(frozen=True)
class Host:
    """One container. `index` counts from 0; host 0 is `algo-1`."""

    index: int
    group: str
    instance_type: str

    @cached_property
    def name(self) -> str:
        return f"algo-{self.index + 1}"


def hosts(request: Request) -> tuple[Host, ...]:
    """Return all hosts in SageMaker's order, sorted by name: `algo-10` comes before `algo-2`."""
    return _all_hosts(request).hosts


def host_groups(request: Request) -> tuple[tuple[Host, ...], ...]:
    """Return the hosts of each instance group, `algo-1` first. A job without groups counts as one
    group."""
    numbered = sorted(hosts(request), key=lambda host: host.index)
    groups = groupby(numbered, key=lambda host: host.group)
    return tuple(tuple(members) for _, members in groups)


class _AllHosts(NamedTuple):
    """All hosts of a job, with their names and the instance groups as listed in
    `resourceconfig.json`."""

    hosts: tuple[Host, ...]
    names: list[str]
    groups: list[JsonObject]


def _all_hosts(request: Request) -> _AllHosts:
    return _hosts_of(tuple(_groups(request[MACHINES])))


@lru_cache(maxsize=1)  # each host of a job asks for all of them
def _hosts_of(groups: tuple[tuple[str, str, int], ...]) -> _AllHosts:
    """Return the hosts and groups of a job. `groups` holds the name, instance type and count of
    each group."""
    members: list[Host] = []
    for group, instance_type, count in groups:
        for _ in range(count):
            members.append(Host(len(members), group, instance_type))
    in_order = sorted(members, key=lambda host: host.name)

    rows: list[JsonObject] = []
    for group, instance_type, _ in groups:
        names = [host.name for host in in_order if host.group == group]
        rows.append({"instance_group_name": group, "instance_type": instance_type, "hosts": names})
    return _AllHosts(tuple(in_order), [host.name for host in in_order], rows)


def _groups(config: JsonMapping) -> Iterator[tuple[str, str, int]]:
    """Yield name, instance type and count of each instance group.

    A job without groups counts as one group. If it lists preferred instance types, the group has
    the first of them.
    """
    if config.get("InstanceGroups"):
        for group in config["InstanceGroups"]:
            yield group["InstanceGroupName"], group["InstanceType"], group["InstanceCount"]
        return
    row = (config.get("InstancePreferences") or [config])[0]
    count = row.get("InstanceCount", config.get("InstanceCount", 1))
    yield HOMOGENEOUS, row["InstanceType"], count


def resource_config(request: Request, host: Host, interface: str = INTERFACE) -> JsonObject:
    """Return the content of one host's `resourceconfig.json`. Do not change its lists: all hosts
    share them."""
    all_hosts = _all_hosts(request)
    return {
        "current_host": host.name,
        "current_instance_type": host.instance_type,
        "current_group_name": host.group,
        "hosts": all_hosts.names,
        "instance_groups": all_hosts.groups,
        "network_interface_name": interface,
    }


def hyperparameters_file(request: Request) -> dict[str, str]:
    """Return the content of `hyperparameters.json`: the request's hyperparameters, with each value
    as text."""
    return dict(request.get(PARAMETERS, {}))


def input_data_config(request: Request) -> dict[str, JsonObject]:
    """Return the content of `inputdataconfig.json`."""
    default_mode = request[ALGORITHM].get("TrainingInputMode", "File")
    channels = {}
    for channel in request.get(CHANNELS, []):
        source = channel.get("DataSource", {}).get("S3DataSource", {})
        channels[channel["ChannelName"]] = {
            "ContentType": channel.get("ContentType"),
            "TrainingInputMode": channel.get("InputMode", default_mode),
            "S3DistributionType": source.get("S3DataDistributionType", "FullyReplicated"),
            "RecordWrapperType": channel.get("RecordWrapperType", "None"),
        }
    return channels


def files(
    request: Request, host: Host, root: str = ROOT, interface: str = INTERFACE
) -> dict[str, JsonObject]:
    """Map the paths of one host's configuration files to their content. `root` replaces `/opt/ml`
    in the paths."""
    folder = f"{root}/input/config"
    return {
        f"{folder}/hyperparameters.json": hyperparameters_file(request),
        f"{folder}/inputdataconfig.json": input_data_config(request),
        f"{folder}/resourceconfig.json": resource_config(request, host, interface),
    }


def is_entrypoint(request: Request) -> bool:
    """Return whether the job starts cloudtrain's own launcher instead of the image's toolkit."""
    entrypoint = request[ALGORITHM].get("ContainerEntrypoint") or ()
    return any(_MODULE in str(item) for item in entrypoint)


OF_TOOLKIT = frozenset(
    {
        PROGRAM, SUBMIT_DIRECTORY, LOG_LEVEL, JOB_NAME, REGION, GROUPS,
        INSTANCE_TYPE, PROCESSES, RANKS, MPI_OPTIONS, SMDDP_OPTIONS, MODEL_PARALLEL,
        NATIVE_LAUNCHER, *LAUNCHER_KEYS,
    }
)  # fmt: skip
"""Hyperparameters for the toolkit, which do not belong to the script."""


ROWS = {CHANNELS: "ChannelName", TAGS: "Key"}
"""The lists of a request whose rows have names, each with the field of the name. Overrides merge
them row by row."""


def rows_by_name(rows: Any, key: str) -> dict[str, JsonMapping]:
    """Return the rows of a list by the names in their field `key`; empty if a row has none, or two
    have the same."""
    by_name: dict[str, JsonMapping] = {}
    for row in rows if isinstance(rows, list) else ():
        name = row.get(key) if isinstance(row, Mapping) else None
        if not isinstance(name, str) or name in by_name:
            return {}
        by_name[name] = row
    return by_name
