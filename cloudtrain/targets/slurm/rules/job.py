"""Rules about the job: GPUs, time, and packages that a cluster does not install."""

from __future__ import annotations

from collections.abc import Iterator

from cloudtrain.core.per_target import value_for
from cloudtrain.core.plan import Level
from cloudtrain.core.units import format_duration
from cloudtrain.rules.rule import Fault, Subject, rule


@rule("SL203", Level.ERROR)
def no_gpu_count(subject: Subject) -> Iterator[Fault]:
    """The job names a GPU model, but no number of GPUs.

    Slurm gives a job only the GPUs that it asks for, so this job would get none. Add `gpus_per_instance`: `sinfo -o %G`
    shows how many GPUs each node has.
    """
    resources = subject.job.resources
    if resources.gpu is not None and resources.gpus_per_instance is None:
        message = f"the job asks for a `{resources.gpu}` without the number of GPUs on each node"
        yield Fault(message, "add `gpus_per_instance: 8`", ("resources", "gpus_per_instance"))


@rule("SL204", Level.ERROR)
def no_time_to_train(subject: Subject) -> Iterator[Fault]:
    """The grace period is as long as the time limit or longer.

    Slurm sends SIGTERM `grace_period` before the time limit, so that the script can save. This job would get SIGTERM
    as soon as it starts. Raise `max_runtime` or lower `grace_period`.
    """
    limit, grace = subject.job.max_runtime, subject.target.grace_period
    if limit is not None and limit <= grace:
        message = f"the time limit is {format_duration(limit)}, and SIGTERM comes {format_duration(grace)} before it"
        yield Fault(message, "raise `max_runtime`, or lower `grace_period` in `[slurm]`", ("max_runtime",))


@rule("SL205", Level.NOTICE)
def no_installation(subject: Subject) -> Iterator[Fault]:
    """cloudtrain does not install the job's requirements on a cluster.

    The script runs with the cluster's own Python, or in the container. Activate an environment that has the packages
    with `setup` lines in `[slurm]`, or set `python` to its interpreter.
    """
    if subject.job.environment.requirements is not None:
        name, settings = subject.job.environment.requirements, subject.target
        if not settings.setup and settings.python == "python3" and settings.container is None:
            hint = 'set `setup = ["source /path/to/venv/bin/activate"]` or `python` in `[slurm]`'
            yield Fault(f"cloudtrain does not install `{name}` on the cluster", hint, ("environment", "requirements"))


@rule("SL206", Level.WARNING)
def variable_of_slurm(subject: Subject) -> Iterator[Fault]:
    """The job sets a variable that Slurm's commands read.

    Inside the job, `srun` reads `SLURM_*` and `SRUN_*` variables as options, so the ranks would start differently from
    what the plan shows. Use `extra_sbatch` or `slurm_overrides` instead.
    """
    for name in subject.job.environment.variables:
        if name.startswith(("SLURM_", "SRUN_", "SBATCH_")):
            hint = "remove it; change Slurm's options with `extra_sbatch` or `slurm_overrides`"
            yield Fault(
                f"the variable `{name}` changes how `srun` starts the ranks", hint, ("environment", "variables", name)
            )


@rule("SL207", Level.NOTICE)
def no_time_limit(subject: Subject) -> Iterator[Fault]:
    """The job sets no time limit.

    The partition's limit applies, which can be days. Slurm also cannot start the job early in a gap between other jobs.
    Set `max_runtime`.
    """
    if subject.job.max_runtime is None:
        yield Fault(
            "the job sets no time limit, so the partition's limit applies", "add `max_runtime: 2h`", ("max_runtime",)
        )


@rule("SL208", Level.NOTICE)
def no_image(subject: Subject) -> Iterator[Fault]:
    """On a cluster, `framework` and `version` have no effect.

    On the clouds, `framework` and `version` choose an image. On a cluster, the script uses the installed framework.
    Name an `image`, or set `python` in `[slurm]` to an interpreter that has the framework.
    """
    environment = subject.job.environment
    image = value_for(environment.image, "slurm") if environment.image is not None else None
    is_default = subject.target.python == "python3" and not subject.target.setup
    if environment.framework is not None and image is None and is_default:
        what = " ".join(word for word in (environment.framework, environment.version) if word)
        hint = "set `python` or `setup` in `[slurm]` to an environment that has the framework"
        yield Fault(f"no setting selects {what} on the cluster", hint, ("environment", "framework"))
