"""Merge the user's `sagemaker_overrides` into the finished request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from cloudtrain.core.merging import merged
from cloudtrain.core.units import MAX_COUNT
from cloudtrain.errors import JobError, Problem
from cloudtrain.targets.sagemaker.catalogue.shapes import violations

FIELD = "sagemaker_overrides"

_NEEDED = ("AlgorithmSpecification", "OutputDataConfig", "ResourceConfig", "StoppingCondition", "TrainingJobName")
"""Fields that a plan reads from its request: overrides may change them, but may not remove them."""


class _Kind(NamedTuple):
    """The request fields of one API operation that overrides must not remove or make unreadable.

    Attributes:
        needed: fields that overrides must not remove.
        read: optional fields that a plan reads.
        machines: path of the field that holds instance types and counts.
    """

    needed: tuple[str, ...]
    read: tuple[str, ...]
    machines: tuple[str, ...]
    choices: tuple[str, ...]
    """Fields that name instance types; one of them is enough."""


_KINDS = {
    "CreateTrainingJob": _Kind(
        needed=_NEEDED,
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
    request: Mapping[str, Any], overrides: Mapping[str, Any], operation: str = "CreateTrainingJob"
) -> dict[str, Any]:
    """Return the request with the overrides, as it will be sent.

    Args:
        request: the compiled job, as the body of `operation`.
        overrides: fields to merge into the request.
        operation: `CreateTrainingJob` or `CreateProcessingJob`.

    Raises:
        JobError: the result cannot be read as a request. Invalid values that can be read are left to SM110.
    """
    if not overrides:
        return dict(request)
    result = merged(request, overrides)
    problems = list(_problems(result, operation))
    if problems:
        raise JobError(problems)
    return result


def _problems(request: Mapping[str, Any], operation: str) -> Iterator[Problem]:
    kind = _KINDS[operation]
    removed = [name for name in kind.needed if name not in request]
    for name in removed:
        yield Problem(
            (FIELD, name), f"`{name}` cannot be removed from the request", "leave it out of the overrides", code="CT035"
        )
    for fault in violations(request, operation):
        unreadable = fault.kind == "type" or (fault.kind == "missing" and fault.path[0] in (*kind.needed, *kind.read))
        if unreadable and fault.path[0] not in removed:
            yield Problem((FIELD, *fault.path), fault.message, fault.hint, code="CT035")
    config: Any = request
    for name in kind.machines:
        config = config.get(name) if isinstance(config, Mapping) else None
    if isinstance(config, Mapping):
        yield from _counts((FIELD, *kind.machines), config)
    if isinstance(config, Mapping) and not any(config.get(key) for key in kind.choices):
        message = f"the overrides leave no instance type in `{kind.machines[-1]}`"
        hint = "give one of " + ", ".join(f"`{key}`" for key in kind.choices)
        yield Problem((FIELD, *kind.machines), message, hint, code="CT035")


def _counts(path: tuple[str | int, ...], config: Mapping[str, Any]) -> Iterator[Problem]:
    """Report instance counts above the limit of the job's own field `instance_count`.

    Such counts are typing mistakes, and would make a plan huge because it lists every instance.
    """
    rows: list[tuple[tuple[str | int, ...], Any]] = [(path, config)]
    for key in ("InstanceGroups", "InstancePreferences"):
        found = config.get(key)
        rows += [((*path, key, index), row) for index, row in enumerate(found if isinstance(found, list) else [])]
    for where, row in rows:
        count = row.get("InstanceCount") if isinstance(row, Mapping) else None
        if isinstance(count, int) and count > MAX_COUNT:
            message = f"`InstanceCount` must be at most {MAX_COUNT}, not `{count}`"
            yield Problem((*where, "InstanceCount"), message, f"write {MAX_COUNT} or less", code="CT035")
