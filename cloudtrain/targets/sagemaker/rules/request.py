"""Rules about the whole request: fields that the service's API model forbids, and overrides that break a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from cloudtrain.core.per_target import overrides_of
from cloudtrain.core.plan import Level
from cloudtrain.rules.reading import value_at
from cloudtrain.rules.rule import Fault, Subject, rule
from cloudtrain.targets.sagemaker.catalogue.shapes import Violation, violations
from cloudtrain.targets.sagemaker.rules.view import Path, image_path, mappings
from cloudtrain.targets.sagemaker.tags import RUN_TAG

_NAMES = {"CreateTrainingJob": "TrainingJobName", "CreateProcessingJob": "ProcessingJobName"}
"""Maps each operation to the field with the job's name."""


@rule("SM110", Level.ERROR)
def refused_by_service(subject: Subject) -> Iterator[Fault]:
    """The service would refuse a part of the request.

    This rule checks the request against botocore's model of CreateTrainingJob: unknown and missing fields, types,
    lengths and counts, patterns, and enums. The SDKs and boto3 do not check maxima, patterns and enums, so the job
    would fail after the upload of its code. Other rules check instance types and the role.
    """
    operation = _operation(subject)
    for violation in violations(subject.plan.request, operation):
        if not _has_rule_of_its_own(violation, operation):
            yield Fault(violation.message, violation.hint, _place(subject, violation))


@rule("SM111", Level.ERROR)
def identity_overridden(subject: Subject) -> Iterator[Fault]:
    """`sagemaker_overrides` change the job's name or remove its tag.

    cloudtrain finds its job by this name and this tag. Without them, it could submit a job twice after an interruption,
    and you could not follow, stop or download the run.
    """
    name, field = subject.plan.run_name, _NAMES[_operation(subject)]
    written = subject.plan.request.get(field)
    if written != name:
        yield Fault(
            f"the overrides name the job `{written}`, and cloudtrain would look for `{name}`",
            f"remove `{field}` from `sagemaker_overrides`; a job's `name` begins the name of its runs",
            ("sagemaker_overrides", field),
        )
    if {"Key": RUN_TAG, "Value": name} not in mappings(subject, "Tags"):
        yield Fault(
            f"the overrides remove the tag `{RUN_TAG}`, by which cloudtrain recognises its own job",
            "move the tags of `sagemaker_overrides` to `tags`",
            ("sagemaker_overrides", "Tags"),
        )


@rule("SM112", Level.ERROR)
def reserved_tag(subject: Subject) -> Iterator[Fault]:
    """The key of a tag is reserved or repeated.

    AWS refuses keys that begin with `aws:`. cloudtrain uses the key `cloudtrain:run` for the run's name. Each key may
    appear only once.
    """
    for key in subject.job.tags:
        if key == RUN_TAG:
            yield Fault(f"the tag `{key}` is cloudtrain's own", "remove it, or use another key", ("tags", key))
    keys = [str(tag.get("Key")) for tag in mappings(subject, "Tags")]
    for key in dict.fromkeys(keys):
        path = ("tags", key) if key in subject.job.tags else ("sagemaker_overrides", "Tags")
        if key.lower().startswith("aws:"):
            yield Fault(f"the tag `{key}` begins with `aws:`, which AWS refuses", f"write `{key[4:] or 'team'}`", path)
        if keys.count(key) > 1:
            yield Fault(f"the tag `{key}` comes {keys.count(key)} times", "remove all but one", path)


@rule("SM113", Level.NOTICE)
def without_effect(subject: Subject) -> Iterator[Fault]:
    """A field of the job has no effect on SageMaker.

    CreateTrainingJob has no field for the size of `/dev/shm`, because SageMaker itself decides how much of the
    instance's memory is shared memory. The API also has no field for a description, which stays in the job file.
    """
    if subject.job.resources.shm_size is not None:
        message = "SageMaker decides the size of `/dev/shm`, so `shm_size` is not sent"
        yield Fault(message, "use fewer or smaller data loader workers if it is too small", ("resources", "shm_size"))


def _operation(subject: Subject) -> str:
    return "CreateTrainingJob" if subject.processing is None else "CreateProcessingJob"


