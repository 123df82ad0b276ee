"""The machines of a job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from cloudtrain._model import Model, all_at_once
from cloudtrain.errors import Problem
from cloudtrain.units import Count, Size


class PerTarget(Model):
    """A value that has another name on each cloud: `{sagemaker: ml.p4d.24xlarge, azureml: Standard_ND96asr_v4}`."""

    sagemaker: str | None = None
    azureml: str | None = None
    local: str | None = None

    def of(self, target: str) -> str | None:
        """The value for one target, or None."""
        value = getattr(self, target, None)
        assert value is None or isinstance(value, str)
        return value


def _everywhere(value: Any) -> Any:
    return {"sagemaker": value, "azureml": value, "local": value} if isinstance(value, str) else value


Named = Annotated[PerTarget, BeforeValidator(_everywhere)]
"""One string for every target, or one per target."""


class InstanceGroup(Model):
    """One group of a heterogeneous cluster (SageMaker): its own instance type and count."""

    name: str = Field(min_length=1, max_length=64)
    instance_type: str
    instance_count: Count


def _resource_rules(resources: Mapping[str, Any]) -> Iterator[Problem]:
    named = [name for name in ("instance_type", "gpu", "instance_preferences") if resources.get(name)]
    for name in named[1:]:
        yield Problem((name,), f"`{named[0]}` and `{name}` both name the machine", "remove one of them")
    if not resources.get("instance_groups"):
        if resources.get("distribution_groups"):
            message = "`distribution_groups` needs `instance_groups`"
            yield Problem(("distribution_groups",), message, "add `instance_groups`, or remove it")
        return
    for name in ("instance_count", *named):
        if name in resources:
            message = f"`instance_groups` holds its own types and counts, so `{name}` contradicts it"
            yield Problem((name,), message, f"remove `{name}` or `instance_groups`")


class Resources(Model):
    """How many instances of which type. Name a type per target, or describe it by GPU and let the catalogue choose."""

    instance_count: Count = 1
    """Instances (machines, nodes) of the job."""
    instance_type: Named | None = None
    gpu: str | None = None
    """GPU model and memory: `A100-40GB`, `H100`, `T4`."""
    gpus_per_instance: int | None = Field(default=None, ge=0, strict=True)
    interconnect: Literal["rdma", "ethernet"] | None = None
    """`rdma`: EFA on SageMaker, InfiniBand with SR-IOV on Azure ML."""
    instance_groups: tuple[InstanceGroup, ...] = ()
    """SageMaker only: a heterogeneous cluster, instead of `instance_type` and `instance_count`."""
    distribution_groups: tuple[str, ...] = ()
    """SageMaker only: the groups that the distribution spans; all unless given."""
    instance_preferences: tuple[str, ...] = ()
    """SageMaker only: up to five instance types, the best first, instead of `instance_type`; the service takes the
    first that it has."""
    volume_size: Size | None = None
    """Disk of each instance, where the instance type has no fixed one."""
    shm_size: Size | None = None
    """Shared memory of the container (`/dev/shm`), for data loader workers."""

    _rules = all_at_once(_resource_rules)
