"""Rules about the instance types of a SageMaker job: whether they exist, and whether they fit the
job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches

from cloudtrain.errors import InPlace, NearName, did_you_mean, join_names
from cloudtrain.job.model import OVERRIDES, exact_duration, format_duration
from cloudtrain.machines.choose import MachineGroup
from cloudtrain.machines.table import InstanceType, instance_named, instance_types
from cloudtrain.plans.plan import Level
from cloudtrain.plans.processes import Processes
from cloudtrain.rules import machines as shared
from cloudtrain.rules.engine import (
    Fault,
    Nature,
    Subject,
    ValuePath,
    mapping_at,
    rows_at,
    rule,
    text_at,
    value_at,
)
from cloudtrain.rules.facts import counterpart
from cloudtrain.rules.job import short_wait, wait_shorter_than_run
from cloudtrain.rules.machines import over_ethernet
from cloudtrain.runtime.sagemaker_launcher.variables import RDMA_FAMILIES
from cloudtrain.targets.sagemaker.catalogue.images import numbers
from cloudtrain.targets.sagemaker.fields import CHANNELS, MACHINES
from cloudtrain.targets.sagemaker.reading import read
from cloudtrain.targets.sagemaker.rules.data import input_path
from cloudtrain.targets.sagemaker.rules.distribution import devices_of, distribution_ignored

_FINDS_EFA = (2, 6)
"""The first images of PyTorch whose NCCL plugin needs no variable.

