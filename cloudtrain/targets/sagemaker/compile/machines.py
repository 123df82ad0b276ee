"""The machines of a SageMaker job: from an instance type, preferred types, instance groups, or a
wanted GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import ceil
from typing import Any, NamedTuple

from cloudtrain.errors import JobError, Problem
from cloudtrain.job.distribution import SMDDP, SMP
from cloudtrain.job.model import MAX_COUNT, merged
from cloudtrain.job.training import TrainingJob
from cloudtrain.machines.choose import Machines
from cloudtrain.rules.engine import value_at
from cloudtrain.targets.common import compiling as instance_types
from cloudtrain.targets.contract import Contents
from cloudtrain.targets.sagemaker.catalogue.images import (
    Image,
    device_of,
    image_of_uri,
    packages_of,
    resolve_image,
)
from cloudtrain.targets.sagemaker.catalogue.shapes import violations
from cloudtrain.targets.sagemaker.reading import machine_group
from cloudtrain.targets.sagemaker.request import ROWS, JsonMapping, JsonObject, rows_by_name
from cloudtrain.targets.sagemaker.settings import SageMaker, SageMakerAccount

DEFAULT_VOLUME_GIB = 30
"""Default disk size of each instance in GiB: the SDK's default."""


def machines_of(job: TrainingJob, account: SageMakerAccount) -> Machines:
    resources = job.resources
    if resources.instance_groups:
        names = tuple(group.name for group in resources.instance_groups)
        spans = resources.distribution_groups or names if job.distribution.type != "none" else ()
        groups = resources.instance_groups
        return Machines(
            tuple(
                machine_group(group.instance_type, group.instance_count, account, group.name)
                for group in groups
            ),
            "groups",
            spans,
        )
    preferred = [(row.instance_type, row.instance_count) for row in resources.instance_preferences]
    types = preferred or [(_instance_type(job, account), None)]
    equal = tuple(
        machine_group(name, count or resources.instance_count, account) for name, count in types
    )
    return Machines(equal, "preferences" if preferred else "type")


def resource_config(job: TrainingJob, target: SageMaker, machines: Machines) -> JsonObject:
    optional = {
        "KeepAlivePeriodInSeconds": target.keep_alive,
        "TrainingPlanArn": target.training_plan,
    }
    return cluster_config(job, target, machines) | {
        key: value for key, value in optional.items() if value is not None
    }


