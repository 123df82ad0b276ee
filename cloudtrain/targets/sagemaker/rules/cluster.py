"""Rules about SageMaker jobs with several instance types: instance groups and preferences."""

from __future__ import annotations

from collections.abc import Iterator

from cloudtrain.catalogue.machines import MachineGroup
from cloudtrain.core.plan import Level
from cloudtrain.errors import did_you_mean
from cloudtrain.rules.rule import Fault, Subject, rule
from cloudtrain.rules.words import join_names
from cloudtrain.targets.sagemaker.rules.view import Path, cluster, launcher, mapping

_WORDS = {"gpu": "GPUs", "neuron": "Neuron cores", "cpu": "no GPU"}


@rule("SM211", Level.ERROR)
def group_names_repeat(subject: Subject) -> Iterator[Fault]:
    """Two instance groups have the same name.

    Inputs, the distribution and the script identify groups by name, and the API refuses equal names.
    """
    groups = subject.effective.resources.instance_groups
    names = [group.name for group in groups]
    for index, name in enumerate(names):
        if name in names[:index]:
            path = ("resources", "instance_groups", index, "name")
            yield Fault(f"two instance groups are called `{name}`", f"call one `{name}-{index + 1}`", path)


@rule("SM212", Level.ERROR)
def unknown_group(subject: Subject) -> Iterator[Fault]:
    """The job names an instance group that it does not have.

    `resources.distribution_groups` and `inputs.NAME.instance_groups` refer to names in `resources.instance_groups`. If
    the group does not exist, the distribution starts nothing, and no instance receives the input.
    """
    known = [group.name for group in subject.effective.resources.instance_groups]
    named: list[tuple[Path, tuple[str, ...]]] = [
        (("resources", "distribution_groups"), subject.job.resources.distribution_groups)
    ]
    named += [(("inputs", name, "instance_groups"), item.instance_groups) for name, item in subject.job.inputs.items()]
    for place, names in named:
        for index, name in enumerate(names):
            if name not in known:
                hint = did_you_mean(name, known) or "add it to `resources.instance_groups`, or remove it here"
                yield Fault(f"the job has no instance group `{name}`", hint, (*place, index))


@rule("SM213", Level.ERROR)
def group_without_gpu(subject: Subject) -> Iterator[Fault]:
    """The distribution spans groups with GPUs and a group without GPUs.

    Every instance that the distribution spans gets ranks. A rank without a GPU cannot join an NCCL process group, so
    the job hangs until its collectives time out. With `torch_distributed`, the SageMaker SDK silently drops the list of
    distribution groups, so each group runs a separate torchrun (sagemaker 2.257.7).
    """
    machines = cluster(subject)
    if machines.kind != "groups" or launcher(subject) not in ("torchrun", "mpirun"):
        return
    with_gpu = [group.name for group in machines.spanned if group.device in ("gpu", "neuron")]
    for group in machines.spanned:
        if group.device == "cpu" and with_gpu:
            yield Fault(
                f"the group `{group.name}` has no GPU, and `{subject.effective.distribution.type}` spans it",
                f"write `distribution_groups: [{', '.join(with_gpu)}]` under `resources`",
                group.path,
            )


@rule("SM214", Level.WARNING)
def groups_unlike(subject: Subject) -> Iterator[Fault]:
    """The distribution spans groups with different GPUs.

    At each step, all ranks wait for the slowest one. mpirun starts the same number of processes on every instance as on
    the first one. AWS documents only distributions over a single group (developer guide, heterogeneous clusters).
    """
    machines = cluster(subject)
    if machines.kind != "groups" or launcher(subject) not in ("torchrun", "mpirun"):
        return
    kinds = {group.name: group.known.hardware for group in machines.spanned if group.known and group.known.gpus}
    if len(set(kinds.values())) > 1:
        shown = ", ".join(f"`{name}` has {gpus}" for name, gpus in kinds.items())
        first = next(iter(kinds))
        yield Fault(
            f"the distribution spans groups with different GPUs: {shown}",
            f"write `distribution_groups: [{first}]` under `resources`, or give the groups one instance type",
            ("resources", "instance_groups"),
        )


