"""Read fields of the finished request for the SageMaker rules, including the user's overrides.

Overrides may contain any value. These functions ignore values of a wrong type, which SM110 reports.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal

from cloudtrain.catalogue.machines import Machines
from cloudtrain.core.distribution import Launcher, launcher_of
from cloudtrain.core.per_target import overrides_of
from cloudtrain.rules.image_names import TITLES
from cloudtrain.rules.overridden import is_written
from cloudtrain.rules.reading import mapping_at, rows_at, text_at, value_at
from cloudtrain.rules.subject import Subject
from cloudtrain.runtime.sagemaker_launcher import CONTAINER_ENTRYPOINT, LAUNCH_KEY
from cloudtrain.runtime.sagemaker_launcher.arguments import decode_hyperparameters
from cloudtrain.targets.sagemaker.catalogue.images import Image, image_of_uri
from cloudtrain.targets.sagemaker.compile.images import base_framework
from cloudtrain.targets.sagemaker.compile.machines import machines_in
from cloudtrain.targets.sagemaker.compile.modes import python_too_old
from cloudtrain.targets.sagemaker.launch.keys import GROUPS, PROGRAM

Path = tuple[str | int, ...]
Mode = Literal["toolkit", "entrypoint", "image"]
Toolkit = Literal["pytorch", "tensorflow", "generic"]

TRAINING_MODULE = "SAGEMAKER_TRAINING_MODULE"
"""The variable that makes the generic toolkit start a framework's toolkit."""


def mapping(subject: Subject, *keys: str) -> Mapping[str, Any]:
    """Return the mapping at `keys` in the request; empty if it is missing."""
    return mapping_at(subject.plan.request, *keys)


def mappings(subject: Subject, *keys: str) -> list[Mapping[str, Any]]:
    """Return the list of mappings at `keys` in the request; empty if it is missing."""
    return rows_at(subject.plan.request, *keys)


def text(subject: Subject, *keys: str) -> str:
    """Return the text at `keys` in the request; empty if it is missing."""
    return text_at(subject.plan.request, *keys)


def seconds(subject: Subject, name: str) -> int | None:
    """Return the duration `name` from `StoppingCondition` or `ResourceConfig`; None if both lack it."""
    for section in ("StoppingCondition", "ResourceConfig"):
        value = value_at(subject.plan.request, section, name)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None


def overridden(subject: Subject, *keys: str) -> Path | None:
    """Return the path under `sagemaker_overrides` that sets the request's field at `keys`; None if no override does."""
    return ("sagemaker_overrides", *keys) if is_written(overrides_of(subject.job, "sagemaker"), *keys) else None


def cluster(subject: Subject) -> Machines:
    """Return the machines of the request, each with the path of its field in the job."""
    found = machines_in(mapping(subject, *_config(subject)), subject.account)
    groups = tuple(replace(group, path=_type_path(subject, found.kind, at)) for at, group in enumerate(found.groups))
    return replace(found, groups=groups, spans=_spans(subject) if found.kind == "groups" else ())


def _spans(subject: Subject) -> tuple[str, ...]:
    """Return the names of the instance groups that the request's launcher spans; empty if the request lists none.

    If the image's own entry point runs, there is no launcher. The result is then the job's `distribution_groups`.
    """
    parameters = decode_hyperparameters({name: str(text) for name, text in mapping(subject, "HyperParameters").items()})
    found = value_at(parameters, LAUNCH_KEY, "instance_groups") or parameters.get(GROUPS)
    if mode(subject) == "image":
        found = subject.job.resources.distribution_groups
    return tuple(map(str, found)) if isinstance(found, list | tuple) else ()


def _config(subject: Subject) -> tuple[str, ...]:
    """Return the path of the machines in the request of a training job or processing job."""
    return ("ResourceConfig",) if subject.processing is None else ("ProcessingResources", "ClusterConfig")


def _type_path(subject: Subject, kind: str, index: int) -> Path:
    """Return the path of the job field with an instance type.

    `kind` is `type`, `groups` or `preferences`, and `index` is the index of the group or preference.
    """
    if kind == "type":
        field = "instance_type" if subject.job.resources.instance_type else "gpu"
        return overridden(subject, *_config(subject), "InstanceType") or ("resources", field)
    written = "InstanceGroups" if kind == "groups" else "InstancePreferences"
    if path := overridden(subject, *_config(subject), written):
        return (*path, index, "InstanceType")
    if kind == "groups":
        return ("resources", "instance_groups", index, "instance_type")
    return ("resources", "instance_preferences", index)


def input_named(subject: Subject, channel: object) -> str | None:
    """Return the name of the job's input for a channel; None if the channel is not from an input."""
    return next((name for name, item in subject.job.inputs.items() if (item.channel or name) == channel), None)


def mode(subject: Subject) -> Mode:
    """Return the launch mode of the request (see `cloudtrain.targets.sagemaker.compile.modes`)."""
    entrypoint = value_at(subject.plan.request, "AlgorithmSpecification", "ContainerEntrypoint")
    parameters = mapping(subject, "HyperParameters")
    if LAUNCH_KEY in parameters and entrypoint == list(CONTAINER_ENTRYPOINT):
        return "entrypoint"
    return "toolkit" if entrypoint is None and PROGRAM in parameters else "image"


def image(subject: Subject) -> Image | None:
    """Return the image's entry in the catalogue; None for a user's own image."""
    return _image_of(text(subject, "AlgorithmSpecification", "TrainingImage"))


_image_of = lru_cache(maxsize=8)(image_of_uri)  # many rules read the same image


def image_path(subject: Subject) -> Path:
    """Return the path of the job field that names the image, or else its version; empty if the job sets neither."""
    if path := overridden(subject, "AlgorithmSpecification", "TrainingImage"):
        return path
    environment = subject.job.environment
    field = "image" if environment.image else "version" if environment.version else None
    return ("environment", field) if field else ()


def image_name(found: Image) -> str:
    """Return the image's name for messages: `PyTorch 2.8.0`."""
    return f"{TITLES[found.framework]} {found.version}"


def toolkit(subject: Subject) -> Toolkit:
    """Return the training toolkit that will read the request.

    The variable SAGEMAKER_TRAINING_MODULE overrides the image's toolkit. Without it, a user's own image for SMDDP or
    SMP is assumed to be derived from an AWS image. Any other user's own image is assumed to have the generic toolkit,
    which supports MPI and single processes.
    """
    module = mapping(subject, "Environment").get(TRAINING_MODULE)
    if isinstance(module, str):
        return "pytorch" if "pytorch" in module else "tensorflow" if "tensorflow" in module else "generic"
    found = image(subject)
    if found is None:
        return base_framework(subject.effective) or "generic"
    if found.engine[0] not in ("pytorch", "tensorflow"):
        return "generic"
    return "pytorch" if found.engine[0] == "pytorch" else "tensorflow"


def launcher(subject: Subject) -> Launcher:
    """Return the launcher that the job's distribution needs."""
    return launcher_of(subject.effective.distribution)


def add_entrypoint_hint(subject: Subject, hint: str) -> str:
    """Add to `hint` how to run the job without the image's toolkit.

    Returns `hint` unchanged if the job needs the toolkit: for SMDDP, SMP, MPI on several instances, or an image whose
    Python is too old for cloudtrain's launcher.
    """
    bound = subject.effective.distribution.type in ("smddp", "smp") or python_too_old(image(subject)) is not None
    if bound or (launcher(subject) == "mpirun" and cluster(subject).spanned_count > 1):
        return hint
    return f'{hint}; or write `launch = "entrypoint"` under `[sagemaker]`, and cloudtrain starts the script itself'
