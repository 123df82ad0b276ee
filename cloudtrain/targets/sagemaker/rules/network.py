"""Rules about the network of a SageMaker job (VPC, isolation, encryption) and about the profiler."""

from __future__ import annotations

from collections.abc import Iterator

from cloudtrain.core.plan import Level
from cloudtrain.documents.reading import read_bytes
from cloudtrain.rules.rule import Fault, Subject, rule
from cloudtrain.targets.sagemaker.compile.modes import REQUIREMENTS
from cloudtrain.targets.sagemaker.rules.view import cluster, mapping, mode


@rule("SM701", Level.ERROR)
def half_a_network(subject: Subject) -> Iterator[Fault]:
    """The target's settings have subnets but no security groups, or security groups but no subnets.

    `VpcConfig` needs at least one of each. The service creates a network interface of every instance in a subnet, and
    applies the rules of the security groups.
    """
    config = mapping(subject, "VpcConfig")
    if not config:
        return
    for key, field in (("Subnets", "subnets"), ("SecurityGroupIds", "security_group_ids")):
        if not config.get(key):
            example = "subnet-0123456789abcdef0" if field == "subnets" else "sg-0123456789abcdef0"
            hint = f'add `{field} = ["{example}"]` under `[sagemaker]` in `cloudtrain.toml`'
            yield Fault(f"the job's VPC has no `{field}`", hint)


@rule("SM702", Level.ERROR)
def install_without_network(subject: Subject) -> Iterator[Fault]:
    """The job would install packages in a container without network.

    With network isolation the container has no network access, so `pip install -r` and the job fail. Put the packages
    into the image. Or put them into the bundle as wheels, with `--no-index` in the requirements file.
    """
    if not subject.plan.request.get("EnableNetworkIsolation") or mode(subject) == "image":
        return
    file = subject.job.environment.requirements
    if file is None and mode(subject) == "toolkit":
        file = REQUIREMENTS  # the toolkit installs this file wherever it finds it
    text = _text(subject, file)
    if text and "--no-index" not in text:
        yield Fault(
            f"the container has no network, so `{file}` cannot be installed",
            "put the packages into the image; or wheels into the bundle, with `--no-index --find-links .` in the file",
            ("environment", "requirements"),
        )


@rule("SM703", Level.WARNING)
def address_without_network(subject: Subject) -> Iterator[Fault]:
    """The script gets an address that it cannot reach without network.

    With network isolation the container cannot call S3 or any other service. Read inputs through channels, and write
    models and checkpoints to their folders.
    """
    if not subject.plan.request.get("EnableNetworkIsolation"):
        return
    for name, value in subject.effective.hyperparameters.items():
        if isinstance(value, str) and value.startswith(("s3://", "http://", "https://")):
            yield Fault(
                f"the container has no network, and cannot reach `{value}`",
                f"make it an input, and write `{name}: ${{{{inputs.NAME}}}}`",
                ("hyperparameters", name),
            )


@rule("SM704", Level.WARNING)
def profiler_on_trainium(subject: Subject) -> Iterator[Fault]:
    """SageMaker's profiler does not support Trainium.

    The SageMaker SDK switches the profiler off on `ml.trn` types. Use Neuron's own profiling tools.
    """
    profiling = mapping(subject, "ProfilerConfig").get("DisableProfiler") is False
    for group in cluster(subject).groups:
        if profiling and group.device == "neuron":
            message = f"the profiler has nothing to show on `{group.instance_type}`"
            yield Fault(message, "remove `profiler = true` from the target's settings for this job", group.path)


@rule("SM705", Level.NOTICE)
def nothing_to_encrypt(subject: Subject) -> Iterator[Fault]:
    """Traffic between instances is encrypted, but the job has only one instance.

    The setting takes effect with two or more instances. It then slows training down, depending on the amount of
    traffic.
    """
    wanted = subject.plan.request.get("EnableInterContainerTrafficEncryption")
    if wanted and cluster(subject).count == 1:
        yield Fault(
            "one instance has no traffic to others that `encrypt_inter_container_traffic` could encrypt",
            "remove `encrypt_inter_container_traffic` from the target's settings for this job",
        )


def _text(subject: Subject, file: str | None) -> str:
    """Return the text of a file in the bundle; empty if the file is missing or cannot be read."""
    for entry in subject.tree.entries:
        if entry.path == file:
            try:
                return read_bytes(subject.tree.location(entry)).decode("utf-8", "replace")
            except OSError:  # the file is too large for a script, or has changed
                return ""
    return ""
