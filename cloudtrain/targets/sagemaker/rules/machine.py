"""Rules about the instance types of a SageMaker job: whether they exist, and whether they fit the job."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from cloudtrain.catalogue.instances import instance_named, instance_types
from cloudtrain.catalogue.machines import MachineGroup
from cloudtrain.core.plan import Level
from cloudtrain.core.processes import Processes
from cloudtrain.rules.counterparts import counterpart
from cloudtrain.rules.rule import Fault, Subject, rule
from cloudtrain.rules.shared import machines as shared
from cloudtrain.rules.shared.network import over_ethernet
from cloudtrain.runtime.sagemaker_launcher.variables import RDMA_FAMILIES
from cloudtrain.targets.sagemaker.catalogue.image_data import numbers
from cloudtrain.targets.sagemaker.rules.view import cluster, image, launcher, mapping, mode, overridden, text

_NEVER = (99,)
_FINDS_EFA = {"pytorch": (2, 6)}
"""The first images whose NCCL plugin needs no variable.

Source: docker/2.6/py3/cu126/Dockerfile.gpu of PyTorch in aws/deep-learning-containers.
"""

_GB_PER_GIB = 2**30 / 10**9


@rule("SM201", Level.ERROR)
def unknown_type(subject: Subject) -> Iterator[Fault]:
    """The instance type does not exist.

    The catalogue has all 225 types that CreateTrainingJob accepts (botocore 1.44.5). The SageMaker SDK accepts any text
    of the form `ml.FAMILY.SIZE`, and chooses a CPU image for an unknown family. If a type is newer than the catalogue,
    add it to `instances.toml`.
    """
    for group in cluster(subject).groups:
        name = group.instance_type
        if group.known is None and instance_named("sagemaker", f"ml.{name}") is None:
            near = _nearest(name)
            hint = f"did you mean `{near}`?" if near else "`cloudtrain instances --target sagemaker` lists the types"
            hint = counterpart(name, "sagemaker") or hint
            yield Fault(f"SageMaker has no instance type `{name}`", hint, group.path)


@rule("SM202", Level.ERROR)
def type_without_prefix(subject: Subject) -> Iterator[Fault]:
    """The instance type has the name of an EC2 type.

    SageMaker's names begin with `ml.`, such as `ml.g5.xlarge` for the EC2 type `g5.xlarge`.
    """
    for group in cluster(subject).groups:
        name = group.instance_type
        if instance_named("sagemaker", f"ml.{name}"):
            yield Fault(f"`{name}` is EC2's name for the instance type", f"write `ml.{name}`", group.path)


@rule("SM203", Level.WARNING)
def retired_type(subject: Subject) -> Iterator[Fault]:
    """The instance type is retired, or will be.

    A job on a retired type fails at once, or waits forever for capacity. The date of retirement comes from the
    catalogue or from your own `instances.toml`.
    """
    return shared.retired_type(subject)


@rule("SM204", Level.WARNING)
def without_efa(subject: Subject) -> Iterator[Fault]:
    """The job trains on several GPU instances without EFA.

    Gradients then travel over TCP, and the GPUs wait for them. Except for small models, a second instance can make
    training slower. Types with EFA (`cloudtrain instances --interconnect rdma`) let NCCL bypass the kernel. One larger
    instance with as many GPUs needs no network at all. To use Ethernet on purpose, write `interconnect: ethernet` under
    `resources`.
    """
    return over_ethernet(subject, "SM204")


rule("SM205", Level.ERROR)(shared.type_is_not_as_described)


@rule("SM206", Level.WARNING)
def efa_left_off(subject: Subject) -> Iterator[Fault]:
    """The image's toolkit does not switch on the EFA of this instance type.

    The training toolkit sets `FI_PROVIDER=efa` and `FI_EFA_USE_DEVICE_RDMA=1` only for instance types in its own list
    (sagemaker-training 5.1.4). The list lacks p5en, p6, g6, g6e, trn1n and trn2; before 5.1.2 it lacks RDMA on p5. NCCL
    plugins before aws-ofi-nccl 1.7.0 need these variables; without them they fall back to TCP, which is several times
    slower. Newer plugins find EFA by themselves (aws-ofi-nccl's doc/efa-env-var.md). AWS's PyTorch images have a newer
    plugin from 2.6 on, because EFA's installer 1.38.0 contains it. You can set the variables with all plugins;
    cloudtrain's own launcher sets them (`launch = "entrypoint"`).
    """
    machines = cluster(subject)
    if mode(subject) != "toolkit" or machines.spanned_count < 2 or launcher(subject) in ("none", "tensorflow"):
        return
    for group in machines.spanned:
        missing = _missing_variables(subject, group)
        if group.known and missing:
            message = f"the image's toolkit does not set `{' '.join(missing)}` on `{group.known.name}`"
            yield Fault(message, _how_to_set(subject, missing), group.path)


@rule("SM207", Level.WARNING)
def fixed_disk_too_small(subject: Subject) -> Iterator[Fault]:
    """The instance type's fixed disk is smaller than the job's `volume_size`.

    On types with local NVMe disks, a job gets only these disks, and the service ignores `volume_size` (API reference,
    ResourceConfig). If the data does not fit, the job fails during the download.
    """
    asked = mapping(subject, "ResourceConfig").get("VolumeSizeInGB")
    if not isinstance(asked, int):
        return
    path = overridden(subject, "ResourceConfig", "VolumeSizeInGB") or ("resources", "volume_size")
    for group in cluster(subject).groups:
        disk = group.known.nvme_gb if group.known else 0
        if disk and asked * _GB_PER_GIB > disk:
            name = group.instance_type
            yield Fault(
                f"`volume_size` asks for {asked:,} GiB, and `{name}` has a fixed disk of {disk:,} GB",
                "remove `volume_size`, and read the data on demand with `mode: mount`; or name a type with a larger "
                "disk",
                path,
            )


@rule("SM208", Level.ERROR)
def key_for_local_disk(subject: Subject) -> Iterator[Fault]:
    """The job sets a volume key for an instance type with local disks.

    The machine encrypts local NVMe disks with its own key. The API refuses `VolumeKmsKeyId` for such instance types
    (API reference, ResourceConfig).
    """
    if not text(subject, "ResourceConfig", "VolumeKmsKeyId"):
        return
    path = overridden(subject, "ResourceConfig", "VolumeKmsKeyId") or ()
    for group in cluster(subject).groups:
        if group.known and group.known.nvme_gb:
            yield Fault(
                f"`{group.known.name}` encrypts its local disk itself and takes no `volume_kms_key`",
                "remove `volume_kms_key` from the target's settings for this job",
                path,
            )


def _nearest(name: str) -> str | None:
    """Return the known type with the most similar name: `ml.g5.xlarge` for `ml.g5.xlrge`. None if nothing is similar.

    Family (`g5`) and size (`xlarge`) are compared separately, because many types share a size.
    """
    family, _, size = name.lower().removeprefix("ml.").rpartition(".")
    sizes: dict[str, list[str]] = {}
    for row in instance_types("sagemaker"):
        sizes.setdefault(row.family, []).append(row.name.rpartition(".")[2])
    found = next(iter(get_close_matches(family, sizes, n=1)), None)
    if found is None:
        return None
    return f"ml.{found}.{get_close_matches(size, sizes[found], n=1, cutoff=0)[0]}"


def _missing_variables(subject: Subject, group: MachineGroup) -> list[str]:
    """Return the EFA variables that the instance type needs and that are not set, such as `FI_PROVIDER=efa`."""
    known, found = group.known, image(subject)
    if known is None or known.interconnect != "rdma" or not (known.gpus or known.neuron_cores):
        return []
    if found is not None and known.gpus and numbers(found.engine[1]) >= _FINDS_EFA.get(found.engine[0], _NEVER):
        return []
    wanted = {"FI_PROVIDER": "efa"} | ({"FI_EFA_USE_DEVICE_RDMA": "1"} if known.family in RDMA_FAMILIES else {})
    return [f"{name}={value}" for name, value in wanted.items() if not _is_set(subject, name)]


def _is_set(subject: Subject, name: str) -> bool:
    """Return whether the job or any process in the plan sets the variable."""
    if name in mapping(subject, "Environment"):
        return True
    return any(
        name in process.env or any(word.startswith(f"{name}=") for word in process.argv)
        for process in Processes.of(subject.plan.processes).examples
    )


def _how_to_set(subject: Subject, missing: list[str]) -> str:
    """Return a hint on how to set the variables. mpirun needs `-x` options to pass them to the ranks."""
    distribution = subject.effective.distribution
    if launcher(subject) == "mpirun":
        field = "options" if distribution.type in ("mpi", "horovod") else "mpi_options"
        return f'write `{field}: "{" ".join(f"-x {variable}" for variable in missing)}"` under `distribution`'
    variables = ", ".join(f'{name}: "{value}"' for name, _, value in (one.partition("=") for one in missing))
    return f"write `environment: {{variables: {{{variables}}}}}`"
