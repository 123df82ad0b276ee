"""Check whether cloudtrain created a job: by the job's tag, or by the job's fields if the tags cannot be read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cloudtrain.targets.common.provider_errors import Denied
from cloudtrain.targets.sagemaker.jobs import JobKind
from cloudtrain.targets.sagemaker.service.clients import Clients
from cloudtrain.targets.sagemaker.tags import RUN_TAG

_COMPARED = ("RoleArn", "HyperParameters", "OutputDataConfig", "StoppingCondition", "Environment")
"""Fields that a description repeats unchanged from the request.

The hyperparameters contain the bundle's address, which contains its hash.
"""


def is_ours(
    clients: Clients, kind: JobKind, description: Mapping[str, Any], request: Mapping[str, Any] | None = None
) -> bool:
    """Return whether cloudtrain created the described job for this run. The job's tag tells this.

    If permission to read tags is missing, or if `request` sets no tag, the job is compared with `request`. Without both
    permission and `request`, the result is True, because the job's name contains a hash of plan and submitter.
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
    """Return whether the request sets cloudtrain's tag, which overrides can remove."""
    return any(tag["Key"] == RUN_TAG for tag in request.get("Tags", ()))


def _same(description: Mapping[str, Any], request: Mapping[str, Any]) -> bool:
    return all(_contains(description.get(field), request[field]) for field in _COMPARED if field in request)


def _contains(described: Any, asked: Any) -> bool:
    """Return whether a job description contains all requested values. It may contain more, such as defaults."""
    if isinstance(asked, Mapping):
        return isinstance(described, Mapping) and all(_contains(described.get(key), asked[key]) for key in asked)
    return bool(described == asked)
