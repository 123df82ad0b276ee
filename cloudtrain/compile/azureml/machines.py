"""The machines of a job on Azure ML. On a cluster the type is the cluster's own; a job may say which it expects."""

from __future__ import annotations

from dataclasses import dataclass

from cloudtrain.catalogue.instances import InstanceType
from cloudtrain.compile import instance_types
from cloudtrain.errors import JobError, Problem
from cloudtrain.job import TrainingJob
from cloudtrain.plans import AzureMLAccount
from cloudtrain.targets import AzureML

SERVERLESS = "serverless"


@dataclass(frozen=True)
class Machines:
    """Equal instances. `instance_type` is None where the job leaves it to the cluster or to the service."""

    count: int
    instance_type: str | None
    known: InstanceType | None
    """The catalogue's row; None for a type that it does not have."""
    cluster: str | None
    """The compute cluster; None on serverless compute."""

    @property
    def devices(self) -> int | None:
        """Processes that a distribution starts on each instance unless told otherwise; None where nobody knows."""
        return self.known.devices if self.known is not None else None


def machines_of(job: TrainingJob, target: AzureML, account: AzureMLAccount) -> Machines:
    """The machines that the job asks for.

    Raises:
        JobError: it asks for what only SageMaker has, or describes a type that does not exist.
    """
    resources = job.resources
    problems = [
        Problem(("resources", name), f"`{name}` is SageMaker's, and Azure ML has nothing like it", hint)
        for name, hint in _FOREIGN.items()
        if getattr(resources, name)
    ]
    if problems:
        raise JobError(problems)
    named = resources.instance_type.of("azureml") if resources.instance_type else None
    if named is None and resources.gpu is not None:
        named = instance_types.type_by_gpu("azureml", resources, account.overlay)
    known = instance_types.known_type("azureml", named, account.overlay) if named else None
    cluster = None if target.compute in (None, SERVERLESS) else target.compute
    return Machines(resources.instance_count, known.name if known else named, known, cluster)


_FOREIGN = {
    "instance_groups": "use `instance_type` and `instance_count`",
    "distribution_groups": "remove it",
    "instance_preferences": "name one `instance_type`, and further regions in the target's `locations`",
}
"""Fields of `resources` that a job on Azure ML cannot have, with what to do about each."""
