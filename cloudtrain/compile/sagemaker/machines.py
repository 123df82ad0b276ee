"""The machines of a SageMaker job: instance types named, preferred, grouped, or chosen by their GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from cloudtrain.catalogue.cost import hourly
from cloudtrain.catalogue.instances import InstanceType
from cloudtrain.compile import instance_types
from cloudtrain.errors import JobError, Problem
from cloudtrain.job import TrainingJob
from cloudtrain.plans import SageMakerAccount
from cloudtrain.resources import InstanceGroup
from cloudtrain.targets import SageMaker

DEFAULT_VOLUME_GIB = 30
"""Disk of each instance unless the job says otherwise: the SDK's default."""

DEFAULT_GROUP = "homogeneousCluster"
"""What the service calls the one group of a job without groups."""


@dataclass(frozen=True)
class Group:
    """Equal instances. `known` is the catalogue's row, or None for a type that it does not have."""

    name: str
    instance_type: str
    count: int
    known: InstanceType | None

    @property
    def gpus(self) -> int:
        """GPUs of each instance; Neuron cores are not GPUs."""
        return self.known.gpus if self.known else 0

    @property
    def accelerators(self) -> int:
        """What a launcher starts one process for: GPUs, else Neuron cores."""
        return self.gpus or (self.known.neuron_cores if self.known else 0)


@dataclass(frozen=True)
class Machines:
    """All instances of a job."""

    groups: tuple[Group, ...]
    preferences: tuple[Group, ...] = ()
    """What may be taken instead, in order of preference; the first is the one in `groups`."""
    heterogeneous: bool = False
    distribution_groups: tuple[str, ...] = ()
    """Names of the groups that the distribution spans; empty on a homogeneous cluster."""

    @property
    def spanned(self) -> tuple[Group, ...]:
        """The groups that the distribution spans."""
        names = self.distribution_groups
        return tuple(group for group in self.groups if group.name in names) if names else self.groups

    @property
    def first(self) -> Group:
        """The group that decides what the job is: the first one that the distribution spans."""
        return (self.spanned or self.groups)[0]

    @property
    def count(self) -> int:
        """Instances in all."""
        return sum(group.count for group in self.groups)

    @property
    def hourly(self) -> float | None:
        """US dollars an hour at list prices, for the dearest that may be taken; None where a price is not known."""
        counted = [(group.known, group.count) for group in self.preferences or self.groups]
        return hourly(counted, any_of=bool(self.preferences))


def known_type(name: str, account: SageMakerAccount) -> InstanceType | None:
    """The catalogue's row of a type, with the user's own corrections."""
    return instance_types.known_type("sagemaker", name, account.overlay)


def machines_of(job: TrainingJob, account: SageMakerAccount) -> Machines:
    """The machines that the job asks for.

    Raises:
        JobError: the job names no instance type, or describes one that does not exist.
    """
    resources = job.resources
    if resources.instance_groups:
        names = tuple(group.name for group in resources.instance_groups)
        spans = resources.distribution_groups or names if job.distribution.type != "none" else ()
        groups = tuple(_group(group, account) for group in resources.instance_groups)
        return Machines(groups, heterogeneous=True, distribution_groups=spans)
    names = resources.instance_preferences or (_instance_type(job, account),)
    equal = tuple(Group(DEFAULT_GROUP, name, resources.instance_count, known_type(name, account)) for name in names)
    return Machines(equal[:1], preferences=equal if resources.instance_preferences else ())


def machines_in(config: Mapping[str, Any], account: SageMakerAccount) -> Machines:
    """The machines of a finished request's `ResourceConfig` or `ClusterConfig`, with what the user's overrides made
    of them."""
    rows = config.get("InstanceGroups") or config.get("InstancePreferences") or [config]
    found = tuple(
        Group(
            row.get("InstanceGroupName", DEFAULT_GROUP),
            row["InstanceType"],
            row.get("InstanceCount", config.get("InstanceCount", 1)),
            known_type(row["InstanceType"], account),
        )
        for row in rows
    )
    if config.get("InstanceGroups"):
        return Machines(found, heterogeneous=True)
    return Machines(found[:1], preferences=found if config.get("InstancePreferences") else ())


def resource_config(job: TrainingJob, target: SageMaker, machines: Machines) -> dict[str, Any]:
    """`ResourceConfig` of CreateTrainingJob."""
    optional = {"KeepAlivePeriodInSeconds": target.keep_alive, "TrainingPlanArn": target.training_plan}
    return cluster_config(job, target, machines) | {key: value for key, value in optional.items() if value is not None}


def cluster_config(job: TrainingJob, target: SageMaker, machines: Machines) -> dict[str, Any]:
    """`ClusterConfig` of CreateProcessingJob: the machines, and the disk of each."""
    config: dict[str, Any] = {"VolumeSizeInGB": _volume(job.resources.volume_size)}
    if machines.heterogeneous:
        config["InstanceGroups"] = [
            {"InstanceGroupName": group.name, "InstanceType": group.instance_type, "InstanceCount": group.count}
            for group in machines.groups
        ]
    elif machines.preferences:
        config["InstancePreferences"] = [
            {"InstanceType": group.instance_type, "InstanceCount": group.count} for group in machines.preferences
        ]
    else:
        config |= {"InstanceType": machines.first.instance_type, "InstanceCount": machines.first.count}
    return config if target.volume_kms_key is None else config | {"VolumeKmsKeyId": target.volume_kms_key}


def _group(group: InstanceGroup, account: SageMakerAccount) -> Group:
    return Group(group.name, group.instance_type, group.instance_count, known_type(group.instance_type, account))


def _instance_type(job: TrainingJob, account: SageMakerAccount) -> str:
    resources = job.resources
    named = resources.instance_type.of("sagemaker") if resources.instance_type else None
    if named is not None:
        return named
    if resources.gpu is None:
        problem = Problem(
            ("resources", "instance_type"),
            "the job does not say on which instance type it runs on SageMaker",
            "add `instance_type: {sagemaker: ml.g5.12xlarge}`, or describe it: `gpu: A100-40GB`, "
            "`gpus_per_instance: 8`, `interconnect: rdma`; `cloudtrain instances` lists the types",
        )
        raise JobError([problem])
    return instance_types.type_by_gpu("sagemaker", resources, account.overlay)


def _volume(size: int | None) -> int:
    return DEFAULT_VOLUME_GIB if size is None else ceil(size / 1024**3)
