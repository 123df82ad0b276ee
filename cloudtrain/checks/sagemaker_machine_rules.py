"""Rules about the instance types of a SageMaker job: that they exist, and that they are what the job describes."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from cloudtrain.catalogue.choose import choose
from cloudtrain.catalogue.instances import InstanceType, instance_named, instance_types
from cloudtrain.checks.rule import Fault, Subject, rule
from cloudtrain.checks.sagemaker_view import Entry, cluster, launcher, mapping, mode, overridden, text
from cloudtrain.errors import JobError
from cloudtrain.plans import Level
from cloudtrain.runtime.sagemaker_launcher.variables import RDMA_FAMILIES

_GB_PER_GIB = 2**30 / 10**9


@rule("SM201", Level.ERROR)
def unknown_type(subject: Subject) -> Iterator[Fault]:
    """The instance type does not exist.

    The catalogue has all 225 types that CreateTrainingJob takes (botocore 1.44.5). The SageMaker SDK accepts any text
    of the right shape, and takes a CPU image for a family that it does not know. A type that is newer than the
    catalogue is added in `instances.toml`.
    """
    for entry in cluster(subject).entries:
        name = entry.group.instance_type
        if entry.known is None and instance_named("sagemaker", f"ml.{name}") is None:
            near = _nearest(name)
            hint = f"did you mean `{near}`?" if near else "`cloudtrain instances` lists the types"
            yield Fault(f"SageMaker has no instance type `{name}`", hint, entry.path)


@rule("SM202", Level.ERROR)
def type_without_prefix(subject: Subject) -> Iterator[Fault]:
    """The instance type is written as EC2 writes it.

    SageMaker's names begin with `ml.`: `ml.g5.xlarge` is a `g5.xlarge` with SageMaker on it.
    """
    for entry in cluster(subject).entries:
        name = entry.group.instance_type
        if instance_named("sagemaker", f"ml.{name}"):
            yield Fault(f"`{name}` is EC2's name for the instance type", f"write `ml.{name}`", entry.path)


@rule("SM203", Level.WARNING)
def retired_type(subject: Subject) -> Iterator[Fault]:
    """The instance type is, or will be, no longer offered.

    A job on a retired type fails at once, or waits for capacity that does not come. The date is the catalogue's, or
    that of your own `instances.toml`.
    """
    for entry in cluster(subject).entries:
        if entry.known and entry.known.retired:
            message = f"`{entry.known.name}` is retired from {entry.known.retired} on"
            yield Fault(message, "`cloudtrain instances` lists the others", entry.path)


@rule("SM204", Level.WARNING)
def without_efa(subject: Subject) -> Iterator[Fault]:
    """Several instances with GPUs work together without EFA.

    Gradients then travel over TCP, and the GPUs wait for them: beyond small models a second instance can make
    training slower. Types with EFA (`cloudtrain instances --interconnect rdma`) let NCCL pass by the kernel. One
    larger instance with as many GPUs needs no network at all.
    """
    machines = cluster(subject)
    if machines.spanned_instances < 2 or launcher(subject.job) == "none":
        return
    for entry in machines.spanned:
        known = entry.known
        if known and (known.gpus or known.neuron_cores) and known.interconnect != "rdma":
            network = f" ({known.network})" if known.network else ""
            yield Fault(
                f"{entry.group.count} x `{known.name}` work together over plain Ethernet{network}: it has no EFA",
                _better_network(known, entry.group.count),
                entry.path,
            )


@rule("SM205", Level.ERROR)
def type_is_not_as_described(subject: Subject) -> Iterator[Fault]:
    """The instance type is not what the job says beside it.

    `gpus_per_instance` and `interconnect` describe a machine. Where an instance type is named as well, one of the two
    is a mistake: the job would run with fewer processes, or over a slower network, than it was written for.
    """
    resources = subject.job.resources
    for entry in cluster(subject).spanned:
        known = entry.known
        if known is None:
            continue
        asked = resources.gpus_per_instance
        if asked is not None and asked != known.gpus and not resources.instance_groups:
            message = f"`{known.name}` has {known.gpus or 'no'} GPU{'' if known.gpus == 1 else 's'}, not {asked}"
            hint = f"set `gpus_per_instance` to {known.gpus}, or name another type"
            yield Fault(message, hint, ("resources", "gpus_per_instance"))
        if resources.interconnect == "rdma" and known.interconnect != "rdma":
            hint = _same_gpu_with_efa(known) or "remove `interconnect`, or name another type"
            yield Fault(f"`{known.name}` has no EFA, and the job asks for RDMA", hint, ("resources", "interconnect"))


@rule("SM206", Level.WARNING)
def efa_left_off(subject: Subject) -> Iterator[Fault]:
    """The image's toolkit does not switch on the EFA of this instance type.

    The training toolkit sets `FI_PROVIDER=efa`, and `FI_EFA_USE_DEVICE_RDMA=1`, only on types of a list of its own
    (sagemaker-training 5.1.4), which lacks p5en, p6, g6, g6e, trn1n and trn2, and before 5.1.2 lacks RDMA on p5.
    Newer plugins of NCCL find EFA by themselves, older ones fall back to TCP, which is several times slower. To set
    the variables is right in both cases; cloudtrain's own launcher does it (`launch = "entrypoint"`).
    """
    machines = cluster(subject)
    if mode(subject) != "toolkit" or machines.spanned_instances < 2 or launcher(subject.job) in ("none", "tensorflow"):
        return
    for entry in machines.spanned:
        missing = _missing_variables(subject, entry)
        if entry.known and missing:
            message = f"the image's toolkit does not set `{' '.join(missing)}` on `{entry.known.name}`"
            yield Fault(message, _how_to_set(subject, missing), entry.path)


@rule("SM207", Level.WARNING)
def fixed_disk_too_small(subject: Subject) -> Iterator[Fault]:
    """The instance type's fixed disk is smaller than the volume that the job asks for.

    Types with local NVMe disks give a job these and no other: `volume_size` is ignored there (API reference,
    ResourceConfig). Data that does not fit ends the job while it is downloaded.
    """
    asked = mapping(subject, "ResourceConfig").get("VolumeSizeInGB")
    if not isinstance(asked, int):
        return
    path = overridden(subject, "ResourceConfig", "VolumeSizeInGB") or ("resources", "volume_size")
    for entry in cluster(subject).entries:
        disk = entry.known.nvme_gb if entry.known else 0
        if disk and asked * _GB_PER_GIB > disk:
            name = entry.group.instance_type
            yield Fault(
                f"`volume_size` asks for {asked:,} GiB, and `{name}` has a fixed disk of {disk:,} GB",
                "read the data on demand with `mode: mount`, or name a type with a larger disk",
                path,
            )


@rule("SM208", Level.ERROR)
def key_for_local_disk(subject: Subject) -> Iterator[Fault]:
    """A volume key is given for an instance type with local disks.

    Local NVMe disks are encrypted by the machine itself, with a key of its own, and the API refuses a
    `VolumeKmsKeyId` for them (API reference, ResourceConfig).
    """
    if not text(subject, "ResourceConfig", "VolumeKmsKeyId"):
        return
    path = overridden(subject, "ResourceConfig", "VolumeKmsKeyId") or ()
    for entry in cluster(subject).entries:
        if entry.known and entry.known.nvme_gb:
            yield Fault(
                f"`{entry.known.name}` encrypts its local disk itself and takes no `volume_kms_key`",
                "remove `volume_kms_key` from the target's settings for this job",
                path,
            )


def _nearest(name: str) -> str | None:
    """The type of the nearest family, and in it of the nearest size. Whole names are all alike: `ml.`, `xlarge`."""
    family, _, size = name.lower().removeprefix("ml.").rpartition(".")
    sizes: dict[str, list[str]] = {}
    for row in instance_types("sagemaker"):
        sizes.setdefault(row.family, []).append(row.name.rpartition(".")[2])
    found = next(iter(get_close_matches(family, sizes, n=1)), None)
    if found is None:
        return None
    return f"ml.{found}.{get_close_matches(size, sizes[found], n=1, cutoff=0)[0]}"


def _better_network(known: InstanceType, count: int) -> str:
    """What to write instead: one instance with all the GPUs, or the cheapest with EFA and the same GPU."""
    accept = "or accept it with `--ignore SM204`"
    whole = _chosen(known, known.gpus * count, rdma=False)
    if whole is not None:
        return f"one `{whole.name}` has all {whole.gpus} GPUs; {accept}"
    return f"{_same_gpu_with_efa(known) or 'name a type with EFA'}; {accept}"


def _same_gpu_with_efa(known: InstanceType) -> str | None:
    better = _chosen(known, known.gpus, rdma=True) or _chosen(known, None, rdma=True)
    if better is None:
        return None
    gpus = "GPU" if better.gpus == 1 else "GPUs"
    return f"`{better.name}` has EFA, with {better.gpus} {gpus} of the same model"


def _chosen(known: InstanceType, gpus: int | None, *, rdma: bool) -> InstanceType | None:
    if not known.gpu:
        return None
    try:
        return choose(known.target, gpu=known.gpu, gpus_per_instance=gpus, interconnect="rdma" if rdma else None)
    except JobError:
        return None


def _missing_variables(subject: Subject, entry: Entry) -> list[str]:
    """`FI_PROVIDER=efa` and its like, where the type has EFA and neither job nor toolkit sets them."""
    known = entry.known
    if known is None or known.interconnect != "rdma" or not (known.gpus or known.neuron_cores):
        return []
    wanted = {"FI_PROVIDER": "efa"} | ({"FI_EFA_USE_DEVICE_RDMA": "1"} if known.family in RDMA_FAMILIES else {})
    return [f"{name}={value}" for name, value in wanted.items() if not _is_set(subject, name)]


def _is_set(subject: Subject, name: str) -> bool:
    """Whether the job says it, or the launch view shows it in some process."""
    if name in mapping(subject, "Environment"):
        return True
    return any(
        name in process.env or any(word.startswith(f"{name}=") for word in process.argv)
        for process in subject.plan.processes
    )


def _how_to_set(subject: Subject, missing: list[str]) -> str:
    """mpirun passes on only what it is told to."""
    distribution = subject.job.distribution
    if launcher(subject.job) == "mpirun":
        field = "options" if distribution.type in ("mpi", "horovod") else "mpi_options"
        return f'write `{field}: "{" ".join(f"-x {variable}" for variable in missing)}"` under `distribution`'
    variables = ", ".join(f'{name}: "{value}"' for name, _, value in (one.partition("=") for one in missing))
    return f"write `environment: {{variables: {{{variables}}}}}`"
