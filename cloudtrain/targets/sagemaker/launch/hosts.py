"""The hosts of a job, and the files that SageMaker writes for them in `/opt/ml/input/config`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import groupby
from typing import Any, NamedTuple

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
        """Return the host's name in the job's network."""
        return f"algo-{self.index + 1}"


def hosts(request: Request) -> tuple[Host, ...]:
    """Return all hosts in SageMaker's order, sorted by name: `algo-10` comes before `algo-2`."""
    return _everyone(request).hosts


def host_groups(request: Request) -> tuple[tuple[Host, ...], ...]:
    """Return the hosts of each instance group, `algo-1` first. A job without groups counts as one group."""
    numbered = sorted(hosts(request), key=lambda host: host.index)
    return tuple(tuple(same) for _, same in groupby(numbered, key=lambda host: host.group))


class _Everyone(NamedTuple):
    """All hosts of a job, with their names and the instance groups as listed in `resourceconfig.json`."""

    hosts: tuple[Host, ...]
    names: list[str]
    groups: list[dict[str, Any]]


def _everyone(request: Request) -> _Everyone:
    return _describe_everyone(tuple(_groups(request["ResourceConfig"])))


@lru_cache(maxsize=1)
def _describe_everyone(groups: tuple[tuple[str, str, int], ...]) -> _Everyone:
    """Return the hosts and groups of a job. `groups` holds the name, instance type and count of each group."""
    found, first = [], 0
    for group, instance_type, count in groups:
        found += [Host(first + number, group, instance_type) for number in range(count)]
        first += count
    everyone = sorted(found, key=lambda host: host.name)
    described = [
        {
            "instance_group_name": group,
            "instance_type": instance_type,
            "hosts": [host.name for host in everyone if host.group == group],
        }
        for group, instance_type, _ in groups
    ]
    return _Everyone(tuple(everyone), [host.name for host in everyone], described)


def _groups(config: Mapping[str, Any]) -> Iterator[tuple[str, str, int]]:
    """Yield name, instance type and count of each instance group.

    A job without groups counts as one group. If it lists preferred instance types, the group has the first of them.
    """
    if config.get("InstanceGroups"):
        for group in config["InstanceGroups"]:
            yield group["InstanceGroupName"], group["InstanceType"], group["InstanceCount"]
        return
    chosen = (config.get("InstancePreferences") or [config])[0]
    yield HOMOGENEOUS, chosen["InstanceType"], chosen.get("InstanceCount", config.get("InstanceCount", 1))


def resource_config(request: Request, host: Host) -> dict[str, Any]:
    """Return the content of one host's `resourceconfig.json`. Do not change its lists: all hosts share them."""
    everyone = _everyone(request)
    return {
        "current_host": host.name,
        "current_instance_type": host.instance_type,
        "current_group_name": host.group,
        "hosts": everyone.names,
        "instance_groups": everyone.groups,
        "network_interface_name": INTERFACE,
    }


def hyperparameters_file(request: Request) -> dict[str, str]:
    """Return the content of `hyperparameters.json`: the request's hyperparameters, with each value as text."""
    return dict(request.get("HyperParameters", {}))


def input_data_config(request: Request) -> dict[str, dict[str, Any]]:
    """Return the content of `inputdataconfig.json`."""
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
    """Map the paths of one host's configuration files to their content. `root` replaces `/opt/ml` in the paths."""
    folder = f"{root}/input/config"
    return {
        f"{folder}/hyperparameters.json": hyperparameters_file(request),
        f"{folder}/inputdataconfig.json": input_data_config(request),
        f"{folder}/resourceconfig.json": resource_config(request, host),
    }


def is_entrypoint(request: Request) -> bool:
    """Return whether the job starts cloudtrain's own launcher instead of the image's toolkit."""
    entrypoint = request["AlgorithmSpecification"].get("ContainerEntrypoint") or ()
    return list(entrypoint) == list(CONTAINER_ENTRYPOINT) or any(_MODULE in item for item in entrypoint)
