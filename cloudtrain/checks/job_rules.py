"""Portable rules about the job itself: what to run, its parameters, its shape and its limits."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from cloudtrain.checks.rule import Fault, Subject, rule
from cloudtrain.distribution import TensorFlow
from cloudtrain.plans import Level
from cloudtrain.units import exact_duration

LAUNCHER_VARIABLES = frozenset(
    "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK NODE_RANK MASTER_ADDR MASTER_PORT TF_CONFIG".split()
)
"""What tells a process who it is."""

_SECRET_NAME = re.compile(r"(SECRET|PASSWORD|PASSWD|TOKEN|API_?KEY|ACCESS_KEY|PRIVATE_KEY|CREDENTIAL)", re.IGNORECASE)
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PARAMETER_NAME = re.compile(r"[^\s=-][^\s=]*")


@rule("CT201", Level.ERROR)
def parameter_name(subject: Subject) -> Iterator[Fault]:
    """A hyperparameter's name cannot be an option of a command line.

    Hyperparameters reach the script as `--name value`. A name that is empty, starts with a dash, or holds white
    space or `=` arrives as something else. Write the name without dashes: `learning_rate`, not `--learning_rate`.
    """
    for name in subject.job.hyperparameters:
        if not _PARAMETER_NAME.fullmatch(name):
            better = re.sub(r"[\s=]+", "_", name.lstrip("-")) or "name"
            yield Fault(f"`{name}` cannot be the name of an option", f"write `{better}`", ("hyperparameters", name))


@rule("CT202", Level.WARNING)
def nested_parameter(subject: Subject) -> Iterator[Fault]:
    """A hyperparameter is nested deeper than a command line can say.

    A mapping reaches the script as `--name a=1,b=2`, and only one level of it; a mapping inside a mapping or a list
    arrives as Python text, which few scripts parse. Put deep configuration into a file in `source_dir` and pass its
    name.
    """
    for name, value in subject.job.hyperparameters.items():
        inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
        if any(isinstance(item, Mapping | list) for item in inner):
            yield Fault(
                f"`{name}` is nested and would reach the script as Python text",
                f"write it to a file in the source folder, and give `{name}` the file's name",
                ("hyperparameters", name),
            )


@rule("CT203", Level.ERROR)
def variable_name(subject: Subject) -> Iterator[Fault]:
    """An environment variable has a name that the targets refuse.

    Names are letters, digits and underscores, not starting with a digit (SageMaker's pattern, and what shells can
    export).
    """
    for name in subject.job.environment.variables:
        if not _VARIABLE_NAME.fullmatch(name):
            hint = f"write `{re.sub(r'[^A-Za-z0-9_]', '_', name).lstrip('0123456789') or 'NAME'}`"
            yield Fault(f"`{name}` is not a name for an environment variable", hint, ("environment", "variables", name))


@rule("CT204", Level.ERROR)
def launcher_variable(subject: Subject) -> Iterator[Fault]:
    """An environment variable is one that the launcher sets.

    RANK, WORLD_SIZE, MASTER_ADDR and their like tell each process who it is. A fixed value makes all processes think
    they are the same one, and the job hangs or trains nonsense. Variables that start with CLOUDTRAIN_, SM_ or
    AZUREML_ belong to cloudtrain and to the services.
    """
    for name in subject.job.environment.variables:
        if name in LAUNCHER_VARIABLES or name.startswith(("CLOUDTRAIN_", "SM_", "AZUREML_CR_")):
            yield Fault(
                f"`{name}` is set by the launcher, for each process",
                f"remove `{name}` from `environment.variables`",
                ("environment", "variables", name),
            )


@rule("CT205", Level.WARNING)
def secret_variable(subject: Subject) -> Iterator[Fault]:
    """An environment variable looks like a secret.

    Environment variables of a job are part of its request: the services store them and show them to everyone who
    may read the job. Read secrets at run time from a secret store (AWS Secrets Manager, Azure Key Vault) with the
    job's own identity instead.
    """
    for name, value in subject.job.environment.variables.items():
        if (
            value
            and _SECRET_NAME.search(name)
            and not name.upper().endswith(("_FILE", "_PATH", "_ARN", "_NAME", "_ID"))
        ):
            yield Fault(
                f"`{name}` looks like a secret, and the request shows it to everyone who may read the job",
                "read it from a secret store inside the script",
                ("environment", "variables", name),
            )


@rule("CT206", Level.ERROR)
def metric_pattern(subject: Subject) -> Iterator[Fault]:
    """A metric's regular expression does not work.

    Each metric is a regular expression with exactly one group around the number, for example `loss=([0-9.]+)`. One
    that does not compile, or has no group, would record nothing for the whole run.
    """
    for name, pattern in subject.job.metrics.items():
        try:
            groups = re.compile(pattern).groups
        except re.error as error:
            yield Fault(f"the pattern of metric `{name}` is no regular expression: {error}", None, ("metrics", name))
            continue
        if groups != 1:
            yield Fault(
                f"the pattern of metric `{name}` has {groups} groups, and needs one around the number",
                f"write for example `{name}=([0-9.eE+-]+)`",
                ("metrics", name),
            )


@rule("CT401", Level.WARNING)
def spot_without_checkpoint(subject: Subject) -> Iterator[Fault]:
    """A spot job has no checkpoint.

    Spot capacity may be taken away at any time. Without a checkpoint the job starts from nothing when it comes back,
    and pays for the same hours again.
    """
    if subject.job.spot is not None and subject.job.checkpoint is None:
        yield Fault(
            "the job runs on spot capacity and has no checkpoint, so an interruption loses everything",
            "add `checkpoint: {sagemaker: s3://..., azureml: azureml://...}`",
            ("spot",),
        )


@rule("CT402", Level.ERROR)
def wait_shorter_than_run(subject: Subject) -> Iterator[Fault]:
    """The wait for spot capacity is shorter than the run itself.

    `spot.max_wait` covers waiting and running together, so it cannot be less than `max_runtime`; SageMaker refuses
    such a job.
    """
    job = subject.job
    if job.spot and job.spot.max_wait and job.max_runtime and job.spot.max_wait < job.max_runtime:
        run = exact_duration(job.max_runtime)
        yield Fault(
            short_wait(job.spot.max_wait, run), f"set `spot.max_wait` to at least `{run}`", ("spot", "max_wait")
        )


def short_wait(wait: int, run: str) -> str:
    """What is wrong with a wait for spot capacity that is shorter than the run."""
    return f"`spot.max_wait` ({exact_duration(wait)}) is shorter than `max_runtime` ({run})"


@rule("CT501", Level.WARNING)
def instances_without_distribution(subject: Subject) -> Iterator[Fault]:
    """Several instances without a distribution.

    With `distribution: {type: none}` every instance runs the whole script alone, unaware of the others: four
    instances cost four times as much and train the same model four times. That is right for preparing data, which is
    what processing jobs (`kind: processing`) are for, and a mistake for training.
    """
    job = subject.job
    if subject.processing is None and job.distribution.type == "none" and job.resources.instance_count > 1:
        count = job.resources.instance_count
        yield Fault(
            f"each of the {count} instances would run the whole script alone",
            "add `distribution: {type: torch}`, or ignore this for independent work with `--ignore CT501`",
            ("distribution",),
        )


@rule("CT502", Level.WARNING)
def idle_gpus(subject: Subject) -> Iterator[Fault]:
    """Most GPUs of an instance would be idle.

    One process uses one GPU unless the script does more itself. With `distribution: {type: none}`, or fewer
    processes than GPUs, the others are paid for and idle.
    """
    job, gpus = subject.job, subject.job.resources.gpus_per_instance or 0
    processes = 1 if job.distribution.type == "none" else getattr(job.distribution, "processes_per_instance", None)
    if gpus > 1 and processes is not None and processes < gpus:
        path = ("distribution", "processes_per_instance") if processes > 1 else ("distribution",)
        yield Fault(
            f"{processes} process{'es' if processes > 1 else ''} on an instance with {gpus} GPUs",
            f"use `distribution: {{type: torch, processes_per_instance: {gpus}}}`, or an instance with fewer GPUs",
            path,
        )


@rule("CT503", Level.ERROR)
def more_processes_than_gpus(subject: Subject) -> Iterator[Fault]:
    """More processes than GPUs on an instance.

    Two ranks on one GPU make NCCL fail at start ("Duplicate GPU detected"), after the machines were paid for.
    """
    gpus = subject.job.resources.gpus_per_instance
    processes = getattr(subject.job.distribution, "processes_per_instance", None)
    if gpus and processes and processes > gpus:
        yield Fault(
            f"{processes} processes on an instance with {gpus} GPU{'s' if gpus > 1 else ''}",
            f"set `processes_per_instance` to {gpus}, or leave it out",
            ("distribution", "processes_per_instance"),
        )


@rule("CT504", Level.ERROR)
def parameter_servers_need_workers(subject: Subject) -> Iterator[Fault]:
    """Parameter servers without enough workers.

    With `strategy: parameter_server` the chief only coordinates: it takes one of the workers' places, and at least
    one more must do the work.
    """
    distribution = subject.job.distribution
    if (
        isinstance(distribution, TensorFlow)
        and distribution.strategy == "parameter_server"
        and distribution.workers == 1
    ):
        yield Fault(
            "one worker is only the chief, which trains nothing itself",
            "set `distribution.workers` to 2 or more",
            ("distribution", "workers"),
        )
