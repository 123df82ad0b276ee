"""Rules about the distribution of an Azure ML job: its numbers of processes, servers and
workers."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from cloudtrain.errors import dotted
from cloudtrain.job.model import value_text
from cloudtrain.plans.plan import Level
from cloudtrain.rules import machines as shared
from cloudtrain.rules.engine import Fault, Nature, Subject, ValuePath, plural, rule
from cloudtrain.rules.named import TITLES, framework_of, missing_framework
from cloudtrain.targets.azureml.parts import is_launcher
from cloudtrain.targets.azureml.reading import read

_COUNT = "processCountPerInstance"
_COUNT_FIELD: ValuePath = ("distribution", "processes_per_instance")

_TENSORFLOW = {
    "parameterServerCount": ("parameter_servers", 0),
    "workerCount": ("workers", 1),
}
"""Maps each count in the body to the job's field and the smallest sensible value."""


@rule("AZ301", Level.ERROR)
def process_count(subject: Subject) -> Iterator[Fault]:
    """The number of processes is not a whole number of at least one.

    Only overrides can cause this. The SDK sends 0, -1 and texts unchanged (azure-ai-ml 1.35.2), and
    Azure does not document the service's reaction.
    """
    if read(subject).body.kind in ("PyTorch", "Mpi"):
        yield from _no_count(subject, _COUNT, 1, _COUNT_FIELD)


@rule("AZ302", Level.ERROR, Nature.FACT)
def mpi_without_count(subject: Subject) -> Iterator[Fault]:
    """An MPI distribution has no number of processes per instance.

    `processCountPerInstance` is documented as required for MPI, but the SDK also sends a job
    without it (azure-ai-ml 1.35.2). cloudtrain always writes the count; only the overrides can
    remove it.
    """
    reading = read(subject)
    body = reading.body
    if body.kind == "Mpi" and body.distribution.get(_COUNT) is None:
        gpus = reading.group.gpus or 1
        message = f"an MPI distribution needs `{_COUNT}`, and the overrides remove it"
        yield Fault(message, f"set `distribution.processes_per_instance` to {gpus}", _COUNT_FIELD)


@rule("AZ303", Level.ERROR)
def tensorflow_counts(subject: Subject) -> Iterator[Fault]:
    """The number of workers or parameter servers is not a whole number.

    Only overrides can cause this; the SDK sends any value (azure-ai-ml 1.35.2).
    """
    if read(subject).body.kind == "TensorFlow":
        for name, (field, least) in _TENSORFLOW.items():
            yield from _no_count(subject, name, least, ("distribution", field))


@rule("AZ304", Level.ERROR)
def servers_over_instances(subject: Subject) -> Iterator[Fault]:
    """The job has more parameter servers than instances.

    Azure ML runs at most one parameter server on an instance (documentation, quotas: "parameter
    servers per node"). The SDK does not check this: it sends three servers and nine workers for two
    instances (azure-ai-ml 1.35.2).
    """
    body = read(subject).body
    servers = body.parameter_servers
    count = body.instances
    if body.kind == "TensorFlow" and servers > count:
        shown = plural(servers, "parameter server")
        most = max(1, count - 1)
        message = f"the job has {shown}, but each of its {count} instances runs at most one"
        hint = (
            f"set `distribution.parameter_servers` to at most {most}, or "
            f"`resources.instance_count` to {servers + body.workers}"
        )
        yield Fault(message, hint, ("distribution", "parameter_servers"))


@rule("AZ305", Level.WARNING)
def tasks_share_instances(subject: Subject) -> Iterator[Fault]:
    """The job has more workers and parameter servers than instances.

    The documentation shows one task on each instance: servers on the first instances, workers on
    the next. Tasks on one instance share its GPUs, and each TensorFlow process takes all memory of
    all GPUs. On instances without GPUs, tasks may share an instance.
    """
    reading = read(subject)
    tasks = reading.body
    servers = tasks.parameter_servers
    if tasks.kind != "TensorFlow" or reading.group.device == "cpu":
        return

    total = tasks.workers + servers
    if servers <= tasks.instances < total:
        who = plural(tasks.workers, "worker")
        if servers:
            who += f" and {plural(servers, 'parameter server')}"
        message = f"{who} share {plural(tasks.instances, 'instance')}"
        hint = f"set `resources.instance_count` to {total}, one for each"
        yield Fault(message, hint, ("resources", "instance_count"))


@rule("AZ306", Level.WARNING)
def idle_instances(subject: Subject) -> Iterator[Fault]:
    """The job has fewer workers and parameter servers than instances.

    Each task runs on one instance. You also pay for instances without a task, which stay idle.
    """
    tasks = read(subject).body
    total = tasks.workers + tasks.parameter_servers
    idle = tasks.instances - total
    if tasks.kind == "TensorFlow" and idle > 0:
        workers = tasks.instances - tasks.parameter_servers
        instances = plural(tasks.instances, "instance")
        message = f"{plural(total, 'task')} would run on {instances}, so {idle} would be idle"
        hint = f"set `resources.instance_count` to {total}, or `distribution.workers` to {workers}"
        yield Fault(message, hint, ("distribution", "workers"))


