"""What the user adds to a request by hand, merged last."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cloudtrain.catalogue.shapes import violations
from cloudtrain.compile.common import merged
from cloudtrain.errors import JobError, Problem

FIELD = "sagemaker_overrides"

_NEEDED = ("AlgorithmSpecification", "OutputDataConfig", "ResourceConfig", "StoppingCondition")
"""What a plan reads of its request: it can be changed, and not be taken away."""

_READ = (*_NEEDED, "InputDataConfig")


def overridden(request: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The request that is sent.

    Raises:
        JobError: the overrides leave something that cannot be read as a request; what the service would refuse is
            left to the checks.
    """
    if not overrides:
        return dict(request)
    result = merged(request, overrides)
    problems = list(_problems(result))
    if problems:
        raise JobError(problems)
    return result


def _problems(request: Mapping[str, Any]) -> Iterator[Problem]:
    removed = [name for name in _NEEDED if name not in request]
    for name in removed:
        yield Problem((FIELD, name), f"`{name}` cannot be removed from the request", "leave it out of the overrides")
    for fault in violations(request):
        unreadable = fault.kind == "type" or (fault.kind == "missing" and fault.path[0] in _READ)
        if unreadable and fault.path[0] not in removed:
            yield Problem((FIELD, *fault.path), fault.message, fault.hint)
    config = request.get("ResourceConfig")
    if isinstance(config, Mapping) and not any(config.get(key) for key in _MACHINES):
        message = "the overrides leave no instance type in `ResourceConfig`"
        yield Problem((FIELD, "ResourceConfig"), message, "give one of " + ", ".join(f"`{key}`" for key in _MACHINES))


_MACHINES = ("InstanceType", "InstanceGroups", "InstancePreferences")