@rule("SM215", Level.ERROR)
def library_over_groups(subject: Subject) -> Iterator[Fault]:
    """SMDDP or SMP would span several instance groups.

    Both libraries need equal instances, because the toolkit starts them for a homogeneous cluster with one instance
    type (`SMDATAPARALLEL_USE_HOMOGENEOUS`, sagemaker-training 5.1.4).
    """
    machines, distribution = cluster(subject), subject.effective.distribution.type
    if distribution not in ("smddp", "smp") or machines.kind != "groups" or len(machines.spanned) < 2:
        return
    first = machines.spanned[0].name
    yield Fault(
        f"`{distribution}` spans the groups {join_names([group.name for group in machines.spanned])}",
        f"write `distribution_groups: [{first}]` under `resources`",
        ("resources", "distribution_groups"),
    )


@rule("SM216", Level.ERROR)
def preference_repeats(subject: Subject) -> Iterator[Fault]:
    """The preferences name an instance type twice.

    The service takes the first type with free capacity; each type may appear once (API reference, InstancePreference).
    """
    groups = _preferences(subject)
    names = [group.instance_type for group in groups]
    for index, group in enumerate(groups):
        if names[index] in names[:index]:
            yield Fault(f"`{names[index]}` is preferred twice", "remove one of them", group.path)


@rule("SM217", Level.ERROR)
def preferences_need_other_images(subject: Subject) -> Iterator[Fault]:
    """The preferred instance types need different images.

    A job has one image, chosen for its first preference. On a type with another accelerator or processor (GPUs,
    Trainium, none, or ARM), the image fails to start, or leaves the accelerators idle.
    """
    groups = [group for group in _preferences(subject) if group.known is not None]
    for group in groups[1:]:
        first = groups[0]
        assert group.known is not None
        assert first.known is not None
        if (group.device, group.known.architecture) != (first.device, first.known.architecture):
            yield Fault(
                f"the image is for `{first.known.name}` ({_kind(first)}), and does not suit `{group.known.name}` "
                f"({_kind(group)})",
                f"remove `{group.known.name}`, or put types of one kind into the list",
                group.path,
            )


@rule("SM218", Level.ERROR)
def preferences_exclude(subject: Subject) -> Iterator[Fault]:
    """The job combines preferred instance types with spot capacity or a placement.

    `InstancePreferences` work only with on-demand capacity and training plans, and not with InstancePlacementConfig
    (API reference, ResourceConfig).
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
    if mapping(subject, "ResourceConfig", "InstancePlacementConfig"):
        yield Fault(
            "`instance_preferences` and `InstancePlacementConfig` exclude each other",
            "remove `InstancePlacementConfig` from `sagemaker_overrides`",
            path,
        )


@rule("SM524", Level.ERROR)
def training_plan_twice(subject: Subject) -> Iterator[Fault]:
    """The target and a preferred instance type both name a training plan.

    A job may set either `TrainingPlanArns` of a preference or `TrainingPlanArn` of the whole job, but not both (API
    reference, InstancePreference).
    """
    if not mapping(subject, "ResourceConfig").get("TrainingPlanArn"):
        return
    for index, row in enumerate(subject.job.resources.instance_preferences):
        if row.training_plan is not None:
            yield Fault(
                f"`{row.instance_type}` has a training plan, and the target has one for all types",
                "remove `training_plan` from `[sagemaker]` in `cloudtrain.toml`, or from the preference",
                ("resources", "instance_preferences", index, "training_plan"),
            )


def _preferences(subject: Subject) -> list[MachineGroup]:
    machines = cluster(subject)
    return list(machines.groups) if machines.kind == "preferences" else []


def _kind(group: MachineGroup) -> str:
    assert group.known is not None
    return f"{_WORDS[group.device or 'cpu']}, {group.known.architecture}"
