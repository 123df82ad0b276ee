"""Rules about the number of processes against GPUs: what the container will really run, seen before it is paid for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from cloudtrain.checks.rule import Fault, Subject, rule
from cloudtrain.checks.sagemaker_library_rules import distribution_ignored
from cloudtrain.checks.sagemaker_view import Entry, cluster, launcher, mode
from cloudtrain.plans import Level

_EACH_GPU = ("torchrun", "mpirun")


@rule("SM331", Level.WARNING)
def fewer_processes_than_gpus(subject: Subject) -> Iterator[Fault]:
    """An instance has more GPUs than processes.

    One process uses one GPU unless the script does more itself, so the others are paid for and idle. The count is
    what the container will really start, overrides and the toolkit's own rules included.
    """
    if subject.job.resources.gpus_per_instance or subject.job.distribution.type == "tensorflow":
        return  # CT502 has seen it; one process of a TensorFlow strategy takes all GPUs
    if any(distribution_ignored(subject)):
        return
    for entry, processes in _processes(subject):
        accelerators = entry.group.accelerators
        if accelerators > 1 and processes < accelerators:
            what = "GPUs" if entry.group.gpus else "Neuron cores"
            name = entry.group.instance_type
            asked = getattr(subject.job.distribution, "processes_per_instance", None)
            hint = "use `distribution: {type: torch}` for a process on each, or an instance type with fewer"
            if asked is not None:
                hint = f"set `processes_per_instance` to {accelerators}, or leave it out"
            yield Fault(
                f"{processes} process{'es' if processes > 1 else ''} on `{name}`, which has {accelerators} {what}",
                hint,
                ("distribution", "processes_per_instance") if asked is not None else ("distribution",),
            )


@rule("SM332", Level.ERROR)
def more_processes_than_gpus(subject: Subject) -> Iterator[Fault]:
    """More processes than GPUs on an instance.

    Two ranks on one GPU make NCCL fail at start ("Duplicate GPU detected"), after the machines were paid for. On
    Trainium each process takes a Neuron core.
    """
    if launcher(subject.job) not in _EACH_GPU or subject.job.distribution.type == "mpi":
        return
    yield from _too_many(subject)


@rule("SM333", Level.WARNING)
def more_ranks_than_gpus(subject: Subject) -> Iterator[Fault]:
    """More MPI processes than GPUs on an instance.

    Ranks that only use the CPU may be as many as one likes. Ranks that use a GPU each share them, and NCCL refuses
    that.
    """
    if subject.job.distribution.type == "mpi":
        yield from _too_many(subject)


@rule("SM334", Level.WARNING)
def mpi_with_one_process(subject: Subject) -> Iterator[Fault]:
    """mpirun starts a single process.

    Without `processes_per_instance` there is one process for each GPU, and one on an instance without GPUs: on one
    instance with at most one GPU, nothing is distributed. The SageMaker SDK starts it without a word.
    """
    machines, distribution = cluster(subject), subject.job.distribution
    if launcher(subject.job) != "mpirun" or machines.spanned_instances != 1 or machines.spanned[0].known is None:
        return
    if (getattr(distribution, "processes_per_instance", None) or machines.spanned[0].group.accelerators or 1) == 1:
        yield Fault(
            f"`{distribution.type}` starts a single process on one `{machines.spanned[0].group.instance_type}`",
            "set `processes_per_instance`, or use more instances or GPUs",
            ("distribution",),
        )


def _too_many(subject: Subject) -> Iterator[Fault]:
    asked = getattr(subject.job.distribution, "processes_per_instance", None)
    if asked is None or subject.job.resources.gpus_per_instance:
        return  # CT503 has seen it
    for entry in cluster(subject).spanned:
        most = entry.group.accelerators
        if most and asked > most:
            what = ("GPU" if most == 1 else "GPUs") if entry.group.gpus else "Neuron cores"
            yield Fault(
                f"{asked} processes on `{entry.group.instance_type}`, which has {most} {what}",
                f"set `processes_per_instance` to {most}, or leave it out",
                ("distribution", "processes_per_instance"),
            )


def _processes(subject: Subject) -> Iterator[tuple[Entry, int]]:
    """Each entry that the distribution spans, and the ranks that start on its first instance."""
    if mode(subject) == "image":
        return
    ranks = Counter(process.instance for process in subject.plan.processes if process.rank is not None)
    alone = Counter(process.instance for process in subject.plan.processes)
    machines, first = cluster(subject), 0
    for entry in machines.entries:
        started = ranks[first] or min(alone[first], 1)
        if started and (entry in machines.spanned or launcher(subject.job) == "none"):
            yield entry, started
        if machines.kind == "preferences":
            return  # the plan shows the first
        first += entry.group.count
