"""Rules that compare the number of processes with the number of GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from cloudtrain.catalogue.machines import MachineGroup
from cloudtrain.core.distribution import launcher_of
from cloudtrain.core.per_target import OVERRIDES
from cloudtrain.core.processes import Processes
from cloudtrain.rules.overridden import Path, is_written
from cloudtrain.rules.rule import Fault, Subject
from cloudtrain.rules.words import plural

_COUNT: Path = ("distribution", "processes_per_instance")


def fewer_processes_than_gpus(subject: Subject) -> Iterator[Fault]:
    """An instance has more GPUs than processes.

    One process uses one GPU, unless the script itself uses more. You would pay for the idle GPUs.
    """
    kind = subject.effective.distribution.type
    takes_all = kind == "tensorflow" or (kind == "none" and subject.view.framework(subject) == "tensorflow")
    starts_more = getattr(subject.effective.distribution, "launch", None) == "launcher"
    if takes_all or starts_more or subject.processing is not None or subject.job.resources.gpus_per_instance:
        return  # CT502 compares the two numbers in the job
    for group, count in _ranks_by_group(subject):
        if count < group.accelerators:
            yield Fault(_has(group, count), *_more(subject, group.accelerators))


def more_processes_than_gpus(subject: Subject) -> Iterator[Fault]:
    """An instance has more processes than GPUs.

    If two ranks share a GPU, NCCL fails at start ("Duplicate GPU detected"), when you already pay for the machines.
    """
    if subject.effective.distribution.type != "mpi":
        yield from _too_many(subject)


def more_ranks_than_gpus(subject: Subject) -> Iterator[Fault]:
    """An instance has more MPI processes than GPUs.

    With more ranks than GPUs, some ranks would share a GPU, which NCCL refuses. Ranks that use only the CPU are not
    limited.
    """
    if subject.effective.distribution.type == "mpi":
        yield from _too_many(subject)


def mpi_with_one_process(subject: Subject) -> Iterator[Fault]:
    """mpirun starts a single process.

    With one process on one instance, the job is not distributed.
    """
    machines, distribution = subject.view.machines(subject), subject.effective.distribution
    if launcher_of(distribution) != "mpirun" or machines.spanned_count != 1:
        return
    group, asked = machines.first, _requested_processes(subject)
    if (asked or (group.known.devices if group.known else None)) == 1:
        where = f"one `{group.instance_type}`" if group.instance_type else "one instance"
        more = "use more instances, or a type with more GPUs"  # two ranks cannot share a GPU
        yield Fault(
            f"`{distribution.type}` starts a single process on {where}",
            more
            if group.accelerators
            else "set `distribution.processes_per_instance` to 2 or more, or use more instances",
            _COUNT if asked else ("distribution",),
        )


def _too_many(subject: Subject) -> Iterator[Fault]:
    asked = _requested_processes(subject)
    if asked is None or subject.job.resources.gpus_per_instance:
        return  # CT503 compares the two numbers in the job
    for group in subject.view.machines(subject).spanned:
        most = group.accelerators
        if most and asked > most:
            yield Fault(
                _has(group, asked), f"set `distribution.processes_per_instance` to {most}, or leave it out", _COUNT
            )


def _ranks_by_group(subject: Subject) -> Iterator[tuple[MachineGroup, int]]:
    """Yield each instance group that takes part in the distribution, with the number of ranks on the group's first
    machine. If the groups are alternatives, in order of preference, yield only the first.
    """
    found = Processes.of(subject.plan.processes)
    ranks, alone = found.ranks, found.started
    machines, first = subject.view.machines(subject), 0
    for group in machines.groups:
        started = ranks[first] or min(alone[first], 1)
        if started and (group in machines.spanned or subject.effective.distribution.type == "none"):
            yield group, started
        if machines.kind == "preferences":
            return
        first += group.count


def _more(subject: Subject, accelerators: int) -> tuple[str, Path]:
    """Return the hint to start more processes, up to `accelerators` per instance, and the path of the value to change.
    The path is in the overrides if they set the number of processes, otherwise in the job.
    """
    if subject.effective.distribution.type == "none" and subject.job.distribution.type == "none":
        hint = "use `distribution: {type: torch}` for one process on each, or an instance type with fewer of them"
        return hint, ("distribution",)
    key = subject.view.distribution_key
    if _requested_processes(subject) is None and is_written(subject.view.overrides(subject), key):
        section = subject.view.service + OVERRIDES
        return f"remove `{key}` from `{section}`", (section, key)
    return f"set `distribution.processes_per_instance` to {accelerators}, or leave it out", _COUNT


def _requested_processes(subject: Subject) -> int | None:
    asked: int | None = getattr(subject.effective.distribution, "processes_per_instance", None)
    return asked


def _has(group: MachineGroup, processes: int) -> str:
    what = plural(group.accelerators, "GPU" if group.gpus else "Neuron core")
    return f"{plural(processes, 'process')} on `{group.instance_type}`, which has {what}"
