"""The container image of a SageMaker job: the job's own, or the one that AWS ships for a framework and version."""

from __future__ import annotations

from dataclasses import dataclass

from cloudtrain.catalogue.images import Image, image_of_uri, resolve_image
from cloudtrain.compile.sagemaker.machines import Machines
from cloudtrain.distribution import SMDDP, SMP
from cloudtrain.job import TrainingJob
from cloudtrain.launch.sagemaker_container import Container, Framework
from cloudtrain.plans import SageMakerAccount

DEFAULT_FRAMEWORK = "pytorch"


@dataclass(frozen=True)
class ChosenImage:
    """An image's address, and what the catalogue knows of it: None for a user's own image."""

    uri: str
    known: Image | None
    by_version: bool
    """True when framework and version led to it; only then does the SDK ask for the service's metrics."""
    assumed: str | None = None
    """What the job left open and the catalogue filled in, for the reader of the plan."""


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
        instance=machines.first.instance_type,
        python=environment.python,
        base=environment.base,
        smp2=isinstance(job.distribution, SMP) and job.distribution.version == 2,
        smdistributed=isinstance(job.distribution, SMDDP | SMP),
    )
    assumed = None if environment.version else f"{framework} {image.version}, the newest that the catalogue has"
    return ChosenImage(image.uri, image, by_version=True, assumed=assumed)


def contents_of(image: Image | None) -> Container:
    """What the launch view needs to know of an image; of a user's own, that it has no framework toolkit."""
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


_NEWEST_TOOLKIT = "5.1.4"
"""Which sagemaker-training a user's own image is taken to have, where it has one and is told to use it."""
