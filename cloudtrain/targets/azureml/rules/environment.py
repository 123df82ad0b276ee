"""Rules about the environment of an Azure ML job, and whether it fits the machines."""

from __future__ import annotations

import re
from collections.abc import Iterator

from cloudtrain.core.plan import Level
from cloudtrain.rules.rule import Fault, Subject, rule
from cloudtrain.targets.azureml.compile.identifiers import parse_label
from cloudtrain.targets.azureml.rules.view import environment_name, environment_path, image, machines, overridden, text

_ARCHITECTURES = {
    "arm64": re.compile(r"(?<![a-z0-9])(arm64|aarch64)(?![a-z0-9])"),
    "x86_64": re.compile(r"(?<![a-z0-9])(amd64|x86[-_]64)(?![a-z0-9])"),
}
_CUDA = re.compile(r"cuda|(?<![a-z0-9])cu1[0-9]{1,2}(?![0-9])|nvidia")
_ROCM = re.compile(r"rocm|amdgpu")
_CPU = re.compile(r"(?<![a-z0-9])cpu(?![a-z0-9])")
_TAG = re.compile(r"[^/]+:(?P<tag>[\w.-]+)")
_LABEL = re.compile(r".*/environments/(?P<name>[^/]+)/labels/(?P<label>[^/]+)")


@rule("AZ601", Level.NOTICE)
def environment_changes(subject: Subject) -> Iterator[Fault]:
    """The environment uses the label `latest`, which can mean another version tomorrow.

    As soon as a new version is registered, a job with `NAME@latest` or `labels/latest` runs with other packages, and
    you cannot reproduce an earlier failure. `cloudtrain submit` asks the workspace for the current version, reports it
    (AZ916), and sends that version, as the SDK does; it sends labels of registries unchanged. (`framework` and
    `version` select the newest build on purpose, because Microsoft removes old builds.)
    """
    written = text(subject, "environmentId")
    if found := parse_label(written):
        yield Fault(
            f"the version of `{found.name}@latest` can change; a submit sends the version of that moment",
            f"add `--pin`, or write `azureml:{found.name}:VERSION`; `az ml environment list --name {found.name}` lists "
            "them",
            environment_path(subject),
        )
        return
    match = _LABEL.fullmatch(written)
    if match and (subject.job.environment.of("azureml") or overridden(subject, "environmentId")):
        start = text(subject, "environmentId").partition("/labels/")[0]
        registry = re.search(r"/registries/([^/]+)/", start)
        lists = f"`az ml environment list --name {match['name']}" + (
            f" --registry-name {registry[1]}`" if registry else "`"
        )
        yield Fault(
            f"the version of `{match['name']}` with the label `{match['label']}` can change",
            f"write `{start}/versions/VERSION`; {lists} lists them",
            environment_path(subject),
        )


@rule("AZ602", Level.WARNING)
def image_changes(subject: Subject) -> Iterator[Fault]:
    """The image has no tag, or a tag that can point to another image later.

    Without a tag a registry returns `latest`, the image that was pushed last. Azure ML builds an environment once and
    keeps it, so the same job can run with an old image in one workspace and with a new one in another.
    """
    name = image(subject)
    tag = _TAG.fullmatch(name.rpartition("/")[2])
    if name and "@sha256:" not in name and (tag is None or tag["tag"] == "latest"):
        what = "has no tag" if tag is None else "has the tag `latest`"
        plain = name.removesuffix(":latest")
        hint = f"write `{plain}:VERSION`, or `{plain}@sha256:DIGEST`"
        yield Fault(f"`{name}` {what}, so its content can change", hint, environment_path(subject))


@rule("AZ603", Level.ERROR)
def image_of_another_architecture(subject: Subject) -> Iterator[Fault]:
    """The image and the instance type are for different processors.

    GB200 and GB300 machines have Arm processors (Grace), all others x86-64. A container for the other architecture
    fails at once with "exec format error". This rule reads the image's architecture from its name.
    """
    known, name = machines(subject).known, environment_name(subject)
    if known is None or subject.processing is not None:
        return
    other = "x86_64" if known.architecture == "arm64" else "arm64"
    if _says(name, other) and not _says(name, known.architecture):
        yield Fault(
            f"`{name}` is for {_PROCESSOR[other]}, and `{known.name}` has {_PROCESSOR[known.architecture]}",
            f"use an image for {known.architecture}, or another type",
            environment_path(subject),
        )


@rule("AZ604", Level.WARNING)
def image_for_arm_unsaid(subject: Subject) -> Iterator[Fault]:
    """The instance type has Arm processors, but the environment may be for x86-64 only.

    Most images are for x86-64 only, and fail with "exec format error" on a GB200 or GB300; Azure ML's curated
    environments are probably among them. An image for both architectures works; check it with
    `docker manifest inspect`.
    """
    known, name = machines(subject).known, environment_name(subject)
    if known is not None and known.architecture == "arm64" and not any(_says(name, each) for each in _ARCHITECTURES):
        yield Fault(
            f"`{known.name}` has {_PROCESSOR['arm64']}, and nothing in `{name}` says that it supports them",
            "use an image for arm64, or add `--ignore AZ604` if `docker manifest inspect IMAGE` lists arm64",
            environment_path(subject),
        )


@rule("AZ605", Level.ERROR)
def image_of_another_gpu(subject: Subject) -> Iterator[Fault]:
    """The environment and the instance type are for GPUs of different makers.

    Software for CUDA cannot use an AMD MI300X, and software for ROCm cannot use an NVIDIA GPU. The script trains on the
    CPU, or fails, and you still pay for the GPUs. Azure ML's curated environments are for CUDA.
    """
    known, name = machines(subject).known, environment_name(subject)
    if known is None or not known.gpus:
        return
    is_amd = known.gpu.startswith("MI")
    is_wrong = _CUDA.search(name.casefold()) if is_amd else _ROCM.search(name.casefold())
    if is_wrong and not (_ROCM if is_amd else _CUDA).search(name.casefold()):
        made, has = ("CUDA", "AMD") if is_amd else ("ROCm", "NVIDIA")
        hint = "use an image with ROCm, `rocm/pytorch:TAG` for example" if is_amd else "use an image with CUDA"
        yield Fault(
            f"`{name}` is made for {made}, and `{known.name}` has {has} GPUs ({known.hardware})",
            hint,
            environment_path(subject),
        )


@rule("AZ606", Level.WARNING)
def cpu_image_on_gpus(subject: Subject) -> Iterator[Fault]:
    """The environment is made for CPUs, and the instance type has GPUs.

    A framework that was built without CUDA cannot use the GPUs: the script trains on the CPU, and you still pay for
    them.
    """
    known, name = machines(subject).known, environment_name(subject)
    if known is not None and known.gpus and _CPU.search(name.casefold()) and not _CUDA.search(name.casefold()):
        yield Fault(
            f"`{name}` is made for CPUs, and `{known.name}` has {known.hardware}",
            "use an environment with CUDA, or a type without GPUs",
            environment_path(subject),
        )


_PROCESSOR = {"arm64": "Arm processors", "x86_64": "x86-64 processors"}


def _says(name: str, architecture: str) -> bool:
    return _ARCHITECTURES[architecture].search(name.casefold()) is not None
