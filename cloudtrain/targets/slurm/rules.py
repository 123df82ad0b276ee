"""Rules about Slurm jobs, with codes such as `SL101`."""

from __future__ import annotations

from collections.abc import Iterator

from cloudtrain.job.model import format_duration
from cloudtrain.plans.plan import Level
from cloudtrain.rules.engine import Fault, Nature, Subject, rule
from cloudtrain.targets.common.fields import notices
from cloudtrain.targets.slurm.compile import is_fixed
from cloudtrain.targets.slurm.fields import FIELDS
from cloudtrain.targets.slurm.script import image_of

# Rules about the settings: the shared folder, the partition, and the CPUs and GPUs of the nodes.


@rule("SL101", Level.ERROR, Nature.FACT, needs_request=False)
def no_shared_dir(subject: Subject) -> Iterator[Fault]:
    """No shared folder is configured for runs on the cluster.

    Bundles, outputs, logs and checkpoints need one folder that the login node and every node see,
    such as your folder on Lustre, NFS or FSx. Set `shared_dir` in `[slurm]` of `cloudtrain.toml` to
    its path.
    """
    if "shared_dir" in subject.account.missing:
        yield Fault(
            "no `shared_dir` is set, so cloudtrain has no folder for runs on the cluster",
            'add `shared_dir = "/fsx/you/cloudtrain"` to `[slurm]` in `cloudtrain.toml`',
        )


@rule("SL102", Level.WARNING)
def no_spot_partition(subject: Subject) -> Iterator[Fault]:
    """The job sets `spot`, but no spot partition is configured.

    On Slurm, spot capacity is a partition whose jobs can lose their nodes to other jobs. Without
    `spot_partition` the job runs in the usual partition, at the usual price. It still starts again
    when its nodes are lost.
    """
    if subject.job.spot is not None and subject.settings.spot_partition is None:
        yield Fault(
            "the job sets `spot`, but `[slurm]` has no `spot_partition`",
            "set `spot_partition` in `[slurm]` of `cloudtrain.toml`, or leave `spot` out",
            ("spot",),
        )


@rule("SL103", Level.WARNING)
def one_cpu(subject: Subject) -> Iterator[Fault]:
    """The job shares its nodes and gets only one CPU of each node.

    With `exclusive = false` Slurm gives a job one CPU per task, unless the job asks for more. All
    ranks of a node, and their data loaders, would share this CPU. Set `cpus_per_instance` in
    `[slurm]`.
    """
    settings = subject.settings
    has_cpus = any(
        option.startswith(("--cpus", "-c", "--ntasks")) for option in settings.extra_sbatch
    )
    if not settings.exclusive and settings.cpus_per_instance is None and not has_cpus:
        yield Fault(
            "the job asks for one CPU on each node",
            "set `cpus_per_instance` in `[slurm]`, or remove `exclusive = false`",
        )


@rule("SL104", Level.ERROR)
def option_of_ours(subject: Subject) -> Iterator[Fault]:
    """`extra_sbatch` changes an option that cloudtrain needs for itself.

    cloudtrain finds the job of a run by its name, its comment, its output files and its number.
    With `array`, several jobs would have the same name; with `wait`, a submit would last as long as
    the job. The number of nodes is the job's `instance_count`. sbatch also takes the beginning of
    an option's name, such as `--arr`. Remove the option.
    """
    for option in subject.settings.extra_sbatch:
        name = option.removeprefix("--").partition("=")[0]
        if is_fixed(name):
            hint = "set `instance_count` in the job" if name == "nodes" else f"remove `{option}`"
            yield Fault(
                f"`extra_sbatch` changes `--{name}`, which cloudtrain needs for itself", hint
            )


@rule("SL105", Level.WARNING)
def any_gpu(subject: Subject) -> Iterator[Fault]:
    """The job names a GPU model, but the request to Slurm asks for any GPU.

    Each cluster has its own names for GPU models; `sinfo -o %G` shows them, such as `gpu:a100:8`.
    Set `gpu_type` to the cluster's name, or set `constraint` or the job's `instance_type` to a
    feature of the right nodes.
    """
    resources = subject.job.resources
    settings = subject.settings
    selector = settings.gpu_type or settings.constraint or resources.instance_type is not None
    if resources.gpu is not None and resources.gpus_per_instance and not selector:
        yield Fault(
            f"the job needs a `{resources.gpu}`, but the request to Slurm asks for any GPU",
            "set `gpu_type` in `[slurm]`: `sinfo -o %G` shows the names",
            ("resources", "gpu"),
        )


# Rules about the job: GPUs, time, and packages that a cluster does not install.


@rule("SL203", Level.ERROR, Nature.FACT)
def no_gpu_count(subject: Subject) -> Iterator[Fault]:
    """The job names a GPU model, but no number of GPUs.

    Slurm gives a job only the GPUs that it asks for, so this job would get none. Add
    `gpus_per_instance`: `sinfo -o %G` shows how many GPUs each node has.
    """
    resources = subject.job.resources
    if resources.gpu is not None and resources.gpus_per_instance is None:
        yield Fault(
            f"the job asks for a `{resources.gpu}` without the number of GPUs on each node",
            "add `gpus_per_instance: 8`",
            ("resources", "gpus_per_instance"),
        )


