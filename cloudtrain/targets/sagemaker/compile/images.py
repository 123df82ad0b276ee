"""The container image of a SageMaker job: the job's own, or the one that AWS ships for a framework and version."""

from __future__ import annotations

from typing import NamedTuple

from cloudtrain.catalogue.machines import Machines
from cloudtrain.core.distribution import SMDDP, SMP
from cloudtrain.core.job import TrainingJob
from cloudtrain.targets.sagemaker.account import SageMakerAccount
from cloudtrain.targets.sagemaker.catalogue.images import Image, device_of, image_of_uri, resolve_image
from cloudtrain.targets.sagemaker.launch.job import Container, Framework

DEFAULT_FRAMEWORK = "pytorch"


class ChosenImage(NamedTuple):
    """An image's address, and what the catalogue knows of it: None for a user's own image."""

    uri: str
    known: Image | None
    by_version: bool
    """True when framework and version led to it; only then does the SDK ask for the service's metrics."""
    assumed: str | None = None
    """What the job left open and the catalogue filled in, for the reader of the plan."""


NO_IMAGE = ChosenImage("unknown:1", None, by_version=False)
"""Stands for an image that could not be chosen, where something else about the job is looked at."""


def image_of(job: TrainingJob, account: SageMakerAccount, machines: Machines) -> ChosenImage:
    """The image that the job runs in.

    Raises:
        JobError: the framework has no image of that version, Python or device.
    """
    environment = job.environment
    uri = environment.image.of("sagemaker") if environment.image else None
    if uri is not None:
        return ChosenImage(uri, image_of_uri(uri), by_version=False)
    framework = environment.framework or ("tensorflow" if job.distribution.type == "tensorflow" else DEFAULT_FRAMEWORK)
    image = resolve_image(
        framework,
        environment.version,
        region=account.region,
        instance=_deciding_type(machines),
        python=environment.python,
        base=environment.base,
        smp2=isinstance(job.distribution, SMP) and job.distribution.version == 2,
        smdistributed=isinstance(job.distribution, SMDDP | SMP),
    )
    assumed = None if environment.version else f"{framework} {image.version}, the newest that the catalogue has"
    return ChosenImage(image.uri, image, by_version=True, assumed=assumed)


def _deciding_type(machines: Machines) -> str:
    """The instance type that decides between images: of groups the first with GPUs, wherever it stands, as in the SDK
    (2.257.7, `EstimatorBase._get_instance_type`)."""
    types = [group.instance_type for group in machines.groups if machines.kind == "groups"]
    return next((name for name in types if device_of(name) == "gpu"), machines.first.instance_type)


def contents_of(image: Image | None, derived_from: Framework | None = None) -> Container:
    """What the launch view needs to know of an image; of a user's own, that it has no framework toolkit, unless it is
    derived from an image of AWS."""
    if image is None and derived_from is not None:
        return Container(
            derived_from,
            _NEWEST_TOOLKIT,
            smddprun=True,
            smddpmprun=True,
            training_module=f"sagemaker_{derived_from}_container.training:main",
        )
    if image is None or image.toolkit is None:
        return Container("generic", _NEWEST_TOOLKIT)
    name, version = image.engine
    framework: Framework = "tensorflow" if name == "tensorflow" else "pytorch"
    return Container(
        framework,
        image.toolkit,
        smddprun=image.smddp,
        smddpmprun=image.smp == 1,
        torch=version if framework == "pytorch" else None,
        training_module=f"sagemaker_{framework}_container.training:main",
    )


def base_framework(job: TrainingJob) -> Framework | None:
    """The framework of AWS's images that a user's own image must be derived from: nothing else has SageMaker's
    libraries. None where the job uses neither."""
    if not isinstance(job.distribution, SMDDP | SMP):
        return None
    return "tensorflow" if job.environment.framework == "tensorflow" else "pytorch"


_NEWEST_TOOLKIT = "5.1.4"
"""Which sagemaker-training a user's own image is taken to have, where it has one and is told to use it."""
