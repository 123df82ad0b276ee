"""Rules about SageMaker's own libraries, SMDDP and SMP: the images and instance types that support them."""

from __future__ import annotations

from collections.abc import Iterator

from cloudtrain.catalogue.instances import instance_types
from cloudtrain.core.distribution import SMP
from cloudtrain.core.plan import Level
from cloudtrain.rules.rule import Fault, Subject, rule
from cloudtrain.rules.words import join_names
from cloudtrain.targets.sagemaker.rules.view import (
    TRAINING_MODULE,
    add_entrypoint_hint,
    cluster,
    image,
    image_name,
    image_path,
    launcher,
    mode,
    toolkit,
)

_IGNORED = {
    ("generic", "torchrun"), ("generic", "tensorflow"),
    ("pytorch", "tensorflow"),
    ("tensorflow", "torchrun"),
}  # fmt: skip
"""Pairs of a toolkit and a launcher or library that the toolkit does not support.

They were measured with sagemaker-training 5.1.1 and 5.1.4, sagemaker-pytorch-training 3.0.0 and
sagemaker-tensorflow-training 20.5.0.
"""


@rule("SM301", Level.ERROR)
def image_without_smddp(subject: Subject) -> Iterator[Fault]:
    """The image does not have the SMDDP library.

    SMDDP ships in the images of PyTorch up to 2.5 and of TensorFlow up to 2.11. In a newer image the toolkit prints a
    warning, drops `smddprun` and starts plain mpirun; the script then fails at `init_process_group("smddp")`. The
    SageMaker SDK does not check images that are given by their address (tried with 2.257.7).
    """
    found = image(subject)
    if subject.effective.distribution.type == "smddp" and found is not None and not found.smddp:
        yield Fault(
            f"the image of {image_name(found)} does not have `smddp`; {_images_with_smddp(found.engine[0])}",
            _instead_of_smddp(subject),
            image_path(subject) or ("distribution",),
        )


@rule("SM302", Level.ERROR)
def type_without_smddp(subject: Subject) -> Iterator[Fault]:
    """The SMDDP library does not run on this instance type.

    AWS supports SMDDP on p4d and p4de (developer guide, data parallel library), and older versions on p3.16xlarge and
    p3dn. The SageMaker SDK has a list of types but never reads it. It accepts `ml.g5` and `ml.p5en`, and sometimes
    refuses `ml.p5.48xlarge` (2.257.7).
    """
    if subject.effective.distribution.type != "smddp":
        return
    found, hint = image(subject), _instead_of_smddp(subject)
    supported = [row.name for row in instance_types("sagemaker") if row.smddp]
    if found is None or found.smddp:
        hint += f"; or use {' or '.join(f'`{name}`' for name in supported)}"
    for group in cluster(subject).spanned:
        if group.known and not group.known.smddp and not group.known.smddp_in_sdk:
            yield Fault(f"`smddp` does not run on `{group.known.name}`", hint, group.path)


@rule("SM303", Level.ERROR)
def distribution_ignored(subject: Subject) -> Iterator[Fault]:
    """The image's toolkit does not support this distribution, and ignores it.

    The job does not fail. Instead, every instance runs the script alone in one process, and trains the same model on
    one GPU. This happens with parameter servers on PyTorch, and with torchrun on TensorFlow. In your own image,
    only MPI works, unless the variable SAGEMAKER_TRAINING_MODULE names a framework's toolkit. With `smddp` and `smp`,
    cloudtrain assumes that your own image is derived from an AWS image, as SM310 explains. A job without a script
    starts the image's own entry point without a distribution, and the SDK's `Estimator` silently drops the
    argument `distribution`.
    """
    yield from _no_script(subject)
    kind, distribution = toolkit(subject), subject.effective.distribution.type
    if mode(subject) != "toolkit" or not {(kind, launcher(subject)), (kind, distribution)} & _IGNORED:
        return
    count = cluster(subject).spanned_count
    who = "the one instance" if count == 1 else f"each of the {count} instances"
    owner = {"generic": "your own image", "pytorch": "PyTorch", "tensorflow": "TensorFlow"}[kind]
    yield Fault(
        f"the training toolkit of {owner} ignores `{distribution}`: {who} would run one process, alone",
        _how_to_start(subject, kind),
        ("distribution",),
    )


@rule("SM304", Level.ERROR)
def image_without_smp(subject: Subject) -> Iterator[Fault]:
    """The image does not have this version of SageMaker's model parallelism library.

    Version 1 is in the images of PyTorch 1.6 to 2.0.0 and TensorFlow 2.3 to 2.6. Version 2 has separate images, which
    cloudtrain selects by framework and version. In other images, `import smdistributed.modelparallel` or
    `torch.sagemaker` fails.
    """
    distribution, found = subject.effective.distribution, image(subject)
    if not isinstance(distribution, SMP) or found is None or found.smp == distribution.version:
        return
    message = f"the image of {image_name(found)} does not have version {distribution.version} of `smp`"
    if found.smp:
        message += f", but version {found.smp}"
    yield Fault(message, _image_with_smp(distribution.version), image_path(subject) or ("distribution",))


def _no_script(subject: Subject) -> Iterator[Fault]:
    job = subject.job
    if job.entry_point is None and job.command is None and job.distribution.type != "none":
        yield Fault(
            f"without a script the image's own entry point runs, and nothing starts `{job.distribution.type}`",
            "add an `entry_point`, or remove `distribution`",
            ("distribution",),
        )


def _instead_of_smddp(subject: Subject) -> str:
    """Return a hint on how to train without SMDDP."""
    found = image(subject)
    framework = found.engine[0] if found is not None else subject.job.environment.framework
    if framework == "tensorflow":
        return "write `distribution: {type: tensorflow}`, and use MultiWorkerMirroredStrategy in the script"
    return "write `distribution: {type: torch}`, and `nccl` where the script says `smddp`"


def _images_with_smddp(framework: str) -> str:
    from cloudtrain.targets.sagemaker.catalogue.images import resolve_image, versions

    found = [
        version
        for version in versions(framework, "gpu")
        if resolve_image(framework, version, region="us-east-1", device="gpu").smddp
    ]
    return f"those from {found[0]} to {found[-1]} have it" if found else "none has it"


def _image_with_smp(version: int) -> str:
    from cloudtrain.targets.sagemaker.catalogue.images import resolve_image, smp_versions, versions

    if version == 2:
        return f"name framework and version instead of an image: PyTorch {join_names(smp_versions())}"
    found = [
        one
        for one in versions("pytorch", "gpu")
        if resolve_image("pytorch", one, region="us-east-1", device="gpu").smp == 1
    ]
    newer = "write `distribution: {type: smp, version: 2}`, and `environment: {framework: pytorch, version: "
    return f'use PyTorch {join_names(found, most=len(found))}; or {newer}"{smp_versions()[-1]}"}}`'


def _how_to_start(subject: Subject, kind: str) -> str:
    distribution = subject.effective.distribution.type
    if kind == "pytorch":
        return add_entrypoint_hint(subject, "write `environment: {framework: tensorflow}`")
    if kind == "tensorflow":
        return f"write `environment: {{framework: pytorch}}`, or `tensorflow` or `horovod` instead of `{distribution}`"
    framework = "tensorflow" if distribution == "tensorflow" else "pytorch"
    module = f"`{TRAINING_MODULE}: sagemaker_{framework}_container.training:main`"
    return add_entrypoint_hint(subject, f"write {module} under `environment.variables`, if the image has that package")
