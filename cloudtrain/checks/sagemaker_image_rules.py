"""Rules about the container image of a SageMaker job."""

from __future__ import annotations

from collections.abc import Iterator

from cloudtrain.catalogue.image_data import numbers
from cloudtrain.catalogue.instances import InstanceType
from cloudtrain.checks.rule import Fault, Subject, rule
from cloudtrain.checks.sagemaker_view import (
    TRAINING_MODULE,
    cluster,
    image,
    image_name,
    image_path,
    mapping,
    mode,
    or_by_us,
)
from cloudtrain.plans import Level

_LAST_UNPATCHED = {"pytorch": ("2.5", "2025-10-29")}
"""Framework to the newest line whose patches have ended, and when (aws/deep-learning-containers, legacy support)."""

_HOROVOD_ENDS = {"pytorch": (2, 0), "tensorflow": (2, 12)}
"""The first images without Horovod: its installation is commented out, or gone, in their Dockerfile.gpu."""

_BLIND = {("gpu", "cpu"), ("neuron", "cpu"), ("neuron", "gpu")}
"""What an instance has, and an image that cannot use it."""

_DEVICES = {"gpu": "GPUs", "neuron": "Trainium", "cpu": "CPUs"}


@rule("SM305", Level.ERROR)
def image_in_doubt(subject: Subject) -> Iterator[Fault]:
    """The image almost surely does not exist, or cannot train.

    The address follows the rules by which addresses are made, and AWS has published no such image: for example the
    SageMaker SDK takes versions of the SMP library for versions of PyTorch, and builds an address from them. The job
    would wait for its instances and then fail to pull it.
    """
    found = image(subject)
    if found is not None and found.doubt is not None:
        yield Fault(found.doubt, "name a version that exists, or another image", image_path(subject))


@rule("SM306", Level.ERROR)
def image_for_other_device(subject: Subject) -> Iterator[Fault]:
    """The image cannot use the accelerators of the instance type.

    A CPU image sees no GPU, so that the job trains on the processor of an expensive machine; a GPU image cannot
    drive Trainium, and an image for Trainium nothing else. The SageMaker SDK chooses a CPU image in silence for an
    instance type that it does not know.
    """
    found = image(subject)
    if found is None:
        return
    devices = {entry.device for entry in cluster(subject).entries}
    for entry in cluster(subject).entries:
        alone = found.device == "neuron" and "neuron" not in devices
        if entry.known and (alone or (entry.device, found.device) in _BLIND):
            yield Fault(
                f"the image is for {_DEVICES[found.device]}, and `{entry.known.name}` has {_has(entry.known)}",
                f"name framework and version instead of an image, or an image for {_DEVICES[entry.device or 'cpu']}",
                image_path(subject),
            )


@rule("SM307", Level.WARNING)
def gpu_image_without_gpu(subject: Subject) -> Iterator[Fault]:
    """The image is for GPUs, and no instance has one.

    It works, and every start pulls several gigabytes of CUDA libraries that nothing uses.
    """
    found, devices = image(subject), {entry.device for entry in cluster(subject).entries}
    if found is not None and found.device == "gpu" and devices == {"cpu"}:
        yield Fault(
            f"the image is for GPUs, and `{cluster(subject).entries[0].group.instance_type}` has none",
            "use the CPU image, or an instance type with a GPU",
            image_path(subject),
        )


@rule("SM308", Level.ERROR)
def image_for_other_processor(subject: Subject) -> Iterator[Fault]:
    """The image is for another processor than the instance type has.

    Grace-Blackwell machines (p6e-gb200) have ARM processors. AWS's training images are for x86-64, unless their
    address says `arm64`; started on ARM they end at once with "exec format error".
    """
    found = image(subject)
    for entry in cluster(subject).entries if found else ():
        assert found is not None
        built_for = "arm64" if "arm64" in f"{found.repository}:{found.tag}" else "x86_64"
        if entry.known and entry.known.architecture not in ("", built_for):
            yield Fault(
                f"`{entry.known.name}` has an {entry.known.architecture} processor, and the image is for {built_for}",
                "use an image that is built for it, or another instance type",
                entry.path,
            )


@rule("SM309", Level.NOTICE)
def image_unpatched(subject: Subject) -> Iterator[Fault]:
    """The image gets no more security patches.

    AWS patches the images of a version for about a year after its release. The old ones stay available.
    """
    found = image(subject)
    if found is None or found.device == "neuron" or found.smp == 2:  # they have ends of their own
        return
    framework, version = found.engine
    last, date = _LAST_UNPATCHED.get(framework, ("", ""))
    if last and numbers(version)[:2] <= numbers(last):
        message = f"the image of {image_name(found)} is no longer patched: support up to {last} ended on {date}"
        yield Fault(message, "use a newer version if the script allows", image_path(subject))


@rule("SM310", Level.WARNING)
def toolkit_not_known(subject: Subject) -> Iterator[Fault]:
    """The image is to start the script by its training toolkit, and may have none.

    `launch = "toolkit"` leaves the start to sagemaker-training inside the image. An image without it has nothing that
    fetches the code and runs the script: its own entry point runs, with the argument `train`.
    """
    found = image(subject)
    if mode(subject) == "toolkit" and (found is None or found.toolkit is None):
        if TRAINING_MODULE in mapping(subject, "Environment"):
            return
        yield Fault(
            "nothing is known of a training toolkit in this image",
            or_by_us(subject, "install sagemaker-training in the image"),
            image_path(subject),
        )


@rule("SM311", Level.WARNING)
def image_without_horovod(subject: Subject) -> Iterator[Fault]:
    """The image does not have Horovod.

    AWS's images have none from PyTorch 2.0 and TensorFlow 2.12 on (their Dockerfiles in
    aws/deep-learning-containers), so that `import horovod` fails on every rank.
    """
    found = image(subject)
    if subject.job.distribution.type != "horovod" or found is None or subject.job.environment.requirements:
        return
    framework, version = found.engine
    if framework in _HOROVOD_ENDS and numbers(version) >= _HOROVOD_ENDS[framework]:
        yield Fault(
            f"the image of {image_name(found)} does not have Horovod",
            "add it to a requirements file as the script `mnist_horovod` does, or use `distribution: {type: torch}`",
            ("distribution", "type"),
        )


def _has(known: InstanceType) -> str:
    if known.gpus:
        return f"{known.gpus} x {known.gpu}"
    return f"{known.neuron_cores} Neuron cores" if known.neuron_cores else "neither GPUs nor Trainium"
