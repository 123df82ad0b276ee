"""What the Azure ML rules look at: read from the finished body, so that the user's own overrides count.

A body with overrides may hold anything. These functions see what has the right type and leave the rest out; AZ111 and
its like say what is wrong with it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cloudtrain.catalogue.instances import InstanceType
from cloudtrain.checks.rule import Subject
from cloudtrain.compile.azureml.compiler import OVERRIDES
from cloudtrain.compile.azureml.machines import SERVERLESS, machines_of
from cloudtrain.compile.instance_types import known_type
from cloudtrain.launch.azureml.body import Body

Path = tuple[str | int, ...]

_NOTHING = object()


def properties(subject: Subject) -> Mapping[str, Any]:
    """What the body says about the job."""
    found: Mapping[str, Any] = subject.plan.request["properties"]
    return found


def at(value: Any, *keys: str, default: Any = None) -> Any:
    """What lies at that way into nested mappings; the default where it ends early."""
    for key in keys:
        if not isinstance(value, Mapping) or key not in value:
            return default
        value = value[key]
    return value


def mapping(subject: Subject, *keys: str) -> Mapping[str, Any]:
    """A structure of the body; empty where there is none."""
    value = at(properties(subject), *keys)
    return value if isinstance(value, Mapping) else {}


def text(subject: Subject, *keys: str) -> str:
    """A text of the body; empty where there is none."""
    value = at(properties(subject), *keys)
    return value if isinstance(value, str) else ""


def body(subject: Subject) -> Body:
    """The parts that decide what starts."""
    return Body(subject.plan.request)


def overridden(subject: Subject, *keys: str) -> Path | None:
    """The place under `azureml_overrides` that writes this part of the body, or removes it; None for all others."""
    written: Any = subject.job.azureml_overrides
    return (OVERRIDES, *keys) if at(written, *keys, default=_NOTHING) is not _NOTHING else None


def place(subject: Subject, keys: tuple[str, ...], field: Path = ()) -> Path:
    """Where the job says this part of the body: in its overrides, or in a field. Settings of a target have no place."""
    return overridden(subject, *keys) or field


@dataclass(frozen=True)
class Machines:
    """The instances of a body, all equal, and the place in the job that asks for them."""

    count: int
    name: str | None
    """None where the job leaves the type to the cluster, or to the service."""
    known: InstanceType | None
    """The catalogue's row."""
    on_cluster: bool
    path: Path

    @property
    def gpus(self) -> int | None:
        """Of each instance; None where nobody knows."""
        return self.known.gpus if self.known else None

    @property
    def counted(self) -> str:
        """`4 instances`."""
        return "1 instance" if self.count == 1 else f"{self.count:,} instances"


def machines(subject: Subject) -> Machines:
    """The instances of the job. A cluster has a type of its own; the job's word for it is believed."""
    count, on_cluster = body(subject).instances, is_on_cluster(subject)
    name: str | None = text(subject, "resources", "instanceType")
    if on_cluster and not name:
        asked = machines_of(subject.job, subject.target, subject.account)
        name, known = asked.instance_type, asked.known
    else:
        known = known_type("azureml", name, subject.account.overlay) if name else None
    field = "instance_type" if subject.job.resources.instance_type else "gpu"
    path = place(subject, ("resources", "instanceType"), ("resources", field) if name else ())
    return Machines(count, name or None, known, on_cluster, path)


def is_on_cluster(subject: Subject) -> bool:
    """Whether a compute of the workspace runs the job; else it is serverless."""
    return text(subject, "computeId").rpartition("/")[2] not in ("", SERVERLESS)


def is_spot(subject: Subject) -> bool:
    """Whether spare capacity runs the job."""
    return text(subject, "queueSettings", "jobTier").casefold() == "spot"


def count_path(subject: Subject) -> Path:
    """Where the job says how many instances it wants."""
    return place(subject, ("resources", "instanceCount"), ("resources", "instance_count"))


def works_together(subject: Subject) -> bool:
    """Whether the processes talk to each other all the time: not those of processing jobs, and not without a
    distribution. Workers talk to parameter servers over TCP, whatever network there is."""
    if subject.processing is not None or body(subject).parameter_servers:
        return False
    return bool(body(subject).kind)


def one_per_gpu(subject: Subject) -> bool:
    """Whether each process is meant to use one GPU. A process of TensorFlow's takes all; DeepSpeed's own launcher
    starts more by itself."""
    from cloudtrain.compile.azureml.distributions import is_launcher

    return body(subject).kind in ("PyTorch", "Mpi") and not is_launcher(subject.job) and subject.processing is None


def image(subject: Subject) -> str:
    """The image that the job's environment is made of; empty for an environment with a name of its own."""
    for upload in subject.plan.uploads:
        if upload.kind == "environment" and upload.content and upload.destination == text(subject, "environmentId"):
            return str(at(json.loads(upload.content), "properties", "image", default=""))
    return ""


def environment_name(subject: Subject) -> str:
    """What a person calls the environment: the image, or `acpt-pytorch-2.8-cuda12.6` of an id."""
    parts = text(subject, "environmentId").split("/")
    named = parts[parts.index("environments") + 1] if "environments" in parts[:-1] else parts[-1]
    return image(subject) or named


def environment_path(subject: Subject) -> Path:
    """Where the job names its environment."""
    given = subject.job.environment
    field = "azureml" if given.azureml else "image" if given.image else "framework"
    return place(subject, ("environmentId",), ("environment", field))


def is_whole(value: Any, least: int) -> bool:
    """Whether it is a whole number of at least that; `true` is none, although Python thinks so."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def plural(number: int, one: str) -> str:
    """`1 GPU`, `8 GPUs`; `processes` of `process`."""
    return f"{number:,} {one}" if number == 1 else f"{number:,} {one}{'es' if one.endswith('s') else 's'}"
