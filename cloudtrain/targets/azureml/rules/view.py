"""Read the finished body for the Azure ML rules, including the user's overrides.

A body with overrides may contain values of any type. These functions skip values of a wrong type, which AZ111 and
similar rules report.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cloudtrain.catalogue.machines import MachineGroup, known_type
from cloudtrain.core.per_target import overrides_of
from cloudtrain.rules.overridden import is_written
from cloudtrain.rules.reading import mapping_at, text_at
from cloudtrain.rules.subject import Subject
from cloudtrain.targets.azureml.compile.compiler import OVERRIDES
from cloudtrain.targets.azureml.compile.identifiers import is_virtual_cluster
from cloudtrain.targets.azureml.compile.machines import SERVERLESS, machines_of
from cloudtrain.targets.azureml.launch.body import Body

Path = tuple[str | int, ...]

_LIFETIME, _SPOT_LIFETIME = 21 * 86_400, 7 * 86_400
"""Seconds (Azure ML documentation, quotas: job lifetime, and job lifetime on a low-priority node)."""


def properties(subject: Subject) -> Mapping[str, Any]:
    """Return the body's `properties`, which describe the job."""
    found: Mapping[str, Any] = subject.plan.request["properties"]
    return found


def mapping(subject: Subject, *keys: str) -> Mapping[str, Any]:
    """Return the mapping at `keys` in the body's properties; empty if it is missing."""
    return mapping_at(properties(subject), *keys)


def text(subject: Subject, *keys: str) -> str:
    """Return the text at `keys` in the body's properties; empty if it is missing."""
    return text_at(properties(subject), *keys)


def body(subject: Subject) -> Body:
    """Return the body as a `Body`, whose properties read single fields."""
    return Body(subject.plan.request)


def overridden(subject: Subject, *keys: str) -> Path | None:
    """Return the path of the override that sets or removes the field `keys` of the body; None without such an
    override.
    """
    return (OVERRIDES, *keys) if is_written(overrides_of(subject.job, "azureml"), *keys) else None


def place(subject: Subject, keys: tuple[str, ...], field: Path = ()) -> Path:
    """Return the path of the setting that determines the body's field `keys`: an override, or else the job's `field`.

    `field` is empty for settings of the target, which are not part of the job.
    """
    return overridden(subject, *keys) or field


def machines(subject: Subject) -> MachineGroup:
    """Return the job's machines. On a cluster, the body has no instance type, so the type comes from the job."""
    found = MachineGroup(text(subject, "resources", "instanceType"), body(subject).instances, None)
    if found.instance_type:
        found = replace(found, known=known_type("azureml", found.instance_type, subject.account.overlay))
    elif is_on_cluster(subject):
        found = replace(machines_of(subject.job, subject.account), count=found.count)
    field = "instance_type" if subject.job.resources.instance_type else "gpu"
    asked: Path = ("resources", field) if found.instance_type else ()
    return replace(found, path=place(subject, ("resources", "instanceType"), asked))


def is_on_cluster(subject: Subject) -> bool:
    """Return whether the job runs on a cluster with its own machines; otherwise it is serverless."""
    return text(subject, "computeId").rpartition("/")[2] not in ("", SERVERLESS)


def is_on_virtual_cluster(subject: Subject) -> bool:
    """Return whether the compute is a virtual cluster, which has tiers like serverless compute."""
    return is_virtual_cluster(text(subject, "computeId"))


def is_spot(subject: Subject) -> bool:
    """Return whether the job runs on spot capacity."""
    return text(subject, "queueSettings", "jobTier").casefold() == "spot"


def lifetime(subject: Subject) -> int:
    """Return the seconds after which the service ends every job, even without a time limit."""
    return _SPOT_LIFETIME if is_spot(subject) else _LIFETIME


def count_path(subject: Subject) -> Path:
    """Return the path of the field that sets the job's number of instances."""
    return place(subject, ("resources", "instanceCount"), ("resources", "instance_count"))


def image(subject: Subject) -> str:
    """Return the image that the job's environment is made of; empty for a named environment."""
    for upload in subject.plan.uploads:
        if upload.kind == "environment" and upload.content and upload.destination == text(subject, "environmentId"):
            return text_at(json.loads(upload.content), "properties", "image")
    return ""


def environment_name(subject: Subject) -> str:
    """Return the environment's name for messages: its image, or else the name in its id, such as
    `acpt-pytorch-2.8-cuda12.6`.
    """
    parts = text(subject, "environmentId").split("/")
    named = parts[parts.index("environments") + 1] if "environments" in parts[:-1] else parts[-1]
    return image(subject) or named


def environment_path(subject: Subject) -> Path:
    """Return the path of the field that sets the job's environment."""
    given = subject.job.environment
    field = "azureml" if given.of("azureml") else "image" if given.image else "framework"
    return place(subject, ("environmentId",), ("environment", field))


def is_whole(value: Any, least: int) -> bool:
    """Return whether a value is a whole number of at least `least`; Python's `True` does not count as one."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
