"""The container image of a SageMaker job: the job's own image, or the AWS image for a framework and version."""

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
    """An image's address and its catalogue entry. The entry is None for a user's own image."""

    uri: str
    known: Image | None
    by_version: bool
    """Whether the image was chosen by framework and version. Only then does the SDK enable the service's metrics."""
    assumed: str | None = None
    """Settings that the job does not name and the catalogue chose, as the plan shows them."""


NO_IMAGE = ChosenImage("unknown:1", None, by_version=False)
"""A placeholder for an image that could not be chosen, with which the rest of the job is checked."""


def image_of(job: TrainingJob, account: SageMakerAccount, machines: Machines) -> ChosenImage:
    """Return the image that the job uses.

    Raises:
        JobError: the framework has no image for the job's version, Python or device.
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
    """Return the instance type for which the image is chosen.

    With several instance groups, this is the type of the first group with GPUs, or else of the first group, as in the
    SDK (2.257.7, `EstimatorBase._get_instance_type`).
    """
    types = [group.instance_type for group in machines.groups if machines.kind == "groups"]
    return next((name for name in types if device_of(name) == "gpu"), machines.first.instance_type)


def contents_of(image: Image | None, derived_from: Framework | None = None) -> Container:
    """Return the parts of an image's contents that decide how the job starts.

    A user's own image is assumed to have no framework toolkit, except if it is derived from an AWS image.
    """
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
    """Return the framework of the AWS base image that a user's own image needs for SMDDP or SMP.

    Returns None if the job uses neither library.
    """
    if not isinstance(job.distribution, SMDDP | SMP):
        return None
    return "tensorflow" if job.environment.framework == "tensorflow" else "pytorch"


_NEWEST_TOOLKIT = "5.1.4"
"""The sagemaker-training version assumed for a user's own image with the toolkit."""