def _has_rule_of_its_own(violation: Violation, operation: str) -> bool:
    """Return whether another rule reports the violation.

    SM102 reports roles, SM701 networks, and SM201 the instance types of training jobs.
    """
    if violation.path == ("RoleArn",) or (violation.path[0] == "VpcConfig" and violation.kind in ("min", "missing")):
        return True
    on_machines = violation.path[0] == "ResourceConfig" and violation.path[-1] == "InstanceType"
    return operation == "CreateTrainingJob" and on_machines and violation.kind == "enum"


def _place(subject: Subject, violation: Violation) -> Path:
    """Return the path of the job field that caused a violation; empty if the target's settings caused it."""
    path = violation.path
    written = _in_overrides(overrides_of(subject.job, "sagemaker"), path)
    if not written and violation.kind == "missing":  # a missing field is reported at its own place
        written = _in_overrides(overrides_of(subject.job, "sagemaker"), path[:-1])
    if written:
        return ("sagemaker_overrides", *written)
    for start, place in _PLACES.items():
        if path[: len(start)] == start:
            return place(subject, path[len(start) :])
    return ()


def _in_overrides(overrides: Mapping[str, Any], path: Path) -> Path:
    """Return `path`, or the shorter path of a value that the overrides set around it; empty if they do not set it."""
    value: Any = overrides
    for length, key in enumerate(path):
        if not isinstance(value, Mapping):
            return path if isinstance(value, list) else path[:length]
        if key not in value:
            return ()
        value = value[key]
    return path


_PlaceOf = Callable[[Subject, Path], Path]
"""Turns the rest of a request's path into the path of a job field."""


def _by_name(field: tuple[str, ...], section: tuple[str, ...], key: str) -> _PlaceOf:
    """Return a function that maps a path in the request's list `section`, such as `Tags`, to the path of a job field.

    `key` is the key of an element's name. If the job's mapping `field` contains this name, the path is `field` followed
    by the name; otherwise it is `field`.
    """

    def place(subject: Subject, rest: Path) -> Path:
        elements = value_at(subject.plan.request, *section)
        if not rest or not isinstance(elements, list) or not isinstance(rest[0], int):
            return field
        name = elements[rest[0]].get(key) if isinstance(elements[rest[0]], Mapping) else None
        known = value_at(subject.job.model_dump(include={field[0]}), *field)
        return (*field, name) if isinstance(name, str) and name in (known or ()) else field

    return place


def _always(*field: str) -> _PlaceOf:
    return lambda _subject, _rest: field


def _hyperparameter(subject: Subject, rest: Path) -> Path:
    """Return the path of the job field that sets a hyperparameter: `hyperparameters.NAME` or `distribution`."""
    if rest and rest[0] not in subject.job.hyperparameters:
        return ("distribution",)
    return ("hyperparameters", *rest[:1])


def _variable(_subject: Subject, rest: Path) -> Path:
    return ("environment", "variables", *rest[:1])


_PLACES: dict[tuple[str, ...], _PlaceOf] = {
    ("HyperParameters",): _hyperparameter,
    ("Environment",): _variable,
    ("Tags",): _by_name(("tags",), ("Tags",), "Key"),
    ("AlgorithmSpecification", "MetricDefinitions"): _by_name(
        ("metrics",), ("AlgorithmSpecification", "MetricDefinitions"), "Name"
    ),
    ("AlgorithmSpecification", "TrainingImage"): lambda subject, _rest: image_path(subject),
    ("InputDataConfig",): _by_name(("inputs",), ("InputDataConfig",), "ChannelName"),
    ("CheckpointConfig",): _always("checkpoint", "sagemaker"),
    ("ResourceConfig", "InstanceGroups"): _always("resources", "instance_groups"),
    ("ResourceConfig", "InstancePreferences"): _always("resources", "instance_preferences"),
    ("ResourceConfig", "InstanceCount"): _always("resources", "instance_count"),
    ("ResourceConfig", "VolumeSizeInGB"): _always("resources", "volume_size"),
    ("StoppingCondition", "MaxRuntimeInSeconds"): _always("max_runtime"),
    ("StoppingCondition", "MaxWaitTimeInSeconds"): _always("spot", "max_wait"),
    ("TrainingJobName",): _always("name"),
}
"""Maps the beginning of a path in the request to the job field from which it is written."""
