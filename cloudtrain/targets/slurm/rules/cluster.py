"""Rules about the settings: the shared folder, the partition, and the CPUs and GPUs of the nodes."""

from __future__ import annotations

from collections.abc import Iterator

from cloudtrain.core.plan import Level
from cloudtrain.rules.rule import Fault, Subject, rule
from cloudtrain.targets.slurm.compile.options import is_fixed


@rule("SL101", Level.ERROR)
def no_shared_dir(subject: Subject) -> Iterator[Fault]:
    """No shared folder is configured for runs on the cluster.

    Bundles, outputs, logs and checkpoints need one folder that the login node and every node see, such as your folder
    on Lustre, NFS or FSx. Set `shared_dir` in `[slurm]` of `cloudtrain.toml` to its path.
    """
    if "shared_dir" in subject.account.missing:
        hint = 'add `shared_dir = "/fsx/you/cloudtrain"` to `[slurm]` in `cloudtrain.toml`'
        yield Fault("no `shared_dir` is set, so cloudtrain has no folder for runs on the cluster", hint)


@rule("SL102", Level.WARNING)
def no_spot_partition(subject: Subject) -> Iterator[Fault]:
    """The job sets `spot`, but no spot partition is configured.

    On Slurm, spot capacity is a partition whose jobs can lose their nodes to other jobs. Without `spot_partition` the
    job runs in the usual partition, at the usual price. It still starts again when its nodes are lost.
    """
    if subject.job.spot is not None and subject.target.spot_partition is None:
        hint = "set `spot_partition` in `[slurm]` of `cloudtrain.toml`, or leave `spot` out"
        yield Fault("the job sets `spot`, but `[slurm]` has no `spot_partition`", hint, ("spot",))


@rule("SL103", Level.WARNING)
def one_cpu(subject: Subject) -> Iterator[Fault]:
    """The job shares its nodes and gets only one CPU of each node.

    With `exclusive = false` Slurm gives a job one CPU per task, unless the job asks for more. All ranks of a node, and
    their data loaders, would share this CPU. Set `cpus_per_instance` in `[slurm]`.
    """
    settings = subject.target
    given = any(option.startswith(("--cpus", "-c", "--ntasks")) for option in settings.extra_sbatch)
    if not settings.exclusive and settings.cpus_per_instance is None and not given:
        hint = "set `cpus_per_instance` in `[slurm]`, or remove `exclusive = false`"
        yield Fault("the job asks for one CPU on each node", hint)


@rule("SL104", Level.ERROR)
def option_of_ours(subject: Subject) -> Iterator[Fault]:
    """`extra_sbatch` changes an option that cloudtrain needs for itself.

    cloudtrain finds the job of a run by its name, its comment, its output files and its number. With `array`, several
    jobs would have the same name; with `wait`, a submit would last as long as the job. The number of nodes is the job's
    `instance_count`. sbatch also takes the beginning of an option's name, such as `--arr`. Remove the option.
    """
    for option in subject.target.extra_sbatch:
        name = option.removeprefix("--").partition("=")[0]
        if is_fixed(name):
            hint = "set `instance_count` in the job" if name == "nodes" else f"remove `{option}`"
            yield Fault(f"`extra_sbatch` changes `--{name}`, which cloudtrain needs for itself", hint)


@rule("SL105", Level.WARNING)
def any_gpu(subject: Subject) -> Iterator[Fault]:
    """The job names a GPU model, but the request to Slurm asks for any GPU.

    Each cluster has its own names for GPU models; `sinfo -o %G` shows them, such as `gpu:a100:8`. Set `gpu_type` to the
    cluster's name, or set `constraint` or the job's `instance_type` to a feature of the right nodes.
    """
    resources, settings = subject.job.resources, subject.target
    chosen = settings.gpu_type or settings.constraint or resources.instance_type is not None
    if resources.gpu is not None and resources.gpus_per_instance and not chosen:
        message = f"the job needs a `{resources.gpu}`, but the request to Slurm asks for any GPU"
        yield Fault(message, "set `gpu_type` in `[slurm]`: `sinfo -o %G` shows the names", ("resources", "gpu"))
