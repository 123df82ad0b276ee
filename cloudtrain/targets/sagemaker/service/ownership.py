"""Whether a job of a name that we chose is ours: a tag says so, and where tags may not be read, the job itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cloudtrain.targets.common.provider_errors import Denied
from cloudtrain.targets.sagemaker.jobs import JobKind
from cloudtrain.targets.sagemaker.service.clients import Clients
from cloudtrain.targets.sagemaker.tags import RUN_TAG

_COMPARED = ("RoleArn", "HyperParameters", "OutputDataConfig", "StoppingCondition", "Environment")
"""What a description repeats of a request as it was. The hyperparameters hold the place of the bundle, which holds
its hash."""


def is_ours(
    clients: Clients, kind: JobKind, description: Mapping[str, Any], request: Mapping[str, Any] | None = None
) -> bool:
    """Whether the described job was made by a submission of that run name.

    Where its tags may not be read, it is compared with the request, if there is one. A command that mends a broken
    submission has none; the name, which holds a hash of the plan and of its submitter, must do then.
    """
    name = description[kind.name]
    try:
        pages = clients.pages("sagemaker", "list_tags", ResourceArn=description[kind.arn])
        tags = {tag["Key"]: tag["Value"] for page in pages for tag in page["Tags"]}
    except Denied:
        return request is None or _same(description, request)
    if RUN_TAG in tags:
        return bool(tags[RUN_TAG] == name)
    return request is not None and not _is_tagged(request) and _same(description, request)


def _is_tagged(request: Mapping[str, Any]) -> bool:
    """Whether the request asks for our tag; overrides can take it away."""
    return any(tag["Key"] == RUN_TAG for tag in request.get("Tags", ()))


def _same(description: Mapping[str, Any], request: Mapping[str, Any]) -> bool:
    return all(_contains(description.get(field), request[field]) for field in _COMPARED if field in request)


def _contains(described: Any, asked: Any) -> bool:
    """Whether a description repeats what was asked; the service may add defaults of its own."""
    if isinstance(asked, Mapping):
        return isinstance(described, Mapping) and all(_contains(described.get(key), asked[key]) for key in asked)
    return bool(described == asked)