def cluster_config(job: TrainingJob, target: SageMaker, machines: Machines) -> JsonObject:
    """Return `ClusterConfig` of CreateProcessingJob: the machines and the size of their disks."""
    size = job.resources.volume_size
    config: JsonObject = {
        "VolumeSizeInGB": DEFAULT_VOLUME_GIB if size is None else ceil(size / 1024**3)
    }
    if machines.kind == "groups":
        config["InstanceGroups"] = [
            {
                "InstanceGroupName": group.name,
                "InstanceType": group.instance_type,
                "InstanceCount": group.count,
            }
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
        config |= {
            "InstanceType": machines.first.instance_type,
            "InstanceCount": machines.first.count,
        }
    return (
        config
        if target.volume_kms_key is None
        else config | {"VolumeKmsKeyId": target.volume_kms_key}
    )


def _instance_type(job: TrainingJob, account: SageMakerAccount) -> str:
    resources = job.resources
    name = resources.instance_type.of("sagemaker") if resources.instance_type else None
    if name is not None:
        return name
    if resources.gpu is None:
        # one GPU for one process
        size = "xlarge" if job.distribution.type == "none" else "12xlarge"
        message = "the job does not say on which instance type it runs on SageMaker"
        hint = (
            f"add `instance_type: {{sagemaker: ml.g5.{size}}}`, or describe it: `gpu: A100-40GB`, "
        )
        hint += (
            "`gpus_per_instance: 8`, `interconnect: rdma`; `cloudtrain instances` lists the types"
        )
        raise JobError([Problem(("resources", "instance_type"), message, hint, code="CT033")])
    return instance_types.type_by_gpu("sagemaker", resources, account.overlay)


# The container image of a SageMaker job: the job's own image, or the AWS image for a framework and
# version.


class ChosenImage(NamedTuple):
    """An image's address and its catalogue entry. The entry is None for a user's own image."""

    uri: str
    entry: Image | None
    by_version: bool
    """Whether the image was chosen by framework and version. Only then does the SDK enable the
    service's metrics."""
    assumed: str | None = None
    """Settings that the job does not name and the catalogue chose, as the plan shows them."""


NO_IMAGE = ChosenImage("unknown:1", None, by_version=False)
"""A placeholder for an image that could not be chosen, with which the rest of the job is
checked."""


def image_of(job: TrainingJob, account: SageMakerAccount, machines: Machines) -> ChosenImage:
    environment = job.environment
    uri = environment.image.of("sagemaker") if environment.image else None
    if uri is not None:
        return ChosenImage(uri, image_of_uri(uri), by_version=False)
    framework = environment.framework or (
        "tensorflow" if job.distribution.type == "tensorflow" else "pytorch"
    )
    image = resolve_image(
        framework,
        environment.version,
        region=account.region,
        instance=_deciding_type(machines),
        python=environment.python,
        base=environment.base,
        smp2=isinstance(job.distribution, SMP) and job.distribution.version == 2,
        smdistributed=isinstance(job.distribution, SMDDP | SMP),
    )
    assumed = (
        None
        if environment.version
        else f"{framework} {image.version}, the newest that the catalogue has"
    )
    return ChosenImage(image.uri, image, by_version=True, assumed=assumed)


def contents_before(job: TrainingJob, _: SageMaker, account: SageMakerAccount) -> Contents:
    """Return what the job's image has; nothing is known of a user's own image. Compile reports a
    wrong image."""
    try:
        image = image_of(job, account, machines_of(job, account)).entry
    except JobError:
        image = None
    if image is None:
        return Contents(job.environment.python)
    name, version = image.engine
    python = (
        ".".join(map(str, image.python_version))
        if len(image.python_version) > 1
        else job.environment.python
    )
    packages = packages_of(image)
    return Contents(
        python, (packages or {}).get("torch", version) if name == "pytorch" else None, packages
    )


def _deciding_type(machines: Machines) -> str:
    """Return the instance type for which the image is chosen.

    With several instance groups, this is the type of the first group with GPUs, or else of the
    first group, as in the SDK (2.257.7, `EstimatorBase._get_instance_type`).
    """
    types = [group.instance_type for group in machines.groups if machines.kind == "groups"]
    return next((name for name in types if device_of(name) == "gpu"), machines.first.instance_type)


# Merge the user's `sagemaker_overrides` into the finished request.

FIELD = "sagemaker_overrides"


class _Kind(NamedTuple):
    """The request fields of one API operation that overrides must not remove or make unreadable.

    Attributes:
        needed: fields that a plan reads from its request: overrides may change them, but may not
        remove them. read: optional fields that a plan reads. machines: path of the field that holds
        instance types and counts.
    """

    needed: tuple[str, ...]
    read: tuple[str, ...]
    machines: tuple[str, ...]
    choices: tuple[str, ...]
    """Fields that name instance types; one of them is enough."""


_KINDS = {
    "CreateTrainingJob": _Kind(
        needed=(
            "AlgorithmSpecification",
            "OutputDataConfig",
            "ResourceConfig",
            "StoppingCondition",
            "TrainingJobName",
        ),
        read=("InputDataConfig",),
        machines=("ResourceConfig",),
        choices=("InstanceType", "InstanceGroups", "InstancePreferences"),
    ),
    "CreateProcessingJob": _Kind(
        needed=("ProcessingJobName", "ProcessingResources"),
        read=("ProcessingOutputConfig",),
        machines=("ProcessingResources", "ClusterConfig"),
        choices=("InstanceType", "InstancePreferences"),
    ),
}


def overridden(
    request: JsonMapping, overrides: JsonMapping, operation: str = "CreateTrainingJob"
) -> JsonObject:
    """Return the body of an operation with the user's overrides, as it will be sent."""
    if not overrides:
        return dict(request)
    result = merged(request, with_rows(request, overrides))
    problems = list(_problems(result, operation))
    if problems:
        raise JobError(problems)
    return result


def with_rows(request: JsonMapping, overrides: JsonMapping) -> JsonObject:
    """Return the overrides with whole lists of channels and tags: the overrides' rows, each merged
    into the request's row of the same name, at the places that messages name, and then the
    request's other rows."""
    whole = dict(overrides)
    for name, key in ROWS.items():
        ours, theirs = rows_by_name(request.get(name), key), rows_by_name(overrides.get(name), key)
        if ours and theirs:
            rows = merged(ours, theirs)
            whole[name] = [rows[row] for row in {**theirs, **ours}]
    return whole


def _problems(request: JsonMapping, operation: str) -> Iterator[Problem]:
    kind = _KINDS[operation]
    removed = [name for name in kind.needed if name not in request]
    for name in removed:
        yield Problem(
            (FIELD, name),
            f"`{name}` cannot be removed from the request",
            "leave it out of the overrides",
            code="CT035",
        )
    for fault in violations(request, operation):
        unreadable = fault.kind == "type" or (
            fault.kind == "missing" and fault.path[0] in (*kind.needed, *kind.read)
        )
        if unreadable and fault.path[0] not in removed:
            yield Problem((FIELD, *fault.path), fault.message, fault.hint, code="CT035")
    config = value_at(request, *kind.machines)
    if not isinstance(config, Mapping):
        return
    yield from _counts((FIELD, *kind.machines), config)
    if not any(config.get(key) for key in kind.choices):
        message = f"the overrides leave no instance type in `{kind.machines[-1]}`"
        hint = "give one of " + ", ".join(f"`{key}`" for key in kind.choices)
        yield Problem((FIELD, *kind.machines), message, hint, code="CT035")


def _counts(path: tuple[str | int, ...], config: JsonMapping) -> Iterator[Problem]:
    """Report counts above the limit of `instance_count`: typing mistakes that would make a plan
    huge."""
    rows: list[tuple[tuple[str | int, ...], Any]] = [(path, config)]
    for key in ("InstanceGroups", "InstancePreferences"):
        entries = config.get(key)
        rows += [
            ((*path, key, index), row)
            for index, row in enumerate(entries if isinstance(entries, list) else [])
        ]
    for where, row in rows:
        count = row.get("InstanceCount") if isinstance(row, Mapping) else None
        if isinstance(count, int) and count > MAX_COUNT:
            message = f"`InstanceCount` must be at most {MAX_COUNT}, not `{count}`"
            yield Problem(
                (*where, "InstanceCount"), message, f"write {MAX_COUNT} or less", code="CT035"
            )
