"""The machines of a job on Azure ML. A cluster has its own instance type; a job may name the type that it expects."""

from __future__ import annotations

import re

from cloudtrain.catalogue.machines import MachineGroup, known_type
from cloudtrain.core.job import TrainingJob
from cloudtrain.errors import JobError, Problem
from cloudtrain.targets.azureml.account import AzureMLAccount
from cloudtrain.targets.azureml.compile.identifiers import is_virtual_cluster
from cloudtrain.targets.common import instance_types

SERVERLESS = "serverless"


def is_cluster(compute: str | None) -> bool:
    """Return whether `compute` names a cluster with its own machines; otherwise the job is serverless."""
    return compute is not None and compute.removeprefix("azureml:").rpartition("/")[2] != SERVERLESS


_OF_KUBERNETES = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")


def is_own_type(compute: str, name: str) -> bool:
    """Return whether the compute defines its own instance types, of which the job must name one.

    On a Kubernetes cluster a type is an object of the cluster, such as `gpu-large`; on a virtual cluster it has a name
    like `Singularity.ND40rs_v2`. An Azure ML cluster has only one type, a VM size; the job may name the size that it
    expects. `name` is the job's instance type, whose form shows whether the cluster is a Kubernetes cluster.
    """
    return is_virtual_cluster(compute) or _OF_KUBERNETES.fullmatch(name) is not None


def machines_of(job: TrainingJob, account: AzureMLAccount) -> MachineGroup:
    """Return the machines that the job asks for.

    Raises:
        JobError: the job asks for something that only SageMaker has, or for a GPU that no instance type has.
    """
    resources = job.resources
    problems = [
        Problem(
            ("resources", name), f"`{name}` works only on SageMaker; Azure ML has no equivalent", hint, code="CT031"
        )
        for name, hint in _FOREIGN.items()
        if getattr(resources, name)
    ]
    if problems:
        raise JobError(problems)
    named = resources.instance_type.of("azureml") if resources.instance_type else None
    if named is None and resources.gpu is not None:
        named = instance_types.type_by_gpu("azureml", resources, account.overlay)
    known = known_type("azureml", named, account.overlay) if named else None
    return MachineGroup(known.name if known else named or "", resources.instance_count, known)


def some_machines(job: TrainingJob) -> MachineGroup:
    """Return placeholder machines of an unknown type, as many as the job asks for.

    With them, cloudtrain can report a job's other mistakes even if its machines are not valid.
    """
    return MachineGroup("", job.resources.instance_count, None)


_FOREIGN = {
    "instance_groups": "use `instance_type` and `instance_count`",
    "distribution_groups": "remove it",
    "instance_preferences": "name one `instance_type`, and further regions in the target's `locations`",
}
"""Fields of `resources` that a job on Azure ML cannot have, with what to do about each."""
