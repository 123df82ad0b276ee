"""Rules about the settings: the shared folder, the partition and what each node provides."""

from __future__ import annotations

from collections.abc import Iterator

from cloudtrain.core.plan import Level
from cloudtrain.rules.rule import Fault, Subject, rule

_OURS = ("job-name", "comment", "output", "error", "open-mode", "export", "parsable", "array", "wrap", "test-only")


@rule("SL101", Level.ERROR)
def no_shared_dir(subject: Subject) -> Iterator[Fault]:
    """Nothing says where runs are on the cluster.

    Bundles, outputs, logs and checkpoints lie in one folder that the login node and every node see, such as a folder of
    yours on Lustre, NFS or FSx. Write it as `shared_dir` into `[slurm]` of `cloudtrain.toml`.
    """
    if "shared_dir" in subject.account.missing:
        hint = 'add `shared_dir = "/fsx/you/cloudtrain"` to `[slurm]` in `cloudtrain.toml`'
        yield Fault("no `shared_dir` is set, so runs have no place on the cluster", hint)


@rule("SL102", Level.WARNING)
def no_spot_partition(subject: Subject) -> Iterator[Fault]:
    """The job wants spare capacity, and no partition has it.

    Slurm's spare capacity is a partition whose jobs lose their nodes to others. Without `spot_partition` the job runs
    where all jobs run, at the same price. It still starts again when its nodes are lost.
    """
    if subject.job.spot is not None and subject.target.spot_partition is None:
        hint = "set `spot_partition` in `[slurm]` of `cloudtrain.toml`, or leave `spot` out"
        yield Fault("`spot` is set, and `[slurm]` names no `spot_partition`", hint, ("spot",))


@rule("SL103", Level.WARNING)
def one_cpu(subject: Subject) -> Iterator[Fault]:
    """The job shares its nodes, and asks for one CPU of each.

    With `exclusive = false` Slurm gives a job what it asks for: one CPU for each task, unless it says more. All ranks
    of a node, and their data loaders, would share it.
    """
    settings = subject.target
    given = any(option.startswith(("--cpus", "-c", "--ntasks")) for option in settings.extra_sbatch)
    if not settings.exclusive and settings.cpus_per_instance is None and not given:
        hint = "set `cpus_per_instance` in `[slurm]`, or leave `exclusive` as it is"
        yield Fault("the job asks for one CPU on each node", hint)


@rule("SL104", Level.ERROR)
def option_of_ours(subject: Subject) -> Iterator[Fault]:
    """`extra_sbatch` changes an option by which cloudtrain finds the run.

    The name, the comment and the files of the output tell cloudtrain which job is which run. An array would be several
    jobs with one run's name.
    """
    for option in subject.target.extra_sbatch:
        name = option.removeprefix("--").partition("=")[0]
        if name in _OURS:
            yield Fault(f"`extra_sbatch` changes `--{name}`, by which cloudtrain finds the run", f"remove `{option}`")


@rule("SL105", Level.WARNING)
def any_gpu(subject: Subject) -> Iterator[Fault]:
    """The job names a GPU, and Slurm is asked for any GPU.

    What Slurm calls a GPU is the cluster's own choice (`sinfo -o %G` shows it: `gpu:a100:8`). Say it as `gpu_type`, or
    name a feature of the right nodes as `constraint` or as the job's `instance_type`.
    """
    resources, settings = subject.job.resources, subject.target
    chosen = settings.gpu_type or settings.constraint or resources.instance_type is not None
    if resources.gpu is not None and resources.gpus_per_instance and not chosen:
        message = f"the job is for a `{resources.gpu}`, and Slurm is asked for any GPU"
        yield Fault(message, "set `gpu_type` in `[slurm]`: `sinfo -o %G` shows the names", ("resources", "gpu"))
