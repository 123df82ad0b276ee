"""The machines of a SageMaker job: from an instance type, preferred types, instance groups, or a
wanted GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from cloudtrain.errors import JobError, Problem, ValuePath
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
from cloudtrain.targets.sagemaker.fields import (
    ALGORITHM,
    CHANNELS,
    CLUSTER,
    LIMITS,
    MACHINES,
    NAME,
    OUTPUT,
)
from cloudtrain.targets.sagemaker.reading import machine_group
from cloudtrain.targets.sagemaker.request import ROWS, JsonMapping, JsonObject, rows_by_name
from cloudtrain.targets.sagemaker.settings import SageMaker, SageMakerAccount

DEFAULT_VOLUME_GIB = 30
"""Default disk size of each instance in GiB: the SDK's default."""


def machines_of(job: TrainingJob, account: SageMakerAccount) -> Machines:
    """Return the machines that the job asks for. Raises a `JobError` if it names neither a type nor
    a GPU, or no type fits."""
    resources = job.resources
    if resources.instance_groups:
        groups = [
            machine_group(group.instance_type, group.instance_count, account, group.name)
            for group in resources.instance_groups
        ]
        spans: tuple[str, ...] = ()
        if job.distribution.type != "none":
            spans = resources.distribution_groups or tuple(group.name for group in groups)
        return Machines(tuple(groups), "groups", spans)

    if resources.instance_preferences:
        preferred = [
            machine_group(
                row.instance_type, row.instance_count or resources.instance_count, account
            )
            for row in resources.instance_preferences
        ]
        return Machines(tuple(preferred), "preferences")

    return Machines(
        (machine_group(_instance_type(job, account), resources.instance_count, account),), "type"
    )


def machine_values(job: TrainingJob, machines: Machines) -> JsonObject:
    """Return the values of the request's fields of machines, and of the size of their disks."""
    values: JsonObject = {
        "resources.volume_size": job.resources.volume_size or f"{DEFAULT_VOLUME_GIB}g",
        "resources.instance_type": None,
        "resources.instance_count": None,
        "resources.instance_preferences": None,
    }
    if machines.kind == "preferences":
        values["resources.instance_preferences"] = [
            {
                "instance_type": group.instance_type,
                "instance_count": group.count,
                "training_plan": row.training_plan,
            }
            for group, row in zip(machines.groups, job.resources.instance_preferences, strict=True)
        ]
    elif machines.kind == "type":
        values["resources.instance_type"] = machines.first.instance_type
        values["resources.instance_count"] = machines.first.count
    return values


def _instance_type(job: TrainingJob, account: SageMakerAccount) -> str:
    """Return the instance type that the job names, or the one chosen for its GPU."""
    resources = job.resources
    if resources.instance_type is not None:
        name = resources.instance_type.of("sagemaker")
        if name is not None:
            return name

    if resources.gpu is None:
        # the example has one GPU for one process, and several for several
        size = "xlarge" if job.distribution.type == "none" else "12xlarge"
        hint = (
            f"add `instance_type: {{sagemaker: ml.g5.{size}}}`, or describe it: `gpu: A100-40GB`, "
            "`gpus_per_instance: 8`, `interconnect: rdma`; `cloudtrain instances` lists the types"
        )
        raise JobError(
            [
                Problem(
                    ("resources", "instance_type"),
                    "the job does not say on which instance type it runs on SageMaker",
                    hint,
                    code="CT033",
                )
            ]
        )
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
    """Return the image that the job names, or AWS's image of its framework. Raises a `JobError` if
    AWS has none that fits."""
    environment = job.environment
    uri = environment.image.of("sagemaker") if environment.image else None
    if uri is not None:
        return ChosenImage(uri, image_of_uri(uri), by_version=False)

    framework = environment.framework
    if framework is None:
        framework = "tensorflow" if job.distribution.type == "tensorflow" else "pytorch"
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
    assumed = None
    if not environment.version:
        assumed = f"{framework} {image.version}, the newest that the catalogue has"
    return ChosenImage(image.uri, image, by_version=True, assumed=assumed)


def contents_before(job: TrainingJob, _: SageMaker, account: SageMakerAccount) -> Contents:
    """Return what the job's image has; nothing is known of a user's own image. Compile reports a
    wrong image."""
    try:
        image = image_of(job, account, machines_of(job, account)).entry
    except JobError:
        image = None
    python = job.environment.python
    if image is None:
        return Contents(python)

    if len(image.python_version) > 1:
        python = ".".join(map(str, image.python_version))
    packages = packages_of(image)
    framework, torch = image.engine
    if framework != "pytorch":
        return Contents(python, None, {framework: torch}, packages)
    return Contents(python, (packages or {}).get("torch", torch), packages=packages)


