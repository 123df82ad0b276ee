"""Rules about the container image of a SageMaker job."""

from __future__ import annotations

from collections.abc import Iterator

from cloudtrain.catalogue.instances import InstanceType
from cloudtrain.core.plan import Level
from cloudtrain.rules.image_names import TITLES, device_of, framework_of, missing_framework
from cloudtrain.rules.rule import Fault, Subject, rule
from cloudtrain.targets.sagemaker.catalogue.image_data import numbers
from cloudtrain.targets.sagemaker.catalogue.images import versions
from cloudtrain.targets.sagemaker.rules.library import distribution_ignored
from cloudtrain.targets.sagemaker.rules.view import (
    TRAINING_MODULE,
    add_entrypoint_hint,
    cluster,
    image,
    image_name,
    image_path,
    mapping,
    mode,
    text,
)

_LAST_UNPATCHED = {"pytorch": ("2.5", "2025-10-29")}
"""The newest minor version of each framework that is no longer patched, and the end date of its support.

Source: aws/deep-learning-containers, legacy support.
"""

_HOROVOD_ENDS = {"pytorch": (2, 0), "tensorflow": (2, 12)}
"""The first images without Horovod: their Dockerfile.gpu comments out its installation, or lacks it."""

_BLIND = {("gpu", "cpu"), ("neuron", "cpu"), ("neuron", "gpu")}
"""Pairs of an instance's device and an image that cannot use it."""

_DEVICES = {"gpu": "GPUs", "neuron": "Trainium", "cpu": "CPUs"}


@rule("SM305", Level.ERROR)
def image_in_doubt(subject: Subject) -> Iterator[Fault]:
    """The image probably does not exist, or cannot train.

    The address follows the naming rules, but AWS has published no such image. For example, the SageMaker SDK mistakes
    versions of the SMP library for versions of PyTorch, and builds an address from them. The job would wait for its
    instances and then fail to pull the image.
    """
    found = image(subject)
    if found is not None and found.doubt is not None:
        yield Fault(found.doubt, "name a version that exists, or another image", image_path(subject))


@rule("SM306", Level.ERROR)
def image_for_other_device(subject: Subject) -> Iterator[Fault]:
    """The image cannot use the accelerators of the instance type.

    A CPU image cannot use GPUs, so the job would train on the CPU of an expensive machine. A GPU image does not support
    Trainium, and an image for Trainium supports nothing else. For an unknown instance type, the SageMaker SDK silently
    chooses a CPU image.
    """
    found = image(subject)
    if found is None:
        return
    devices = {group.device for group in cluster(subject).groups}
    for group in cluster(subject).groups:
        alone = found.device == "neuron" and "neuron" not in devices
        if group.known and (alone or (group.device, found.device) in _BLIND):
            yield Fault(
                f"the image is for {_DEVICES[found.device]}, and `{group.known.name}` has {_has(group.known)}",
                f"{_by_framework(subject, found.framework)}, or name an image for {_DEVICES[group.device or 'cpu']}",
                image_path(subject),
            )


@rule("SM307", Level.WARNING)
def gpu_image_without_gpu(subject: Subject) -> Iterator[Fault]:
    """The image is for GPUs, but no instance has a GPU.

    The job works, but every start downloads several gigabytes of unused CUDA libraries.
    """
    found, devices = image(subject), {group.device for group in cluster(subject).groups}
    if found is not None and found.device == "gpu" and devices == {"cpu"}:
        yield Fault(
            f"the image is for GPUs, and `{cluster(subject).groups[0].instance_type}` has none",
            f"{_by_framework(subject, found.framework)}, or name an instance type with a GPU",
            image_path(subject),
        )


@rule("SM308", Level.ERROR)
def image_for_other_processor(subject: Subject) -> Iterator[Fault]:
    """The image and the instance type are for different processors.

    Grace-Blackwell machines (p6e-gb200) have ARM processors. AWS's training images are for x86-64, except those whose
    address contains `arm64`. On ARM, an x86-64 image fails at once with "exec format error".
    """
    found = image(subject)
    for group in cluster(subject).groups if found else ():
        assert found is not None
        built_for = "arm64" if "arm64" in f"{found.repository}:{found.tag}" else "x86_64"
        if group.known and group.known.architecture not in ("", built_for):
            yield Fault(
                f"`{group.known.name}` has an {group.known.architecture} processor, and the image is for {built_for}",
                "use an image that is built for it, or another instance type",
                group.path,
            )


@rule("SM309", Level.NOTICE)
def image_unpatched(subject: Subject) -> Iterator[Fault]:
    """The image no longer gets security patches.

    AWS patches the images of a framework version for about a year after its release. Older images stay available.
    """
    found = image(subject)
    if found is None or found.device == "neuron" or found.smp == 2:  # these images have their own end dates
        return
    framework, version = found.engine
    last, date = _LAST_UNPATCHED.get(framework, ("", ""))
    if last and numbers(version)[:2] <= numbers(last):
        message = f"the image of {image_name(found)} is no longer patched: support up to {last} ended on {date}"
        newer = next((one for one in versions(framework, found.device) if numbers(one)[:2] > numbers(last)), "")
        hint = f"use version `{newer}` or newer, if the script allows"
        if subject.effective.distribution.type in ("horovod", "smddp", "smp"):  # newer images lack these
            hint = f"write `distribution: {{type: torch}}`, and {hint}"
        yield Fault(message, hint, image_path(subject))


