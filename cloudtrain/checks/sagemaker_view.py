"""What the SageMaker rules look at: read from the finished request, so that the user's own overrides count.

A request with overrides may hold anything. These functions see what has the right type and leave the rest out; SM110
says what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from cloudtrain.catalogue.images import Image, image_of_uri
from cloudtrain.catalogue.instances import InstanceType
from cloudtrain.checks.rule import Subject
from cloudtrain.compile.sagemaker.machines import DEFAULT_GROUP, Group, known_type
from cloudtrain.distribution import SMDDP, SMP, DeepSpeed
from cloudtrain.job import TrainingJob
from cloudtrain.launch.sagemaker.keys import PROGRAM
from cloudtrain.runtime.sagemaker_launcher import CONTAINER_ENTRYPOINT, LAUNCH_KEY

Path = tuple[str | int, ...]
Mode = Literal["toolkit", "entrypoint", "image"]
Toolkit = Literal["pytorch", "tensorflow", "generic"]

TRAINING_MODULE = "SAGEMAKER_TRAINING_MODULE"
"""The variable that makes the toolkit hand over to a framework's own one."""


@dataclass(frozen=True)
class Entry:
    """Equal instances, and the place in the job that asks for them."""

    group: Group
    path: Path

    @property
    def known(self) -> InstanceType | None:
        """The catalogue's row."""
        return self.group.known

    @property
    def device(self) -> str | None:
        """`gpu`, `neuron` or `cpu`; None for a type that the catalogue does not have."""
        if self.known is None:
            return None
        return "gpu" if self.known.gpus else "neuron" if self.known.neuron_cores else "cpu"


@dataclass(frozen=True)
class Cluster:
    """The instances of a request."""

    entries: tuple[Entry, ...]
    """The one type, or each group, or each preference."""
    kind: Literal["type", "groups", "preferences"]
    spans: tuple[str, ...] = ()
    """Names of the groups that the distribution spans; empty where it spans all, or there are no groups."""

    @property
    def spanned(self) -> tuple[Entry, ...]:
        """The entries that the distribution spans; of preferences all, because any may be taken."""
        return tuple(entry for entry in self.entries if not self.spans or entry.group.name in self.spans)

    @property
    def spanned_instances(self) -> int:
        """Instances that work together."""
        counts = [entry.group.count for entry in self.spanned]
        return max(counts, default=0) if self.kind == "preferences" else sum(counts)


def part(value: Any, *keys: str) -> Any:
    """What lies at that way into nested mappings; None where it ends early."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def mapping(subject: Subject, *keys: str) -> Mapping[str, Any]:
    """A structure of the request; empty where there is none."""
    value = part(subject.plan.request, *keys)
    return value if isinstance(value, Mapping) else {}


def mappings(subject: Subject, *keys: str) -> list[Mapping[str, Any]]:
    """A list of structures of the request; empty where there is none."""
    value = part(subject.plan.request, *keys)
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list | tuple) else []


def text(subject: Subject, *keys: str) -> str:
    """A text of the request; empty where there is none."""
    value = part(subject.plan.request, *keys)
    return value if isinstance(value, str) else ""


def seconds(subject: Subject, name: str) -> int | None:
    """A time of `StoppingCondition` or `ResourceConfig`."""
    for section in ("StoppingCondition", "ResourceConfig"):
        value = part(subject.plan.request, section, name)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None


def overridden(subject: Subject, *keys: str) -> Path | None:
    """The place under `sagemaker_overrides` that writes this part of the request, if the job has one."""
    return ("sagemaker_overrides", *keys) if part(subject.job.sagemaker_overrides, *keys) is not None else None


def cluster(subject: Subject) -> Cluster:
    """The instances of the request."""
    if groups := mappings(subject, *_config(subject), "InstanceGroups"):
        spans = subject.job.resources.distribution_groups
        return Cluster(tuple(_entries(subject, groups, "instance_groups")), "groups", spans)
    if preferences := mappings(subject, *_config(subject), "InstancePreferences"):
        return Cluster(tuple(_entries(subject, preferences, "instance_preferences")), "preferences")
    return Cluster(tuple(_entries(subject, [mapping(subject, *_config(subject))], "instance_type")), "type")


def _config(subject: Subject) -> tuple[str, ...]:
    """Where the request has its machines; each kind of job has a place of its own."""
    return ("ResourceConfig",) if subject.processing is None else ("ProcessingResources", "ClusterConfig")


def _entries(subject: Subject, found: Sequence[Mapping[str, Any]], field: str) -> Iterator[Entry]:
    for index, item in enumerate(found):
        name, count = item.get("InstanceType"), item.get("InstanceCount")
        if count is None:
            count = mapping(subject, *_config(subject)).get("InstanceCount")
        if isinstance(name, str) and isinstance(count, int):
            group = item.get("InstanceGroupName")
            known = known_type(name, subject.account)
            yield Entry(Group(str(group or DEFAULT_GROUP), name, count, known), _type_path(subject, field, index))


def _type_path(subject: Subject, field: str, index: int) -> Path:
    written = {"instance_groups": "InstanceGroups", "instance_preferences": "InstancePreferences"}
    if path := overridden(subject, *_config(subject), written.get(field, "InstanceType")):
        return path if field == "instance_type" else (*path, index, "InstanceType")
    if field == "instance_groups":
        return ("resources", field, index, "instance_type")
    if field == "instance_preferences":
        return ("resources", field, index)
    return ("resources", "instance_type" if subject.job.resources.instance_type else "gpu")


def mode(subject: Subject) -> Mode:
    """Who starts the processes: see `cloudtrain.compile.sagemaker.modes`."""
    entrypoint = part(subject.plan.request, "AlgorithmSpecification", "ContainerEntrypoint")
    parameters = mapping(subject, "HyperParameters")
    if LAUNCH_KEY in parameters and entrypoint == list(CONTAINER_ENTRYPOINT):
        return "entrypoint"
    return "toolkit" if entrypoint is None and PROGRAM in parameters else "image"


def image(subject: Subject) -> Image | None:
    """What the catalogue knows of the image; None for a user's own."""
    return _image_of(text(subject, "AlgorithmSpecification", "TrainingImage"))


