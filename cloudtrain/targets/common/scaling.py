"""Scale a job so that this machine can emulate a service: reduce instances and processes, and use
data on this machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import PurePath
from typing import Any, NamedTuple

from cloudtrain.errors import JobError, Problem
from cloudtrain.job.data import Input
from cloudtrain.job.distribution import TensorFlow, no_ray
from cloudtrain.job.training import InstanceGroup, TrainingJob
from cloudtrain.machines.choose import choose
from cloudtrain.machines.table import instance_named
from cloudtrain.plans.plan import Machine
from cloudtrain.system.plugins import DEFAULT_TARGET
from cloudtrain.targets.common.launch import LocalAccount, LocalSettings
from cloudtrain.targets.common.launchers import Tasks, requested_tasks
from cloudtrain.targets.registry import target_of

# Fit a job's instances and processes to this machine.

REHEARSAL_PROCESSES = 2
"""Default number of processes per instance on a machine without GPUs: the smallest that makes a job
distributed."""


class JobSize(NamedTuple):
    """The size of a job: instances, and processes per instance."""

    instances: int
    processes_per_instance: int

    @property
    def world_size(self) -> int:
        return self.instances * self.processes_per_instance

    def __str__(self) -> str:
        return f"{self.instances} x {self.processes_per_instance}"


def requested_size(job: TrainingJob, machine: Machine, service: str | None) -> JobSize:
    """Return the size that the job asks for. Default for processes: with emulation as many as
    `service` would start on an instance; otherwise one per GPU of this machine, or two without
    GPUs."""
    resources = job.resources
    in_groups = sum(group.instance_count for group in resources.instance_groups)
    instances = in_groups or resources.instance_count
    if job.distribution.type == "none":
        return JobSize(instances, 1)

    processes = getattr(job.distribution, "processes_per_instance", None)
    processes = processes or resources.gpus_per_instance or _processes_on(service, job)
    default = machine.gpus or min(machine.cpus, REHEARSAL_PROCESSES)
    return JobSize(instances, processes or default)


def _processes_on(service: str | None, job: TrainingJob) -> int | None:
    """Return how many processes the emulated service starts on the instance type that the job
    names or describes: one for each GPU; None if that is not known."""
    resources = job.resources
    row = None
    if service is not None and resources.instance_type is not None:
        row = instance_named(service, resources.instance_type.of(service) or "")
    elif service is not None and resources.gpu is not None:
        with suppress(JobError):  # which compile raises, too
            row = choose(service, gpu=resources.gpu, interconnect=resources.interconnect)
    if row is None or row.neuron:
        return None
    return max(1, row.gpus)


def local_size(job: TrainingJob, target: LocalSettings, machine: Machine) -> JobSize:
    """Return the size of the job on this machine. Numbers that `target` sets are used exactly. The
    job's numbers are reduced to the machine's capacity: its GPUs, or its CPUs if it has no GPUs.
    Processes are reduced before instances, so that a job with several instances still runs with
    several."""
    full_size = requested_size(job, machine, target.emulate)
    capacity = machine.gpus or machine.cpus

    room = max(1, capacity // (target.processes_per_instance or 1))
    instances = target.instance_count or min(full_size.instances, room)
    room = max(1, capacity // instances)
    processes = target.processes_per_instance or min(full_size.processes_per_instance, room)
    return JobSize(instances, processes)


def local_tasks(job: TrainingJob, target: LocalSettings, machine: Machine) -> Tasks:
    """Return the tasks of a TensorFlow job on this machine. `instance_count` of the target sets the
    workers exactly. The job's workers and servers are each reduced to the machine's capacity."""
    tasks = requested_tasks(job)
    if target.instance_count is not None:
        return Tasks.of(target.instance_count, tasks.servers)
    capacity = min(machine.gpus or machine.cpus, MOST_TASKS // 2)
    return Tasks.of(min(tasks.workers, capacity), min(tasks.servers, capacity))


MOST_TASKS = 1200
"""Maximum number of tasks of a TensorFlow job on this machine. The plan grows with the square of
the tasks, because every task gets the addresses of all others."""


def gpu_share(gpu_ids: Sequence[str], instances: int, instance: int) -> tuple[str, ...]:
    """Return the GPUs of one simulated instance. The instances get equal parts. If there are more
    instances than GPUs, several instances share a GPU."""
    if not gpu_ids:
        return ()
    share = max(1, len(gpu_ids) // instances)
    first = (instance * share) % len(gpu_ids)
    return tuple(gpu_ids[first : first + share])


def scaled_job(
    job: TrainingJob, target: LocalSettings, account: LocalAccount
) -> tuple[TrainingJob, JobSize]:
    """Return the job with numbers of instances and processes that fit this machine, and these
    numbers as a `JobSize`. Inputs without a path on the service get a made-up path."""
    problems: list[Problem] = []
    for name, item in job.inputs.items():
        problems += _input_problems(name, item)
    problems += no_ray(job.distribution, "on this machine")

    size = _emulated_size(job, target, account.machine)
    # only the target's settings can ask for more: `_emulated_size` reduces the job's own numbers
    if size.instances > MOST_INSTANCES or size.world_size > MOST_PROCESSES:
        message = (
            f"{size} (instances x processes) is too much to emulate: at most "
            f"{MOST_INSTANCES} instances, and {MOST_PROCESSES:,} processes in all"
        )
        hint = "emulate it smaller: `--instances 2 --processes-per-instance 2`"
        problems.append(Problem(("resources", "instance_count"), message, hint, code="CT031"))
    if problems:
        raise JobError(problems)

    groups = job.resources.instance_groups
    counts: dict[str, object] = {"instance_count": size.instances}
    if groups:
        counts = {"instance_groups": _groups(groups, size.instances)}
    update = {
        "resources": job.resources.model_copy(update=counts),
        "distribution": _distribution(job, size),
    }
    return placed_job(job, target).model_copy(update=update), size


def placed_job(job: TrainingJob, target: LocalSettings) -> TrainingJob:
    """Return the job with a made-up service path for each input that has a path only on this
    machine."""
    service = str(target.emulate)
    inputs = dict(job.inputs)
    for name, item in job.inputs.items():
        path = item.of(DEFAULT_TARGET)
        if path is None or item.of(service) is not None:
            continue

        place = f"{target_of(service).facts.emulated_places}/{name}"
        if item.type == "uri_file":
            place += f"/{PurePath(path).name}"
        inputs[name] = item.model_copy(update={service: place.rstrip("/")})
    return job.model_copy(update={"inputs": inputs})


MOST_INSTANCES = 256
MOST_PROCESSES = 2048
"""Limits of an emulation. The plan grows with the square of the instances, because every process
gets a list of them. Each process is a separate Python process on this machine."""


def _emulated_size(job: TrainingJob, target: LocalSettings, machine: Machine) -> JobSize:
    """Return the size that fits the machine, with at least one instance per instance group. Numbers
    that `target` sets are used exactly. The job's are also reduced to the limits of an
    emulation."""
    # one task per host; a host without a task would have nothing to do
    if isinstance(job.distribution, TensorFlow):
        capacity = machine.gpus or machine.cpus
        fitting = min(job.resources.instance_count, capacity)
        size = JobSize(target.instance_count or fitting, 1)
    else:
        size = local_size(job, target, machine)
    groups = len(job.resources.instance_groups)
    if size.instances < groups:
        size = JobSize(groups, 1)

    instances = size.instances
    if not target.instance_count:
        instances = min(instances, MOST_INSTANCES)
    processes = size.processes_per_instance
    if not target.processes_per_instance:
        processes = min(processes, max(1, MOST_PROCESSES // instances))
    return JobSize(instances, processes)


def _groups(groups: tuple[InstanceGroup, ...], instances: int) -> tuple[InstanceGroup, ...]:
    """Reduce instance groups to `instances` instances in total, but not below one instance per
    group. The largest group loses an instance first; of equally large groups, the last one."""
    counts = [group.instance_count for group in groups]
    while sum(counts) > max(instances, len(groups)):
        largest = max(range(len(counts)), key=lambda index: (counts[index], index))
        counts[largest] -= 1
    pairs = zip(groups, counts, strict=True)
    return tuple(group.model_copy(update={"instance_count": count}) for group, count in pairs)


def _distribution(job: TrainingJob, size: JobSize) -> Any:
    """Return the job's distribution with numbers of processes or tasks that `size` allows."""
    distribution = job.distribution
    update: dict[str, int] = {}
    if "processes_per_instance" in type(distribution).model_fields:
        update["processes_per_instance"] = size.processes_per_instance
    elif isinstance(distribution, TensorFlow):
        for name in ("workers", "parameter_servers"):
            count = getattr(distribution, name)
            if count is not None:
                update[name] = min(count, size.instances)
    return distribution.model_copy(update=update)


def _input_problems(name: str, item: Input) -> Iterator[Problem]:
    if item.of(DEFAULT_TARGET) is None and item.value is None:
        yield without_path(name)
    elif item.mode == "pipe":
        message = f"input `{name}` is a pipe, which an emulation does not support"
        hint = f"emulate it with `--set inputs.{name}.mode=mount`"
        yield Problem(("inputs", name, "mode"), message, hint, code="CT031")


def without_path(name: str) -> Problem:
    message = f"input `{name}` has no path on this machine"
    hint = f"add `local: PATH` under `inputs.{name}`, or `--set inputs.{name}.local=PATH`"
    return Problem(("inputs", name), message, hint, code="CT032")


def without_echoes(problems: Sequence[Problem]) -> list[Problem]:
    """Return the first problem of each field, and all problems without a field. An emulation
    collects the problems with this machine first; those with the service are left out for each
    field that this machine has already refused."""
    first = {problem.path: problem for problem in reversed(problems)}
    return [problem for problem in problems if first[problem.path] is problem or not problem.path]
