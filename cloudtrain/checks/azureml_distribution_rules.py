"""Rules about the distribution of an Azure ML job: its numbers of processes, servers and workers."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

from cloudtrain.checks.azureml_view import (
    Path,
    body,
    count_path,
    environment_name,
    environment_path,
    is_whole,
    machines,
    mapping,
    one_per_gpu,
    place,
    plural,
)
from cloudtrain.checks.rule import Fault, Subject, rule
from cloudtrain.compile.azureml.distributions import is_launcher
from cloudtrain.distribution import DeepSpeed
from cloudtrain.plans import Level

_COUNT = "processCountPerInstance"
_COUNT_FIELD: Path = ("distribution", "processes_per_instance")

_TENSORFLOW = {
    "parameterServerCount": ("parameter_servers", 0),
    "workerCount": ("workers", 1),
}
"""Count in the body to the job's field and the least that makes sense."""

_OTHERS = {"PyTorch": "tensorflow", "TensorFlow": "pytorch"}
"""Distribution to the framework whose environment lacks what it needs."""


@rule("AZ301", Level.ERROR)
def process_count(subject: Subject) -> Iterator[Fault]:
    """The number of processes is not a whole number of at least one.

    Only the overrides can say so. The SDK sends 0, -1 and texts as they are (azure-ai-ml 1.35.2), and what the service
    makes of them is not documented.
    """
    distribution = mapping(subject, "distribution")
    if distribution.get("distributionType") in ("PyTorch", "Mpi") and _COUNT in distribution:
        yield from _no_count(subject, _COUNT, distribution[_COUNT], 1, _COUNT_FIELD)


@rule("AZ302", Level.ERROR)
def mpi_without_count(subject: Subject) -> Iterator[Fault]:
    """An MPI distribution does not say how many processes each instance runs.

    `processCountPerInstance` is documented as required for MPI, and the SDK sends a job without it (azure-ai-ml
    1.35.2). cloudtrain always writes it; only the overrides can remove it.
    """
    distribution = mapping(subject, "distribution")
    if distribution.get("distributionType") == "Mpi" and distribution.get(_COUNT) is None:
        gpus = machines(subject).gpus or 1
        hint = f"set `distribution.processes_per_instance` to {gpus}, and remove it from the overrides"
        message = f"an MPI distribution needs `{_COUNT}`, and the overrides remove it"
        yield Fault(message, hint, place(subject, ("distribution", _COUNT), _COUNT_FIELD))


@rule("AZ303", Level.ERROR)
def tensorflow_counts(subject: Subject) -> Iterator[Fault]:
    """The number of workers or parameter servers is not a whole number.

    Only the overrides can say so; the SDK sends anything (azure-ai-ml 1.35.2).
    """
    distribution = mapping(subject, "distribution")
    if distribution.get("distributionType") == "TensorFlow":
        for name, (field, least) in _TENSORFLOW.items():
            if name in distribution:
                yield from _no_count(subject, name, distribution[name], least, ("distribution", field))


@rule("AZ304", Level.ERROR)
def servers_over_instances(subject: Subject) -> Iterator[Fault]:
    """There are more parameter servers than instances.

    Azure ML runs at most one parameter server on an instance (documentation, quotas: "parameter servers per node"). The
    SDK sends three servers and nine workers for two instances without a word (azure-ai-ml 1.35.2).
    """
    servers, count = body(subject).parameter_servers, body(subject).instances
    if body(subject).kind == "TensorFlow" and servers > count:
        yield Fault(
            f"{plural(servers, 'parameter server')} on {plural(count, 'instance')}, and each instance takes one",
            f"set `distribution.parameter_servers` to at most {max(1, count - 1)}, or `resources.instance_count` to "
            f"{servers + body(subject).workers}",
            place(subject, ("distribution", "parameterServerCount"), ("distribution", "parameter_servers")),
        )


