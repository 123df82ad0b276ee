"""The machines of a SageMaker job: from an instance type, preferred types, instance groups, or a wanted GPU."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any

from cloudtrain.catalogue.machines import MachineGroup, Machines, known_type
from cloudtrain.core.job import TrainingJob
from cloudtrain.errors import JobError, Problem
from cloudtrain.rules.reading import rows_at
from cloudtrain.targets.common import instance_types
from cloudtrain.targets.sagemaker.account import SageMakerAccount
from cloudtrain.targets.sagemaker.settings import SageMaker

DEFAULT_VOLUME_GIB = 30
"""Default disk size of each instance in GiB: the SDK's default."""

DEFAULT_GROUP = "homogeneousCluster"
"""The service's name for the only group of a job without groups."""


def machines_of(job: TrainingJob, account: SageMakerAccount) -> Machines:
    """Return the machines that the job asks for.

    Raises:
        JobError: the job names no instance type, or describes one that does not exist.
    """
    resources = job.resources
    if resources.instance_groups:
        names = tuple(group.name for group in resources.instance_groups)
        spans = resources.distribution_groups or names if job.distribution.type != "none" else ()
        groups = resources.instance_groups
        return Machines(
            tuple(_group(group.instance_type, group.instance_count, account, group.name) for group in groups),
            "groups",
            spans,
        )
    preferred = [(row.instance_type, row.instance_count) for row in resources.instance_preferences]
    named = preferred or [(_instance_type(job, account), None)]
    equal = tuple(_group(name, count or resources.instance_count, account) for name, count in named)
    return Machines(equal, "preferences" if preferred else "type")


def some_machines(job: TrainingJob) -> Machines:
    """Return as many machines as the job asks for, with an unknown type.

    They are used if the job names no valid type, so that cloudtrain still finds the job's other mistakes.
    """
    return Machines((MachineGroup("", job.resources.instance_count, None, DEFAULT_GROUP),))


def machines_in(config: Mapping[str, Any], account: SageMakerAccount) -> Machines:
    """Return the machines of a finished request's `ResourceConfig` or `ClusterConfig`, including the user's overrides.

    Entries without a name or a number are skipped, because SM110 reports them.
    """
    groups, preferences = rows_at(config, "InstanceGroups"), rows_at(config, "InstancePreferences")
    found = []
    for row in groups or preferences or [config]:
        name, count = row.get("InstanceType"), row.get("InstanceCount", config.get("InstanceCount", 1))
        if isinstance(name, str) and isinstance(count, int):
            found.append(_group(name, count, account, str(row.get("InstanceGroupName") or DEFAULT_GROUP)))
    return Machines(tuple(found), "groups" if groups else "preferences" if preferences else "type")


def resource_config(job: TrainingJob, target: SageMaker, machines: Machines) -> dict[str, Any]:
    """Return `ResourceConfig` of CreateTrainingJob."""
    optional = {"KeepAlivePeriodInSeconds": target.keep_alive, "TrainingPlanArn": target.training_plan}
    return cluster_config(job, target, machines) | {key: value for key, value in optional.items() if value is not None}


def cluster_config(job: TrainingJob, target: SageMaker, machines: Machines) -> dict[str, Any]:
    """Return `ClusterConfig` of CreateProcessingJob: the machines and the size of their disks."""
    config: dict[str, Any] = {"VolumeSizeInGB": _volume(job.resources.volume_size)}
    if machines.kind == "groups":
        config["InstanceGroups"] = [
            {"InstanceGroupName": group.name, "InstanceType": group.instance_type, "InstanceCount": group.count}
            for group in machines.groups
        ]
    elif machines.kind == "preferences":
        plans = [row.training_plan for row in job.resources.instance_preferences]
        config["InstancePreferences"] = [
            {"InstanceType": group.instance_type, "InstanceCount": group.count}
            | ({} if plan is None else {"TrainingPlanArns": [plan]})
            for group, plan in zip(machines.groups, plans, strict=True)
        ]
    else:
        config |= {"InstanceType": machines.first.instance_type, "InstanceCount": machines.first.count}
    return config if target.volume_kms_key is None else config | {"VolumeKmsKeyId": target.volume_kms_key}


def _group(instance_type: str, count: int, account: SageMakerAccount, name: str = DEFAULT_GROUP) -> MachineGroup:
    known = known_type("sagemaker", instance_type, account.overlay)
    return MachineGroup(instance_type, count, known, name)


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
            code="CT033",
        )
        raise JobError([problem])
    return instance_types.type_by_gpu("sagemaker", resources, account.overlay)


def _volume(size: int | None) -> int:
    return DEFAULT_VOLUME_GIB if size is None else ceil(size / 1024**3)
