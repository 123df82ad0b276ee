"""Rules about the job: GPUs, time, and packages that a cluster does not install."""

from __future__ import annotations

from collections.abc import Iterator

from cloudtrain.core.per_target import value_for
from cloudtrain.core.plan import Level
from cloudtrain.core.units import format_duration
from cloudtrain.rules.rule import Fault, Subject, rule


@rule("SL203", Level.ERROR)
def no_gpu_count(subject: Subject) -> Iterator[Fault]:
    """The job names a GPU, and not how many.

    Slurm gives a job as many GPUs as it asks for, so that this one would get none. cloudtrain has no catalogue of your
    cluster's nodes: `sinfo -o %G` shows what they have.
    """
    resources = subject.job.resources
    if resources.gpu is not None and resources.gpus_per_instance is None:
        message = f"the job asks for a `{resources.gpu}`, but not how many on each node"
        yield Fault(message, "add `gpus_per_instance: 8`", ("resources", "gpus_per_instance"))


@rule("SL204", Level.ERROR)
def no_time_to_train(subject: Subject) -> Iterator[Fault]:
    """The grace period takes the whole time limit.

    SIGTERM comes the grace period before the time limit, so that the script can save. Here it would come at once.
    """
    limit, grace = subject.job.max_runtime, subject.target.grace_period
    if limit is not None and limit <= grace:
        message = f"the time limit is {format_duration(limit)}, and SIGTERM comes {format_duration(grace)} before it"
        yield Fault(message, "raise `max_runtime`, or lower `grace_period` in `[slurm]`", ("max_runtime",))


@rule("SL205", Level.NOTICE)
def no_installation(subject: Subject) -> Iterator[Fault]:
    """The requirements are not installed by cloudtrain.

    The script runs with the cluster's own Python, or in the container. Activate an environment that has them with
    `setup` lines in `[slurm]`, or name its interpreter as `python`.
    """
    if subject.job.environment.requirements is not None:
        name, settings = subject.job.environment.requirements, subject.target
        if not settings.setup and settings.python == "python3" and settings.container is None:
            hint = 'set `setup = ["source /path/to/venv/bin/activate"]` or `python` in `[slurm]`'
            yield Fault(f"nothing installs `{name}` on the cluster", hint, ("environment", "requirements"))


@rule("SL206", Level.WARNING)
def variable_of_slurm(subject: Subject) -> Iterator[Fault]:
    """The job sets a variable that Slurm's commands read.

    Inside of the job `srun` takes `SLURM_*` and `SRUN_*` variables for options, so that the ranks would start in
    another way than the plan shows.
    """
    for name in subject.job.environment.variables:
        if name.startswith(("SLURM_", "SRUN_", "SBATCH_")):
            hint = "leave it out; `extra_sbatch` and `slurm_overrides` change what Slurm is asked for"
            yield Fault(f"`{name}` changes what `srun` does", hint, ("environment", "variables", name))


@rule("SL207", Level.NOTICE)
def no_time_limit(subject: Subject) -> Iterator[Fault]:
    """The job has no time limit of its own.

    The partition's limit applies, which can be days, and the scheduler cannot let the job run in a gap between others.
    """
    if subject.job.max_runtime is None:
        yield Fault("the partition's time limit applies", "add `max_runtime: 2h`", ("max_runtime",))


@rule("SL208", Level.NOTICE)
def no_image(subject: Subject) -> Iterator[Fault]:
    """The framework and its version are those of the cluster.

    `framework` and `version` choose an image on the clouds. A cluster has what its administrators and you have
    installed: name an `image`, or see that `python` in `[slurm]` is the one that you mean.
    """
    environment = subject.job.environment
    image = value_for(environment.image, "slurm") if environment.image is not None else None
    is_default = subject.target.python == "python3" and not subject.target.setup
    if environment.framework is not None and image is None and is_default:
        what = " ".join(word for word in (environment.framework, environment.version) if word)
        hint = "set `python` or `setup` in `[slurm]` to an environment that has it"
        yield Fault(f"nothing chooses {what} on the cluster", hint, ("environment", "framework"))