def _deciding_type(machines: Machines) -> str:
    """Return the instance type for which the image is chosen.

    With several instance groups, this is the type of the first group with GPUs, or else of the
    first group, as in the SDK (2.257.7, `EstimatorBase._get_instance_type`).
    """
    if machines.kind == "groups":
        for group in machines.groups:
            if device_of(group.instance_type) == "gpu":
                return group.instance_type
    return machines.first.instance_type


# Merge the user's `sagemaker_overrides` into the finished request.

FIELD = "sagemaker_overrides"


class _OperationFields(NamedTuple):
    """The request fields of one API operation that overrides must not remove or make unreadable."""

    needed: tuple[str, ...]
    """Fields that a plan reads from its request: overrides may change them, but may not remove
    them."""
    read: tuple[str, ...]
    """Optional fields that a plan reads."""
    machines: tuple[str, ...]
    """The path of the field that holds instance types and counts."""
    choices: tuple[str, ...]
    """Fields that name instance types; one of them is enough."""


_FIELDS_OF = {
    "CreateTrainingJob": _OperationFields(
        needed=(ALGORITHM, OUTPUT, MACHINES, LIMITS, NAME),
        read=(CHANNELS,),
        machines=(MACHINES,),
        choices=("InstanceType", "InstanceGroups", "InstancePreferences"),
    ),
    "CreateProcessingJob": _OperationFields(
        needed=("ProcessingJobName", CLUSTER[0]),
        read=("ProcessingOutputConfig",),
        machines=CLUSTER,
        choices=("InstanceType", "InstancePreferences"),
    ),
}


def overridden(
    request: JsonMapping, overrides: JsonMapping, operation: str = "CreateTrainingJob"
) -> JsonObject:
    """Return the body of an operation with the user's overrides, as it will be sent. Raises a
    `JobError` if the overrides leave no request that cloudtrain can read."""
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
    result = dict(overrides)
    for field, key in ROWS.items():
        ours = rows_by_name(request.get(field), key)
        theirs = rows_by_name(overrides.get(field), key)
        if ours and theirs:
            rows = merged(ours, theirs)
            result[field] = [rows[name] for name in {**theirs, **ours}]
    return result


def _problems(request: JsonMapping, operation: str) -> Iterator[Problem]:
    """Yield why cloudtrain cannot read a request with overrides: fields that it needs were removed
    or have a wrong type, or no instance type is left."""
    fields = _FIELDS_OF[operation]
    removed = [name for name in fields.needed if name not in request]
    for name in removed:
        message = f"`{name}` cannot be removed from the request"
        yield Problem((FIELD, name), message, "leave it out of the overrides", code="CT035")

    fields_read = (*fields.needed, *fields.read)
    for fault in violations(request, operation):
        section = fault.path[0]
        lacks_part = fault.kind == "missing" and section in fields_read
        is_unreadable = fault.kind == "type" or lacks_part
        if is_unreadable and section not in removed:
            path = (FIELD, *fault.path)
            yield Problem(path, fault.message, fault.hint, code="CT035")

    config = value_at(request, *fields.machines)
    if not isinstance(config, Mapping):
        return
    yield from _count_problems((FIELD, *fields.machines), config)
    if not any(map(config.get, fields.choices)):
        message = f"the overrides leave no instance type in `{fields.machines[-1]}`"
        yield Problem((FIELD, *fields.machines), message, "give an `InstanceType`", code="CT035")


def _count_problems(path: ValuePath, config: JsonMapping) -> Iterator[Problem]:
    """Report counts above the limit of `instance_count`: typing mistakes that would make a plan
    huge."""
    rows: list[tuple[ValuePath, Any]] = [(path, config)]
    for key in ("InstanceGroups", "InstancePreferences"):
        entries = config.get(key)
        if isinstance(entries, list):
            for index, row in enumerate(entries):
                rows.append(((*path, key, index), row))

    for where, row in rows:
        count = row.get("InstanceCount") if isinstance(row, Mapping) else None
        if isinstance(count, int) and count > MAX_COUNT:
            message = f"`InstanceCount` must be at most {MAX_COUNT}, not `{count}`"
            hint = f"write {MAX_COUNT} or less"
            yield Problem((*where, "InstanceCount"), message, hint, code="CT035")
