"""The instance types and counts of a job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SerializerFunctionWrapHandler, model_serializer

from cloudtrain.core.model import Model, all_at_once
from cloudtrain.core.per_target import per_target, value_for
from cloudtrain.core.targets import target_names
from cloudtrain.core.units import MAX_COUNT, Count, Size
from cloudtrain.errors import Problem

if TYPE_CHECKING:
    from cloudtrain.core.arguments import Fields, SizeInput, Texts


@per_target(str | None, default=None)
class PerTarget(Model):
    """A value that differs between targets: `{sagemaker: ml.p4d.24xlarge, azureml: Standard_ND96asr_v4}`."""

    def of(self, target: str) -> str | None:
        """Return the value for one target, or None if the job has none."""
        return value_for(self, target)

    if TYPE_CHECKING:

        def __init__(self, **values: str | None) -> None: ...

        def __getattr__(self, target: str) -> str | None: ...


def _everywhere(value: Any) -> Any:
    return dict.fromkeys(target_names(), value) if isinstance(value, str) else value


Named = Annotated[PerTarget, BeforeValidator(_everywhere)]
"""One string for every target, or one per target."""

NamedInput = str | Mapping[str, str | None] | PerTarget
"""The types that a field of type `Named` accepts."""


class InstanceGroup(Model):
    """One group of a heterogeneous cluster (SageMaker): its own instance type and count."""

    name: str = Field(min_length=1, max_length=64)
    instance_type: str
    instance_count: Count


class InstancePreference(Model):
    """One of several alternative instance types (SageMaker), with the instance count and the training plan for that
    type.
    """

    instance_type: str
    instance_count: Count | None = None
    """Default: the job's `instance_count`."""
    training_plan: str | None = None
    """ARN of a training plan for this type, instead of the target's `training_plan`."""

    @model_serializer(mode="wrap")
    def _in_short(self, as_mapping: SerializerFunctionWrapHandler) -> Any:
        """Serialize as the instance type alone if no other field is set."""
        alone = self.instance_count is None and self.training_plan is None
        return self.instance_type if alone else as_mapping(self)

    if TYPE_CHECKING:

        def __init__(
            self, *, instance_type: str, instance_count: int | None = None, training_plan: str | None = None
        ) -> None: ...


def _type_alone(value: Any) -> Any:
    return {"instance_type": value} if isinstance(value, str) else value


Preferred = Annotated[InstancePreference, BeforeValidator(_type_alone)]
"""An instance type as a string, or with its own count and training plan."""


def _resource_rules(resources: Mapping[str, Any]) -> Iterator[Problem]:
    named = [name for name in ("instance_type", "gpu", "instance_preferences") if resources.get(name)]
    for name in named[1:]:
        yield Problem((name,), f"`{named[0]}` and `{name}` both name the machine", "remove one of them", code="CT018")
    if not resources.get("instance_groups"):
        if resources.get("distribution_groups"):
            message = "`distribution_groups` needs `instance_groups`"
            yield Problem(("distribution_groups",), message, "add `instance_groups`, or remove it", code="CT018")
        return
    for name in ("instance_count", *named):
        if name in resources:
            message = f"`instance_groups` holds its own types and counts, so `{name}` contradicts it"
            yield Problem((name,), message, f"remove `{name}` or `instance_groups`", code="CT018")
    total = sum(_counts(resources["instance_groups"]))
    if total > MAX_COUNT:
        message = f"`instance_groups` have {total:,} instances together, and a job has at most {MAX_COUNT:,}"
        yield Problem(("instance_groups",), message, "lower their `instance_count`", code="CT014")


def _counts(groups: Any) -> Iterator[int]:
    """Yield the instance counts in the raw groups. Skip counts that are not integers, which validation reports."""
    for group in groups if isinstance(groups, list | tuple) else ():
        count = group.get("instance_count") if isinstance(group, Mapping) else getattr(group, "instance_count", None)
        if isinstance(count, int):
            yield count


class Resources(Model):
    """The number and type of instances. Name a type for each target, or describe its GPUs and let cloudtrain choose
    from the catalogue.
    """

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
    """SageMaker only: the groups that the distribution spans. Default: all groups."""
    instance_preferences: tuple[Preferred, ...] = ()
    """SageMaker only: up to five instance types, the best first, instead of `instance_type`. The service uses the first
    type that is available. A type may have its own count and training plan: `{instance_type: ml.p5.48xlarge,
    instance_count: 2}`."""
    volume_size: Size | None = None
    """Disk size of each instance, for instance types without a fixed disk."""
    shm_size: Size | None = None
    """Shared memory of the container (`/dev/shm`), for data loader workers."""

    _rules = all_at_once(_resource_rules)

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            instance_count: int = 1,
            instance_type: NamedInput | None = None,
            gpu: str | None = None,
            gpus_per_instance: int | None = None,
            interconnect: Literal["rdma", "ethernet"] | None = None,
            instance_groups: Sequence[InstanceGroup | Fields] = (),
            distribution_groups: Texts = (),
            instance_preferences: Texts
            | list[str | InstancePreference | Fields]
            | tuple[str | InstancePreference | Fields, ...] = (),
            volume_size: SizeInput | None = None,
            shm_size: SizeInput | None = None,
        ) -> None: ...
