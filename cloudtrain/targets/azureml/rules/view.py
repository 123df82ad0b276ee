"""What the Azure ML rules look at: read from the finished body, so that the user's own overrides count.

A body with overrides may hold anything. These functions see what has the right type and leave the rest out; AZ111 and
its like say what is wrong with it.
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
"""Seconds (Azure ML documentation, quotas: job lifetime, and that on a low-priority node)."""


def properties(subject: Subject) -> Mapping[str, Any]:
    """What the body says about the job."""
    found: Mapping[str, Any] = subject.plan.request["properties"]
    return found


def mapping(subject: Subject, *keys: str) -> Mapping[str, Any]:
    """A structure of the body; empty where there is none."""
    return mapping_at(properties(subject), *keys)


def text(subject: Subject, *keys: str) -> str:
    """A text of the body; empty where there is none."""
    return text_at(properties(subject), *keys)


def body(subject: Subject) -> Body:
    """The parts that decide what starts."""
    return Body(subject.plan.request)


def overridden(subject: Subject, *keys: str) -> Path | None:
    """The place under `azureml_overrides` that writes this part of the body, or removes it; None for all others."""
    return (OVERRIDES, *keys) if is_written(overrides_of(subject.job, "azureml"), *keys) else None


def place(subject: Subject, keys: tuple[str, ...], field: Path = ()) -> Path:
    """Where the job says this part of the body: in its overrides, or in a field. Settings of a target have no place."""
    return overridden(subject, *keys) or field


def machines(subject: Subject) -> MachineGroup:
    """The instances of the job. A cluster has a type of its own; the job's word for it is believed."""
    found = MachineGroup(text(subject, "resources", "instanceType"), body(subject).instances, None)
    if found.instance_type:
        found = replace(found, known=known_type("azureml", found.instance_type, subject.account.overlay))
    elif is_on_cluster(subject):
        found = replace(machines_of(subject.job, subject.account), count=found.count)
    field = "instance_type" if subject.job.resources.instance_type else "gpu"
    asked: Path = ("resources", field) if found.instance_type else ()
    return replace(found, path=place(subject, ("resources", "instanceType"), asked))


def is_on_cluster(subject: Subject) -> bool:
    """Whether a compute with machines of its own runs the job; else it is serverless."""
    return text(subject, "computeId").rpartition("/")[2] not in ("", SERVERLESS)


def is_on_virtual_cluster(subject: Subject) -> bool:
    """Whether that is a virtual cluster, which has tiers as serverless compute has."""
    return is_virtual_cluster(text(subject, "computeId"))


def is_spot(subject: Subject) -> bool:
    """Whether spare capacity runs the job."""
    return text(subject, "queueSettings", "jobTier").casefold() == "spot"


def lifetime(subject: Subject) -> int:
    """Seconds after which the service ends a job, whatever its limit is."""
    return _SPOT_LIFETIME if is_spot(subject) else _LIFETIME


def count_path(subject: Subject) -> Path:
    """Where the job says how many instances it wants."""
    return place(subject, ("resources", "instanceCount"), ("resources", "instance_count"))


def image(subject: Subject) -> str:
    """The image that the job's environment is made of; empty for an environment with a name of its own."""
    for upload in subject.plan.uploads:
        if upload.kind == "environment" and upload.content and upload.destination == text(subject, "environmentId"):
            return text_at(json.loads(upload.content), "properties", "image")
    return ""


def environment_name(subject: Subject) -> str:
    """What a person calls the environment: the image, or `acpt-pytorch-2.8-cuda12.6` of an id."""
    parts = text(subject, "environmentId").split("/")
    named = parts[parts.index("environments") + 1] if "environments" in parts[:-1] else parts[-1]
    return image(subject) or named


def environment_path(subject: Subject) -> Path:
    """Where the job names its environment."""
    given = subject.job.environment
    field = "azureml" if given.of("azureml") else "image" if given.image else "framework"
    return place(subject, ("environmentId",), ("environment", field))


def is_whole(value: Any, least: int) -> bool:
    """Whether it is a whole number of at least that; `true` is none, although Python thinks so."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