Source: docker/2.6/py3/cu126/Dockerfile.gpu of PyTorch in aws/deep-learning-containers.
"""

_GB_PER_GIB = 2**30 / 10**9


@rule("SM201", Level.ERROR)
def unknown_type(subject: Subject) -> Iterator[Fault]:
    """The instance type does not exist.

    The catalogue has all 225 types that CreateTrainingJob accepts (botocore 1.44.5). The SageMaker
    SDK accepts any text of the form `ml.FAMILY.SIZE`, and chooses a CPU image for an unknown
    family. If a type is newer than the catalogue, add it to `instances.toml`.
    """
    for group in subject.reading.machines.groups:
        name = group.instance_type
        if group.known is not None:
            continue
        if instance_named("sagemaker", f"ml.{name}") is not None:
            continue
        hint = counterpart(name, "sagemaker")
        near = _nearest(name.lower())
        if not hint and near:
            hint = NearName.of(near[0])
        hint = hint or "`cloudtrain instances --target sagemaker` lists the types"
        yield Fault(f"SageMaker has no instance type `{name}`", hint, group.path)


@rule("SM202", Level.ERROR)
def type_without_prefix(subject: Subject) -> Iterator[Fault]:
    """The instance type has the name of an EC2 type.

    SageMaker's names begin with `ml.`, such as `ml.g5.xlarge` for the EC2 type `g5.xlarge`.
    """
    for group in subject.reading.machines.groups:
        name = group.instance_type
        if instance_named("sagemaker", f"ml.{name}"):
            message = f"`{name}` is EC2's name for the instance type"
            yield Fault(message, InPlace(f"write `ml.{name}`"), group.path)


@rule("SM203", Level.WARNING)
def retired_type(subject: Subject) -> Iterator[Fault]:
    """The instance type is retired, or will be.

    A job on a retired type fails at once, or waits forever for capacity. The date of retirement
    comes from the catalogue or from your own `instances.toml`.
    """
    return shared.retired_type(subject)


@rule("SM204", Level.WARNING)
def without_efa(subject: Subject) -> Iterator[Fault]:
    """The job trains on several GPU instances without EFA.

    Gradients then travel over TCP, and the GPUs wait for them. Except for small models, a second
    instance can make training slower. Types with EFA (`cloudtrain instances --interconnect rdma`)
    let NCCL bypass the kernel. One larger instance with as many GPUs needs no network at all. To
    use Ethernet on purpose, write `interconnect: ethernet` under `resources`.
    """
    return over_ethernet(subject, "SM204")


rule("SM205", Level.ERROR)(shared.type_is_not_as_described)


@rule("SM206", Level.WARNING)
def efa_left_off(subject: Subject) -> Iterator[Fault]:
    """The image's toolkit does not switch on the EFA of this instance type.

    The training toolkit sets `FI_PROVIDER=efa` and `FI_EFA_USE_DEVICE_RDMA=1` only for instance
    types in its own list (sagemaker-training 5.1.4). The list lacks p5en, p6, g6, g6e, trn1n and
    trn2; before 5.1.2 it lacks RDMA on p5. NCCL plugins before aws-ofi-nccl 1.7.0 need these
    variables; without them they fall back to TCP, which is several times slower. Newer plugins find
    EFA by themselves (aws-ofi-nccl's doc/efa-env-var.md). AWS's PyTorch images have a newer plugin
    from 2.6 on, because EFA's installer 1.38.0 contains it. You can set the variables with all
    plugins; cloudtrain's own launcher sets them (`launch = "entrypoint"`).
    """
    machines = subject.reading.machines
    if machines.spanned_count < 2:
        return
    if read(subject).start.by != "toolkit":
        return
    if subject.reading.launcher in ("none", "tensorflow"):
        return
    for group in machines.spanned:
        missing = _missing_variables(subject, group.known) if group.known else {}
        if missing:
            names = join_names(list(missing))
            message = f"the image's toolkit does not set {names} on `{group.instance_type}`"
            yield Fault(message, _how_to_set(subject, missing), group.path)


@rule("SM207", Level.WARNING)
def fixed_disk_too_small(subject: Subject) -> Iterator[Fault]:
    """The instance type's fixed disk is smaller than the job's `volume_size`.

    On types with local NVMe disks, a job gets only these disks, and the service ignores
    `volume_size` (API reference, ResourceConfig). If the data does not fit, the job fails during
    the download.
    """
    size = mapping_at(subject.plan.request, "ResourceConfig").get("VolumeSizeInGB")
    if not isinstance(size, int):
        return
    overridden = subject.reading.override_of("ResourceConfig", "VolumeSizeInGB")
    hint = (
        "remove `volume_size`, and read the data on demand with `mode: mount`; or name "
        "a type with a larger disk"
    )
    for group in subject.reading.machines.groups:
        disk = group.known.nvme_gb if group.known else 0
        if disk and size * _GB_PER_GIB > disk:
            message = (
                f"`volume_size` asks for {size:,} GiB, and `{group.instance_type}` has a fixed "
                f"disk of {disk:,} GB"
            )
            yield Fault(message, hint, overridden or ("resources", "volume_size"))


@rule("SM208", Level.ERROR)
def key_for_local_disk(subject: Subject) -> Iterator[Fault]:
    """The job sets a volume key for an instance type with local disks.

    The machine encrypts local NVMe disks with its own key. The API refuses `VolumeKmsKeyId` for
    such instance types (API reference, ResourceConfig).
    """
    if not text_at(subject.plan.request, "ResourceConfig", "VolumeKmsKeyId"):
        return
    path = subject.reading.override_of("ResourceConfig", "VolumeKmsKeyId") or ()
    hint = "remove `volume_kms_key` from the target's settings for this job"
    for group in subject.reading.machines.groups:
        if group.known and group.known.nvme_gb:
            name = group.known.name
            yield Fault(
                f"`{name}` encrypts its local disk itself and takes no `volume_kms_key`", hint, path
            )


def _nearest(name: str) -> list[str]:
    """Return the known type with the most similar name, `ml.g5.xlarge` for `ml.g5.xlrge`; none if
    nothing is similar.

    Families (`g5`) are compared first, because many types share a size (`xlarge`).
    """
    families = {row.family: row for row in instance_types("sagemaker")}
    near = get_close_matches(name.removeprefix("ml.").rpartition(".")[0], families, n=1)
    names = [row.name for row in instance_types("sagemaker") if row.family in near]
    return get_close_matches(name, names, n=1, cutoff=0)


def _missing_variables(subject: Subject, entry: InstanceType) -> dict[str, str]:
    """Return the EFA variables that the instance type needs and that are not set."""
    if entry.interconnect != "rdma":
        return {}
    if not entry.gpus and not entry.neuron_cores:
        return {}

    image = read(subject).image
    if image is not None and entry.gpus:
        framework, version = image.engine
        if framework == "pytorch" and numbers(version) >= _FINDS_EFA:
            return {}

    variables = {"FI_PROVIDER": "efa"}
    if entry.family in RDMA_FAMILIES:
        variables["FI_EFA_USE_DEVICE_RDMA"] = "1"
    return {name: value for name, value in variables.items() if not _is_set(subject, name)}


def _is_set(subject: Subject, name: str) -> bool:
    """Return whether the job or any process in the plan sets the variable."""
    if name in mapping_at(subject.plan.request, "Environment"):
        return True
    for process in Processes.of(subject.plan.processes).examples:
        if name in process.env:
            return True
        if any(word.startswith(f"{name}=") for word in process.argv):
            return True
    return False


def _how_to_set(subject: Subject, missing: Mapping[str, str]) -> str:
    """Return a hint on how to set the variables. mpirun needs `-x` options to pass them to the
    ranks."""
    if subject.reading.launcher == "mpirun":
        is_plain_mpi = subject.reading.distribution.type in ("mpi", "horovod")
        field = "options" if is_plain_mpi else "mpi_options"
        options = " ".join(f"-x {name}={value}" for name, value in missing.items())
        return f'write `{field}: "{options}"` under `distribution`'
    variables = ", ".join(f'{name}: "{value}"' for name, value in missing.items())
    return f"write `environment: {{variables: {{{variables}}}}}`"


# Rules about SageMaker jobs with several instance types: instance groups and preferences.

_WORDS = {"gpu": "GPUs", "neuron": "Neuron cores", "cpu": "no GPU"}


@rule("SM211", Level.ERROR)
def group_names_repeat(subject: Subject) -> Iterator[Fault]:
    """Two instance groups have the same name.

    Inputs, the distribution and the script identify groups by name, and the API refuses equal
    names.
    """
    names = [group.name for group in subject.reading.resources.instance_groups]
    for index, name in enumerate(names):
        if name in names[:index]:
            message = f"two instance groups are called `{name}`"
            path = ("resources", "instance_groups", index, "name")
            number = index + 1
            yield Fault(message, InPlace(f"call one `{name}-{number}`"), path)


@rule("SM212", Level.ERROR, Nature.FACT)
def unknown_group(subject: Subject) -> Iterator[Fault]:
    """The job names an instance group that it does not have.

    `resources.distribution_groups` and `inputs.NAME.instance_groups` refer to names in
    `resources.instance_groups`. If the group does not exist, the distribution starts nothing, and
    no instance receives the input.
    """
    known = [group.name for group in subject.reading.resources.instance_groups]
    named: list[tuple[ValuePath, Sequence[str]]] = []
    named.append((("resources", "distribution_groups"), subject.job.resources.distribution_groups))
    for channel in rows_at(subject.plan.request, CHANNELS):
        place = input_path(subject, channel.get("ChannelName"))
        named.append(((*place, "instance_groups"), _groups_of(channel)))

    for place, names in named:
        for index, name in enumerate(names):
            if name not in known:
                near = did_you_mean(name, known)
                hint = near or "add it to `resources.instance_groups`, or remove it here"
                yield Fault(f"the job has no instance group `{name}`", hint, (*place, index))
            elif name in names[:index]:
                yield Fault(
                    f"the instance group `{name}` is named twice", "remove one", (*place, index)
                )


@rule("SM219", Level.ERROR)
def channels_without_group(subject: Subject) -> Iterator[Fault]:
    """Some inputs name instance groups, and others do not.

    If one channel names the groups that receive it, the service refuses a job in which another
    channel names none: "Some channels have assigned instance groups". cloudtrain names all groups
    for the channels that it adds itself, such as the one with the code. A file system cannot be
    given to groups at all.
    """
    channels = rows_at(subject.plan.request, CHANNELS)
    if not any(map(_groups_of, channels)):
        return
    names = [group.name for group in subject.reading.resources.instance_groups]
    for channel in channels:
        if _groups_of(channel):
            continue
        message = f"`{channel.get('ChannelName')}` names no instance group, and other inputs do"
        hint = f"write `instance_groups: [{', '.join(names)}]` under it"
        if value_at(channel, "DataSource", "FileSystemDataSource"):
            hint = "remove `instance_groups` from the other inputs; a file system takes none"
        path = input_path(subject, channel.get("ChannelName"))
        yield Fault(message, InPlace(hint), path)


@rule("SM220", Level.ERROR)
def machines_named_again(subject: Subject) -> Iterator[Fault]:
    """The overrides name the machines in a second way.

    The service takes one instance type with its count, or instance groups, or instance preferences,
    and refuses a request that has two of them.
    """
    config = mapping_at(subject.plan.request, MACHINES)
    ways = [*filter(config.get, ("InstanceGroups", "InstancePreferences", "InstanceType"))]
    if len(ways) > 1:
        message = f"`ResourceConfig` has {join_names(ways)}, of which the service takes one"
        path = (subject.reading.service + OVERRIDES, MACHINES)
        yield Fault(message, "remove it, and write the machines under `resources` alone", path)


def _groups_of(channel: Mapping[str, object]) -> list[str]:
    """Return the names of the groups that receive a channel; none if all do."""
    names = value_at(channel, "DataSource", "S3DataSource", "InstanceGroupNames")
    return names if isinstance(names, list) else []


@rule("SM213", Level.ERROR)
def group_without_gpu(subject: Subject) -> Iterator[Fault]:
    """The distribution spans groups with GPUs and a group without GPUs.

    Every instance that the distribution spans gets ranks. A rank without a GPU cannot join an NCCL
    process group, so the job hangs until its collectives time out. With `torch_distributed`, the
    SageMaker SDK silently drops the list of distribution groups, so each group runs a separate
    torchrun (sagemaker 2.257.7).
    """
    groups = _launched_groups(subject)
    with_gpu = [group.name for group in groups if group.device in ("gpu", "neuron")]
    if not with_gpu:
        return
    kind = subject.reading.distribution.type
    hint = f"write `distribution_groups: [{', '.join(with_gpu)}]` under `resources`"
    for group in groups:
        if group.device == "cpu":
            message = f"the group `{group.name}` has no GPU, and `{kind}` spans it"
            yield Fault(message, hint, group.path)


@rule("SM214", Level.WARNING)
def groups_unlike(subject: Subject) -> Iterator[Fault]:
    """The distribution spans groups with different GPUs.

    At each step, all ranks wait for the slowest one. mpirun starts the same number of processes on
    every instance as on the first one. AWS documents only distributions over a single group
    (developer guide, heterogeneous clusters).
    """
    kinds: dict[str, str] = {}
    for group in _launched_groups(subject):
        if group.known and group.known.gpus:
            kinds[group.name] = group.known.hardware
    if len(set(kinds.values())) > 1:
        text = ", ".join(f"`{name}` has {gpus}" for name, gpus in kinds.items())
        message = f"the distribution spans groups with different GPUs: {text}"
        hint = (
            f"write `distribution_groups: [{next(iter(kinds))}]` under `resources`, or give the "
            "groups one instance type"
        )
        yield Fault(message, hint, ("resources", "instance_groups"))


def _launched_groups(subject: Subject) -> Sequence[MachineGroup]:
    """Return the instance groups that torchrun or mpirun spans; none in other jobs."""
    machines = subject.reading.machines
    is_launched = subject.reading.launcher in ("torchrun", "mpirun")
    return machines.spanned if is_launched and machines.kind == "groups" else ()


@rule("SM215", Level.ERROR)
def library_over_groups(subject: Subject) -> Iterator[Fault]:
    """SMDDP or SMP would span several instance groups.

    Both libraries need equal instances, because the toolkit starts them for a homogeneous cluster
    with one instance type (`SMDATAPARALLEL_USE_HOMOGENEOUS`, sagemaker-training 5.1.4).
    """
    machines = subject.reading.machines
    library = subject.reading.distribution.type
    if library not in ("smddp", "smp") or machines.kind != "groups":
        return
    names = [group.name for group in machines.spanned]
    if len(names) > 1:
        message = f"`{library}` spans the groups {join_names(names)}"
        hint = f"write `distribution_groups: [{names[0]}]` under `resources`"
        yield Fault(message, hint, ("resources", "distribution_groups"))


@rule("SM216", Level.ERROR)
def preference_repeats(subject: Subject) -> Iterator[Fault]:
    """The preferences name an instance type twice.

    The service takes the first type with free capacity; each type may appear once (API reference,
    InstancePreference).
    """
    seen: set[str] = set()
    for group in _preferences(subject):
        name = group.instance_type
        if name in seen:
            yield Fault(f"`{name}` is preferred twice", "remove one of them", group.path)
        seen.add(name)


@rule("SM217", Level.ERROR)
def preferences_need_other_images(subject: Subject) -> Iterator[Fault]:
    """The preferred instance types need different images.

    A job has one image, chosen for its first preference. On a type with another accelerator or
    processor (GPUs, Trainium, none, or ARM), the image fails to start, or leaves the accelerators
    idle.
    """
    image_for = None
    for group in _preferences(subject):
        if group.known is None:
            continue
        name = group.known.name
        kind = f"{_WORDS[group.device or 'cpu']}, {group.known.architecture}"
        image_for = image_for or kind
        if kind != image_for:
            message = f"the image is for types with {image_for}, and `{name}` has {kind}"
            yield Fault(
                message, f"remove `{name}`, or put types of one kind into the list", group.path
            )


@rule("SM218", Level.ERROR)
def preferences_exclude(subject: Subject) -> Iterator[Fault]:
    """The job combines preferred instance types with spot capacity or a placement.

    `InstancePreferences` work only with on-demand capacity and training plans, and not with
    InstancePlacementConfig (API reference, ResourceConfig).
    """
    if not _preferences(subject):
        return
    path = ("resources", "instance_preferences")
    if subject.plan.request.get("EnableManagedSpotTraining"):
        yield Fault(
            "`instance_preferences` and `spot` exclude each other",
            "remove `spot`, or name one `instance_type` instead of several",
            path,
        )
    if mapping_at(subject.plan.request, "ResourceConfig", "InstancePlacementConfig"):
        yield Fault(
            "`instance_preferences` and `InstancePlacementConfig` exclude each other",
            "remove `InstancePlacementConfig` from `sagemaker_overrides`",
            path,
        )


@rule("SM524", Level.ERROR)
def training_plan_twice(subject: Subject) -> Iterator[Fault]:
    """The target and a preferred instance type both name a training plan.

    A job may set either `TrainingPlanArns` of a preference or `TrainingPlanArn` of the whole job,
    but not both (API reference, InstancePreference).
    """
    if not mapping_at(subject.plan.request, "ResourceConfig").get("TrainingPlanArn"):
        return
    hint = "remove `training_plan` from `[sagemaker]` in `cloudtrain.toml`, or from the preference"
    for index, row in enumerate(subject.job.resources.instance_preferences):
        if row.training_plan is not None:
            name = row.instance_type
            path = ("resources", "instance_preferences", index, "training_plan")
            yield Fault(
                f"`{name}` has a training plan, and the target has one for all types", hint, path
            )


def _preferences(subject: Subject) -> list[MachineGroup]:
    """Return the preferred instance types; none if the job names one type or groups."""
    machines = subject.reading.machines
    return list(machines.groups) if machines.kind == "preferences" else []


# Rules that compare the number of processes with the number of GPUs.
#
# They count the processes that the container will really start, with all overrides.


@rule("SM331", Level.WARNING)
def fewer_processes_than_gpus(subject: Subject) -> Iterator[Fault]:
    """An instance has more GPUs than processes.

    A process uses one GPU, unless the script itself uses more, with `cuda:1`, `DataParallel` or
    `device_map`. You pay for the other GPUs, and they stay idle. cloudtrain counts the processes
    that the container will start, including overrides and the toolkit's own rules.
    """
    if not any(distribution_ignored(subject)):
        yield from shared.fewer_processes_than_gpus(subject)


@rule("SM332", Level.ERROR)
def more_processes_than_gpus(subject: Subject) -> Iterator[Fault]:
    """An instance has more processes than GPUs.

    With two ranks on one GPU, NCCL fails at start ("Duplicate GPU detected"), when you already pay
    for the machines. On Trainium each process uses a Neuron core.
    """
    return shared.more_processes_than_gpus(subject)


rule("SM333", Level.WARNING)(shared.more_ranks_than_gpus)


@rule("SM334", Level.WARNING)
def mpi_with_one_process(subject: Subject) -> Iterator[Fault]:
    """mpirun starts a single process.

    Without `processes_per_instance`, mpirun starts one process for each GPU, or one on an instance
    without GPUs. On a single instance with at most one GPU, this is a single process, so nothing is
    distributed. The SageMaker SDK starts such a job without a warning.
    """
    return shared.mpi_with_one_process(subject)


# Rules about time on SageMaker: limits, spot capacity, warm pools and training plans.

_LONGEST_RUN = 28 * 86_400
"""Longest run in seconds (API reference, StoppingCondition). The service's model lacks this
limit."""

_LONGEST_POOL_OF_GUIDE = 3600
"""Longest warm pool in seconds (developer guide, managed warm pools); the service's model allows
21,600."""


@rule("SM401", Level.ERROR)
def spot_without_limit(subject: Subject) -> Iterator[Fault]:
    """A spot job does not limit its waiting time.

    A spot job needs `MaxWaitTimeInSeconds`, which limits waiting and running together. The
    SageMaker SDK sends the job without this limit (2.257.7), and the service refuses the job.
    """
    if not _is_on_spot(subject):
        return
    if read(subject).seconds("MaxWaitTimeInSeconds") is None:
        run = read(subject).seconds("MaxRuntimeInSeconds") or 0
        hint = f"write `spot: {{max_wait: {exact_duration(2 * run)}}}`"
        yield Fault("a spot job needs a limit for waiting and running together", hint, ("spot",))


@rule("SM402", Level.ERROR)
def spot_with_warm_pool(subject: Subject) -> Iterator[Fault]:
    """The job asks for a warm pool on spot capacity.

    A warm pool cannot keep spot instances, so the service refuses the job (developer guide, managed
    warm pools).
    """
    if _is_on_spot(subject) and read(subject).seconds("KeepAlivePeriodInSeconds"):
        yield Fault(
            "spot capacity cannot be kept in a warm pool",
            "remove `spot` from the job, or `keep_alive` from the target's settings",
            ("spot",),
        )


@rule("SM403", Level.ERROR)
def wait_shorter_than_default_run(subject: Subject) -> Iterator[Fault]:
    """`spot.max_wait` is shorter than the time that the job may run.

    `spot.max_wait` limits waiting and running together, so it cannot be less than `max_runtime`,
    whose default is one day. The SageMaker SDK sends such a job, and the service refuses it.
    """
    if any(wait_shorter_than_run(subject)):
        return  # CT402 reports it
    wait = read(subject).seconds("MaxWaitTimeInSeconds")
    run = read(subject).seconds("MaxRuntimeInSeconds")
    if wait is None or run is None:
        return
    if wait >= run:
        return
    message = short_wait(wait, run)
    if subject.job.max_runtime is None:
        message += ", the default"
    hint = f"set `max_runtime` to at most `{exact_duration(wait)}`"
    yield Fault(message, hint, ("spot", "max_wait"))


@rule("SM404", Level.ERROR)
def warm_pool_of_groups(subject: Subject) -> Iterator[Fault]:
    """The job asks for a warm pool on a heterogeneous cluster.

    Warm pools keep only equal instances, so a job cannot have both `KeepAlivePeriodInSeconds` and
    `InstanceGroups` (developer guide, managed warm pools).
    """
    is_kept = read(subject).seconds("KeepAlivePeriodInSeconds")
    if is_kept and subject.reading.machines.kind == "groups":
        yield Fault(
            "a job with instance groups cannot be kept in a warm pool",
            "remove `keep_alive` from the target's settings for this job",
            ("resources", "instance_groups"),
        )


@rule("SM405", Level.WARNING)
def spot_with_training_plan(subject: Subject) -> Iterator[Fault]:
    """The job uses a training plan on spot capacity.

    A training plan is capacity that you reserved and paid for in advance. A spot job would wait for
    other machines at extra cost, while the reserved machines stay idle.
    """
    if _is_on_spot(subject) and text_at(subject.plan.request, "ResourceConfig", "TrainingPlanArn"):
        yield Fault(
            "the job has reserved capacity from a training plan, and asks for spot capacity",
            "remove `spot` from the job, or `training_plan` from the target's settings",
            ("spot",),
        )


@rule("SM406", Level.ERROR)
def run_too_long(subject: Subject) -> Iterator[Fault]:
    """The job's `max_runtime` is longer than SageMaker allows.

    SageMaker ends a training job after 28 days at the latest. Longer training needs checkpoints and
    a second job.
    """
    return shared.run_too_long(subject, _LONGEST_RUN)


@rule("SM407", Level.WARNING)
def warm_pool_long(subject: Subject) -> Iterator[Fault]:
    """A warm pool is kept for more than an hour.

    The limit is one hour in the developer guide, and six hours in the API's model. In accounts with
    the lower limit, the service refuses the job. In all accounts, the idle instances are billed
    like a running job.
    """
    keep = read(subject).seconds("KeepAlivePeriodInSeconds") or 0
    if keep > _LONGEST_POOL_OF_GUIDE:
        yield Fault(
            f"`keep_alive` is {format_duration(keep)}, and SageMaker's guide allows 1h",
            'write `keep_alive = "1h"`, or accept it with `--ignore SM407`',
        )


@rule("SM408", Level.NOTICE)
def pending_limit_without_effect(subject: Subject) -> Iterator[Fault]:
    """`max_pending` has no effect on instances without accelerators.

    `MaxPendingTimeInSeconds` works on `ml.p`, `ml.g` and `ml.trn` types only (API reference,
    StoppingCondition).
    """
    groups = subject.reading.machines.groups
    if devices_of(groups) != {"cpu"}:
        return
    if read(subject).seconds("MaxPendingTimeInSeconds") is not None:
        yield Fault(
            f"`max_pending` has no effect on `{groups[0].instance_type}`",
            (
                "remove `max_pending` from the target's settings for this job, or name a type "
                "with GPUs or Trainium"
            ),
        )


def _is_on_spot(subject: Subject) -> bool:
    return subject.plan.request.get("EnableManagedSpotTraining") is True