_image_of = lru_cache(maxsize=8)(image_of_uri)  # many rules ask, of the same image


def image_path(subject: Subject) -> Path:
    """Where the job names its image, or the version that led to it."""
    if path := overridden(subject, "AlgorithmSpecification", "TrainingImage"):
        return path
    environment = subject.job.environment
    field = "image" if environment.image else "version" if environment.version else None
    return ("environment", field) if field else ()


def image_name(found: Image) -> str:
    """`PyTorch 2.8.0`, for a person."""
    title = {"pytorch": "PyTorch", "tensorflow": "TensorFlow", "huggingface": "Hugging Face"}[found.framework]
    return f"{title} {found.version}"


def toolkit(subject: Subject) -> Toolkit:
    """The training toolkit that will read the request. A user's own image says it with a variable, or has the
    generic one, which knows MPI and one process."""
    module = mapping(subject, "Environment").get(TRAINING_MODULE)
    if isinstance(module, str):
        return "pytorch" if "pytorch" in module else "tensorflow" if "tensorflow" in module else "generic"
    found = image(subject)
    if found is None or found.engine[0] not in ("pytorch", "tensorflow"):
        return "generic"
    return "pytorch" if found.engine[0] == "pytorch" else "tensorflow"


def launcher(job: TrainingJob) -> str:
    """What starts the ranks: `torchrun`, `mpirun`, `tensorflow` or `none`."""
    distribution = job.distribution
    if isinstance(distribution, DeepSpeed):
        return "mpirun" if distribution.launch == "mpi" else "torchrun"
    if isinstance(distribution, SMDDP):
        return "torchrun" if distribution.launch == "torch" else "mpirun"
    if isinstance(distribution, SMP):
        return "torchrun" if distribution.version == 2 else "mpirun"
    return {"torch": "torchrun", "mpi": "mpirun", "horovod": "mpirun"}.get(distribution.type, distribution.type)


def or_by_us(subject: Subject, hint: str) -> str:
    """A hint, and beside it the way around the image's toolkit, where there is one: SMDDP, SMP and MPI between
    instances need the toolkit."""
    bound = subject.job.distribution.type in ("smddp", "smp")
    if bound or (launcher(subject.job) == "mpirun" and cluster(subject).spanned_instances > 1):
        return hint
    return f'{hint}; or write `launch = "entrypoint"` under `[sagemaker]`, and cloudtrain starts the script itself'


def listed(names: Sequence[str], most: int = 6) -> str:
    """`` `a`, `b` and 3 more``."""
    shown = ", ".join(f"`{name}`" for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
