"""The machines of a job."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from cloudtrain._model import Model
from cloudtrain.units import Size


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


Named = Annotated[
    PerTarget,
    BeforeValidator(_everywhere),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"$ref": "#/$defs/PerTarget"}]}),
]
"""One string for every target, or one per target."""


class InstanceGroup(Model):
    """One group of a heterogeneous cluster (SageMaker): its own instance type and count."""

    name: str = Field(min_length=1, max_length=64)
    instance_type: str
    instance_count: int = Field(ge=1, strict=True)


class Resources(Model):
    """How many instances of which type. Name a type per target, or describe it by GPU and let the catalogue choose."""

    instance_count: int = Field(default=1, ge=1, strict=True)
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
    volume_size: Size | None = None
    """Disk of each instance, where the instance type has no fixed one."""
    shm_size: Size | None = None
    """Shared memory of the container (`/dev/shm`), for data loader workers."""

    @model_validator(mode="after")
    def _one_way_to_name_the_machine(self) -> Resources:
        if self.instance_groups and ("instance_count" in self.model_fields_set or self.instance_type is not None):
            raise ValueError(
                "`instance_groups` replaces `instance_type` and `instance_count`; give one or the other"
            )
        if self.instance_type is not None and self.gpu is not None:
            raise ValueError("`instance_type` and `gpu` both name the machine; give one or the other")
        return self