@rule("SL204", Level.ERROR)
def no_time_to_train(subject: Subject) -> Iterator[Fault]:
    """The grace period is as long as the time limit or longer.

    Slurm sends SIGTERM `grace_period` before the time limit, so that the script can save. This job
    would get SIGTERM as soon as it starts. Raise `max_runtime` or lower `grace_period`.
    """
    limit = subject.job.max_runtime
    grace = subject.settings.grace_period
    if limit is not None and limit <= grace:
        message = (
            f"the time limit is {format_duration(limit)}, and SIGTERM comes "
            f"{format_duration(grace)} before it"
        )
        yield Fault(
            message, "raise `max_runtime`, or lower `grace_period` in `[slurm]`", ("max_runtime",)
        )


@rule("SL205", Level.NOTICE)
def no_installation(subject: Subject) -> Iterator[Fault]:
    """cloudtrain does not install the job's requirements on the cluster.

    Without `python` and `setup` in `[slurm]`, cloudtrain installs them on the login node, into an
    environment that jobs with the same requirements share. It does not install them into a
    container, and not where `python` or `setup` name an environment of your own: the packages must
    be there. `build_environment = true` installs them on top of your own environment. If you set
    `python` or `setup`, and `build_environment = false`, cloudtrain does not report this.
    """
    settings = subject.settings
    file = subject.job.environment.requirements
    is_own = settings.has_own_environment
    if file is None:
        return

    message = f"cloudtrain does not install `{file}`"
    if image_of(subject.job) is not None:
        message += ": the image must have its packages"
        hint = "build an image that has them, or remove `image`"
    elif settings.build_environment is None and is_own:
        place = "the environment of `setup`"
        if settings.python != "python3":
            place = f"`{settings.python}`"
        message += f": {place} must have its packages"
        hint = "`build_environment = true` in `[slurm]` installs them on top of it"
    elif settings.build_environment is False and not is_own:
        message += " on the cluster, because `build_environment` is false"
        hint = "remove `build_environment = false` from `[slurm]`"
    else:
        return
    yield Fault(message, hint, ("environment", "requirements"))


@rule("SL206", Level.WARNING)
def variable_of_slurm(subject: Subject) -> Iterator[Fault]:
    """The job sets a variable that Slurm's commands read.

    Inside the job, `srun` reads `SLURM_*` and `SRUN_*` variables as options, so the ranks would
    start differently from what the plan shows. Use `extra_sbatch` or `slurm_overrides` instead.
    """
    for name in subject.job.environment.variables:
        if name.startswith(("SLURM_", "SRUN_", "SBATCH_")):
            yield Fault(
                f"the variable `{name}` changes how `srun` starts the ranks",
                "remove it; change Slurm's options with `extra_sbatch` or `slurm_overrides`",
                ("environment", "variables", name),
            )


@rule("SL207", Level.NOTICE)
def no_time_limit(subject: Subject) -> Iterator[Fault]:
    """The job sets no time limit.

    The partition's limit applies, which can be days. Slurm also cannot start the job early in a gap
    between other jobs. Set `max_runtime`.
    """
    if subject.job.max_runtime is None:
        yield Fault(
            "the job sets no time limit, so the partition's limit applies",
            "add `max_runtime: 2h`",
            ("max_runtime",),
        )


@rule("SL208", Level.NOTICE)
def no_image(subject: Subject) -> Iterator[Fault]:
    """On a cluster, `framework` and `version` have no effect.

    On the clouds, `framework`, `version` and `python` choose an image. On a cluster, the script
    uses the installed framework and Python. Name an `image`, or set `python` in `[slurm]` to an
    interpreter that has the framework.
    """
    environment = subject.job.environment
    values = {
        "framework": environment.framework,
        "version": environment.version,
        "python": environment.python and f"Python {environment.python}",
    }
    written = {field: word for field, word in values.items() if word}
    if not written or image_of(subject.job) is not None or subject.settings.has_own_environment:
        return
    message = f"no setting selects {' '.join(written.values())} on the cluster"
    hint = "set `python` or `setup` in `[slurm]` to an environment that has it"
    yield Fault(message, hint, ("environment", next(iter(written))))


@rule("SL209", Level.NOTICE)
def not_sent(subject: Subject) -> Iterator[Fault]:
    """A field of the job has no effect on a Slurm cluster.

    These fields describe features of the clouds, such as a container's shared memory, the size of a
    disk, the content type of an input, or the name of an output in a registry. A Slurm job runs
    with the nodes, files and software of its cluster. The message names the reason for the field,
    and the hint says what to do instead.
    """
    yield from notices(subject, FIELDS)
