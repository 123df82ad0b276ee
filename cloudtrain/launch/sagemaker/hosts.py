"""The hosts of a job, and the files that SageMaker writes for them in `/opt/ml/input/config`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from cloudtrain.runtime.sagemaker_launcher import CONTAINER_ENTRYPOINT, ROOT
from cloudtrain.runtime.sagemaker_launcher.variables import HOMOGENEOUS

_MODULE = "cloudtrain.runtime.sagemaker_launcher"

Request = Mapping[str, Any]
"""The body of CreateTrainingJob."""

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
        """Its name in the job's network."""
        return f"algo-{self.index + 1}"


def hosts(request: Request) -> tuple[Host, ...]:
    """All hosts, in the order in which SageMaker lists them: by name, so `algo-10` comes before `algo-2`."""
    return _in_order(tuple(_groups(request["ResourceConfig"])))


@lru_cache(maxsize=1)
def _in_order(groups: tuple[tuple[str, str, int], ...]) -> tuple[Host, ...]:
    """Kept, because each host of a job is told of all the others."""
    found, first = [], 0
    for group, instance_type, count in groups:
        found += [Host(first + number, group, instance_type) for number in range(count)]
        first += count
    return tuple(sorted(found, key=lambda host: host.name))


def _groups(config: Mapping[str, Any]) -> Iterator[tuple[str, str, int]]:
    """Name, instance type and count. Of several preferred types the first one, which is tried first."""
    if config.get("InstanceGroups"):
        for group in config["InstanceGroups"]:
            yield group["InstanceGroupName"], group["InstanceType"], group["InstanceCount"]
        return
    chosen = (config.get("InstancePreferences") or [config])[0]
    yield HOMOGENEOUS, chosen["InstanceType"], chosen.get("InstanceCount", config.get("InstanceCount", 1))


def resource_config(request: Request, host: Host) -> dict[str, Any]:
    """`resourceconfig.json` of one host."""
    everyone = hosts(request)
    groups = [(group, instance_type) for group, instance_type, _ in _groups(request["ResourceConfig"])]
    return {
        "current_host": host.name,
        "current_instance_type": host.instance_type,
        "current_group_name": host.group,
        "hosts": [each.name for each in everyone],
        "instance_groups": [
            {
                "instance_group_name": group,
                "instance_type": instance_type,
                "hosts": [each.name for each in everyone if each.group == group],
            }
            for group, instance_type in groups
        ],
        "network_interface_name": INTERFACE,
    }


def hyperparameters_file(request: Request) -> dict[str, str]:
    """`hyperparameters.json`: the request's, each value a text."""
    return dict(request.get("HyperParameters", {}))


def input_data_config(request: Request) -> dict[str, dict[str, Any]]:
    """`inputdataconfig.json`."""
    usual = request["AlgorithmSpecification"].get("TrainingInputMode", "File")
    return {channel["ChannelName"]: _channel(channel, usual) for channel in request.get("InputDataConfig", [])}


def _channel(channel: Mapping[str, Any], usual_mode: str) -> dict[str, Any]:
    source = channel.get("DataSource", {}).get("S3DataSource", {})
    return {
        "ContentType": channel.get("ContentType"),
        "TrainingInputMode": channel.get("InputMode", usual_mode),
        "S3DistributionType": source.get("S3DataDistributionType", "FullyReplicated"),
        "RecordWrapperType": channel.get("RecordWrapperType", "None"),
    }


def files(request: Request, host: Host, root: str = ROOT) -> dict[str, dict[str, Any]]:
    """Path to content of the configuration files of one host, with `/opt/ml` at `root`."""
    folder = f"{root}/input/config"
    return {
        f"{folder}/hyperparameters.json": hyperparameters_file(request),
        f"{folder}/inputdataconfig.json": input_data_config(request),
        f"{folder}/resourceconfig.json": resource_config(request, host),
    }


def is_entrypoint(request: Request) -> bool:
    """Whether the job starts cloudtrain's own launcher in place of the image's toolkit."""
    entrypoint = request["AlgorithmSpecification"].get("ContainerEntrypoint") or ()
    return list(entrypoint) == list(CONTAINER_ENTRYPOINT) or any(_MODULE in item for item in entrypoint)