@rule("AZ305", Level.WARNING)
def tasks_share_instances(subject: Subject) -> Iterator[Fault]:
    """There are more workers and parameter servers than instances.

    The documentation shows one task on each instance: servers on the first ones, workers on those behind them. Tasks
    that share an instance share its GPUs too, and each TensorFlow process takes all the memory of all of them. Without
    GPUs they may share.
    """
    tasks = body(subject)
    if tasks.kind != "TensorFlow" or tasks.parameter_servers > tasks.instances or machines(subject).gpus == 0:
        return
    total = tasks.workers + tasks.parameter_servers
    if total > tasks.instances:
        servers = f" and {plural(tasks.parameter_servers, 'parameter server')}" if tasks.parameter_servers else ""
        yield Fault(
            f"{plural(tasks.workers, 'worker')}{servers} share {plural(tasks.instances, 'instance')}",
            f"set `resources.instance_count` to {total}, one for each",
            count_path(subject),
        )


@rule("AZ306", Level.WARNING)
def idle_instances(subject: Subject) -> Iterator[Fault]:
    """There are fewer workers and parameter servers than instances.

    Each task runs on one instance. Instances without a task are paid for, and do nothing.
    """
    tasks = body(subject)
    total = tasks.workers + tasks.parameter_servers
    idle = tasks.instances - total
    if tasks.kind == "TensorFlow" and idle > 0:
        workers = tasks.instances - tasks.parameter_servers
        yield Fault(
            f"{plural(total, 'task')} on {plural(tasks.instances, 'instance')}: {idle} would be idle",
            f"set `resources.instance_count` to {total}, or `distribution.workers` to {workers}",
            place(subject, ("distribution", "workerCount"), ("distribution", "workers")),
        )


@rule("AZ307", Level.ERROR)
def autotuning_over_instances(subject: Subject) -> Iterator[Fault]:
    """DeepSpeed's autotuning is to run over several instances.

    Autotuning starts its experiments on other instances through ssh, which the instances of a job do not offer to
    each other here. On one instance it runs; what it finds holds for more instances of the same kind.
    """
    distribution, count = subject.job.distribution, body(subject).instances
    if count == 1 or not isinstance(distribution, DeepSpeed) or not is_launcher(subject.job):
        return
    if any(word.partition("=")[0] == "--autotuning" for word in shlex.split(distribution.launcher_options)):
        yield Fault(
            f"DeepSpeed's autotuning cannot reach other instances, and this job runs on {count:,}",
            "set `resources.instance_count` to 1 for tuning, then train on several with what it found",
            ("distribution", "launcher_options"),
        )


@rule("AZ308", Level.WARNING)
def deepspeed_without_gpu(subject: Subject) -> Iterator[Fault]:
    """DeepSpeed is to run on an instance type without GPUs.

    On a CPU DeepSpeed trains with the gloo backend and without most of what it is used for. The price of a small GPU
    instance is often less than that of the time it takes.
    """
    found = machines(subject)
    if subject.job.distribution.type == "deepspeed" and found.known and not found.known.gpus:
        yield Fault(
            f"`{found.known.name}` has no GPU, and the job uses DeepSpeed",
            "`cloudtrain instances --target azureml --gpu A100` lists types with one",
            found.path,
        )


@rule("AZ309", Level.WARNING)
def environment_of_another_framework(subject: Subject) -> Iterator[Fault]:
    """The environment is made for another framework than the distribution.

    A TensorFlow environment has no PyTorch, and the other way round: the script ends at its first import. What the job
    installs itself, with `requirements` or a conda file, is not looked at.
    """
    given, kind = subject.job.environment, body(subject).kind
    other = _OTHERS.get(kind)
    name = environment_name(subject).casefold()
    installs = given.requirements or given.conda_file
    if subject.processing or installs or other is None:
        return
    if other in name and kind.casefold() not in name:
        yield Fault(
            f"the environment `{environment_name(subject)}` is not made for the distribution `{kind}`",
            f"write `environment: {{framework: {kind.casefold()}}}`, or add `requirements`",
            environment_path(subject),
        )