@rule("AZ307", Level.ERROR)
def autotuning_over_instances(subject: Subject) -> Iterator[Fault]:
    """DeepSpeed's autotuning would run on several instances.

    Autotuning starts its experiments on other instances through ssh, but the instances of a job
    cannot log in to each other. Run autotuning on one instance; its result is also valid for
    several instances of the same type.
    """
    distribution = subject.reading.distribution
    count = read(subject).body.instances
    if count == 1 or not is_launcher(distribution):
        return

    words = shlex.split(distribution.launcher_options)
    if any(word.partition("=")[0] == "--autotuning" for word in words):
        message = (
            f"DeepSpeed's autotuning cannot reach other instances, and this job runs on {count:,}"
        )
        yield Fault(
            message,
            "set `resources.instance_count` to 1 for tuning, then train on several with the result",
            ("distribution", "launcher_options"),
        )


@rule("AZ308", Level.WARNING)
def deepspeed_without_gpu(subject: Subject) -> Iterator[Fault]:
    """DeepSpeed would run on an instance type without GPUs.

    On a CPU DeepSpeed trains with the gloo backend and lacks most of its features. A small GPU
    instance is often cheaper than the additional time.
    """
    machines = read(subject).group
    row = machines.known
    if subject.reading.distribution.type == "deepspeed" and row and not row.gpus:
        message = f"`{row.name}` has no GPU, and the job uses DeepSpeed"
        hint = "`cloudtrain instances --target azureml --gpu A100` lists types with one"
        yield Fault(message, hint, machines.path)


@rule("AZ309", Level.WARNING)
def environment_of_another_framework(subject: Subject) -> Iterator[Fault]:
    """The environment lacks the framework that the distribution needs.

    A TensorFlow environment has no PyTorch, and a PyTorch environment no TensorFlow, so the script
    fails at its first import. This rule ignores packages that the job itself installs, with
    `requirements` or a conda file.
    """
    reading = read(subject)
    name = reading.environment_name
    says = framework_of(name)
    framework = missing_framework(subject, says)
    if says is None or framework is None:
        return
    if subject.processing or subject.job.environment.conda_file:
        return

    path = reading.environment_path
    instead = ""
    if path[-1] in ("azureml", "image"):
        instead = f" instead of `{path[-1]}`"
    needed = TITLES[framework]
    message = f"the environment `{name}` is made for {TITLES[says]}, and the job needs {needed}"
    hint = f"write `environment: {{framework: {framework}}}`{instead}, or add `requirements`"
    yield Fault(message, hint, path)


@rule("AZ310", Level.WARNING)
def ray_untested(subject: Subject) -> Iterator[Fault]:
    """Azure ML may refuse a Ray distribution.

    azure-ai-ml's own test of Ray is skipped for the API version that the SDK and cloudtrain send,
    2025-01-01-preview: "Investigate ray distribution type is no supported in 2025_01". No answer of
    the service to such a job is known.
    """
    if read(subject).body.kind == "Ray":
        yield Fault(
            "it is not known whether Azure ML still starts Ray",
            "if the service refuses the job: remove `distribution`, and start Ray in the `command`",
            ("distribution", "type"),
        )


@rule("AZ321", Level.WARNING)
def fewer_processes_than_gpus(subject: Subject) -> Iterator[Fault]:
    """Each instance has more GPUs than processes.

    One process uses one GPU unless the script itself uses more. You also pay for the other GPUs,
    which stay idle. Azure ML starts one process on each instance if the body has no count
    (documentation, distributed GPU training). cloudtrain always writes the count, so a low count
    comes from the job or from its overrides.
    """
    return shared.fewer_processes_than_gpus(subject)


rule("AZ322", Level.ERROR)(shared.more_processes_than_gpus)
rule("AZ323", Level.WARNING)(shared.more_ranks_than_gpus)


@rule("AZ324", Level.WARNING)
def mpi_with_one_process(subject: Subject) -> Iterator[Fault]:
    """mpirun would start only a single process.

    A single process does not need a distribution. Without `processes_per_instance`, mpirun starts
    one process for each GPU, or one process on an instance without GPUs.
    """
    return shared.mpi_with_one_process(subject)


def _no_count(subject: Subject, name: str, least: int, field: ValuePath) -> Iterator[Fault]:
    """Yield a fault if the body's distribution has a number `name` that is less than `least`, or no
    whole number."""
    value = read(subject).body.distribution.get(name, least)
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if not is_whole or value < least:
        message = f"`{name}` must be a whole number of at least {least}, not `{value_text(value)}`"
        yield Fault(message, f"set `{dotted(field)}`", field)