@rule("SM310", Level.WARNING)
def toolkit_not_known(subject: Subject) -> Iterator[Fault]:
    """The image may lack the training toolkit, which must start the script.

    With `launch = "toolkit"`, sagemaker-training inside the image fetches the code and runs the script. An image
    without it runs its own entry point instead, with the argument `train`. `smddp` and `smp` need an image derived from
    an AWS image: its Dockerfile begins with `FROM` and the address of the AWS image.
    """
    found = image(subject)
    if mode(subject) == "toolkit" and (found is None or found.toolkit is None):
        if TRAINING_MODULE in mapping(subject, "Environment"):
            return
        library = subject.effective.distribution.type
        hint = add_entrypoint_hint(subject, "install sagemaker-training in the image")
        if library in ("smddp", "smp"):
            hint = f"begin its Dockerfile with `FROM` and the address of an image of AWS that has `{library}`"
        yield Fault(
            "cloudtrain knows no training toolkit in this image",
            hint,
            image_path(subject),
        )


@rule("SM311", Level.WARNING)
def image_without_horovod(subject: Subject) -> Iterator[Fault]:
    """The image does not have Horovod.

    AWS's images of PyTorch 2.0 and later and of TensorFlow 2.12 and later lack Horovod (Dockerfiles in
    aws/deep-learning-containers), so `import horovod` fails on every rank.
    """
    found = image(subject)
    if subject.effective.distribution.type != "horovod" or found is None or subject.job.environment.requirements:
        return
    framework, version = found.engine
    if framework in _HOROVOD_ENDS and numbers(version) >= _HOROVOD_ENDS[framework]:
        other = "tensorflow" if framework == "tensorflow" else "torch"
        yield Fault(
            f"the image of {image_name(found)} does not have Horovod",
            "add it to a requirements file as the script `mnist_horovod` does, or use "
            f"`distribution: {{type: {other}}}`",
            ("distribution", "type"),
        )


@rule("SM312", Level.ERROR)
def image_of_another_framework(subject: Subject) -> Iterator[Fault]:
    """The image and the job have different frameworks.

    AWS's TensorFlow images lack PyTorch, and PyTorch images lack TensorFlow. torchrun is missing, or the script ends at
    its first import. If the job names an image, `framework` does not choose one, so both must agree.
    """
    found = image(subject)
    needed = missing_framework(subject, found.engine[0] if found else None)
    if found is not None and needed is not None and not any(distribution_ignored(subject)):
        message = f"the image is for {image_name(found)}, and the job needs {TITLES[needed]}"
        yield Fault(message, _instead(subject, needed), image_path(subject))


@rule("SM313", Level.WARNING)
def image_name_contradicts(subject: Subject) -> Iterator[Fault]:
    """The name of the image suggests another framework or device than the job needs.

    cloudtrain cannot look into your own image, and judges it by its name. An image called `tensorflow` probably lacks
    torchrun, and one called `cpu` probably cannot use a GPU.
    """
    name = text(subject, "AlgorithmSpecification", "TrainingImage")
    if image(subject) is not None or not name:
        return
    says = framework_of(name)
    needed = missing_framework(subject, says)
    if says is not None and needed is not None:
        message = f"`{name}` says that it is made for {TITLES[says]}, and the job needs {TITLES[needed]}"
        yield Fault(message, _instead(subject, needed), image_path(subject))
    for group in cluster(subject).groups:
        device = device_of(name)
        if group.known and device is not None and (group.device, device) in (*_BLIND, ("gpu", "neuron")):
            has = f"`{group.known.name}` has {_has(group.known)}"
            yield Fault(
                f"`{name}` says that it is made for {_DEVICES[device]}, and {has}",
                f"use an image for {_DEVICES[group.device or 'cpu']}, or accept this one with `--ignore SM313`",
                image_path(subject),
            )
            return


def _instead(subject: Subject, framework: str) -> str:
    """Return a hint on how to get an image with the needed framework, or how to correct the field `framework`."""
    given = subject.job.environment
    if given.image is not None and given.framework is not None:
        return f"remove `image`, so that `framework: {given.framework}` chooses one, or remove `framework`"
    return f"{_by_framework(subject, framework)}, or name an image that has it"


def _by_framework(subject: Subject, framework: str) -> str:
    """Return a hint to set `framework`, so that cloudtrain chooses the image."""
    path, wanted = image_path(subject), f"write `environment: {{framework: {framework}}}`"
    if path[-1:] == ("version",):  # the version belongs to another framework
        device = cluster(subject).groups[0].device or "cpu"
        newest = next(reversed(versions(framework, device) or versions(framework)))
        return f'write `environment: {{framework: {framework}, version: "{newest}"}}`'
    if path[:1] == ("sagemaker_overrides",):
        return f"remove `{'.'.join(map(str, path[1:]))}` from `sagemaker_overrides`, and {wanted}"
    return f"{wanted} instead of `image`" if path[-1:] == ("image",) else wanted


def _has(known: InstanceType) -> str:
    return known.hardware if known.gpus or known.neuron_cores else "neither GPUs nor Trainium"