@rule("AZ321", Level.WARNING)
def fewer_processes_than_gpus(subject: Subject) -> Iterator[Fault]:
    """An instance has more GPUs than processes.

    One process uses one GPU unless the script does more itself, so the others are paid for and idle. Azure ML starts
    one process on each instance where a body does not say how many (documentation, distributed GPU training);
    cloudtrain always says it, so this comes from the job or from its overrides.
    """
    found, gpus = machines(subject), machines(subject).gpus or 0
    none = not body(subject).kind and subject.processing is None
    count = 1 if none else body(subject).processes_per_instance
    if gpus <= count or not (none or one_per_gpu(subject)) or _seen_by_portable_rules(subject):
        return
    written = mapping(subject, "distribution").get(_COUNT)
    hint = f"set `processes_per_instance` to {gpus}, or leave it out" if written else "remove it from the overrides"
    if none:
        hint = "use `distribution: {type: torch}` for a process on each GPU, or a type with one GPU"
    yield Fault(
        f"{plural(count, 'process')} on `{found.name}`, which has {plural(gpus, 'GPU')}",
        hint,
        ("distribution",) if none else place(subject, ("distribution", _COUNT), _COUNT_FIELD),
    )


@rule("AZ322", Level.ERROR)
def more_processes_than_gpus(subject: Subject) -> Iterator[Fault]:
    """More processes than GPUs on an instance.

    Two ranks on one GPU make NCCL fail at start ("Duplicate GPU detected"), after the machines were paid for.
    """
    if subject.job.distribution.type != "mpi":
        yield from _too_many(subject)


@rule("AZ323", Level.WARNING)
def more_ranks_than_gpus(subject: Subject) -> Iterator[Fault]:
    """More MPI processes than GPUs on an instance.

    Ranks that only use the CPU may be as many as one likes. Ranks that use a GPU each share them, and NCCL refuses
    that.
    """
    if subject.job.distribution.type == "mpi":
        yield from _too_many(subject)


@rule("AZ324", Level.WARNING)
def mpi_with_one_process(subject: Subject) -> Iterator[Fault]:
    """mpirun starts a single process.

    One instance with one process distributes nothing. Without `processes_per_instance` there is one for each GPU, and
    one on an instance without GPUs.
    """
    found = body(subject)
    if found.kind == "Mpi" and found.instances * found.processes_per_instance == 1:
        where = f"one `{machines(subject).name}`" if machines(subject).name else "one instance"
        yield Fault(
            f"`{subject.job.distribution.type}` starts a single process on {where}",
            "set `processes_per_instance`, or use more instances or GPUs",
            place(subject, ("distribution", _COUNT), ("distribution",)),
        )


def _no_count(subject: Subject, name: str, value: Any, least: int, field: Path) -> Iterator[Fault]:
    if not is_whole(value, least):
        shown = f'"{value}"' if isinstance(value, str) else value
        hint = f"set `{'.'.join(map(str, field))}`, and remove `{name}` from the overrides"
        message = f"`{name}` must be a whole number of at least {least}, not `{shown}`"
        yield Fault(message, hint, place(subject, ("distribution", name), field))


def _too_many(subject: Subject) -> Iterator[Fault]:
    found, count = machines(subject), body(subject).processes_per_instance
    gpus = found.gpus
    if gpus and count > gpus and one_per_gpu(subject) and not _seen_by_portable_rules(subject):
        yield Fault(
            f"{plural(count, 'process')} on `{found.name}`, which has {plural(gpus, 'GPU')}",
            f"set `processes_per_instance` to {gpus}, or leave it out",
            place(subject, ("distribution", _COUNT), _COUNT_FIELD),
        )


def _seen_by_portable_rules(subject: Subject) -> bool:
    """CT502 and CT503 compare the job's own two numbers."""
    return bool(subject.job.resources.gpus_per_instance) and not place(subject, ("distribution", _COUNT))
