"""How a job's instances and processes fit on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cloudtrain.core.distribution import TensorFlow
from cloudtrain.core.job import TrainingJob
from cloudtrain.core.plan import Machine
from cloudtrain.targets.common.this_machine import LocalSettings

REHEARSAL_PROCESSES = 2
"""Processes per instance on a machine without GPUs, where the job does not say: enough to be distributed."""


class JobSize(NamedTuple):
    """Instances times processes."""

    instances: int
    processes_per_instance: int

    @property
    def world_size(self) -> int:
        """Processes in all."""
        return self.instances * self.processes_per_instance

    def __str__(self) -> str:
        return f"{self.instances} x {self.processes_per_instance}"


def requested_size(job: TrainingJob, machine: Machine) -> JobSize:
    """What the job asks for. Where it leaves the processes open: one per GPU, or two on a machine without GPUs."""
    resources = job.resources
    instances = sum(group.instance_count for group in resources.instance_groups) or resources.instance_count
    if job.distribution.type == "none":
        return JobSize(instances, 1)
    processes = getattr(job.distribution, "processes_per_instance", None) or resources.gpus_per_instance
    return JobSize(instances, processes or machine.gpus or min(machine.cpus, REHEARSAL_PROCESSES))


def local_size(job: TrainingJob, target: LocalSettings, machine: Machine) -> JobSize:
    """What will run here. The target's own counts are taken as they are; the job's are scaled to the machine.

    The capacity is the GPUs, or the CPUs where there is none. Instances are kept before processes, because a job
    on several instances rehearses more when it still has several.
    """
    wanted = requested_size(job, machine)
    capacity = machine.gpus or machine.cpus
    if target.instance_count is not None:
        instances = target.instance_count
    else:
        room = max(1, capacity // (target.processes_per_instance or 1))
        instances = min(wanted.instances, room)
    if target.processes_per_instance is not None:
        processes = target.processes_per_instance
    else:
        processes = min(wanted.processes_per_instance, max(1, capacity // instances))
    return JobSize(instances, processes)


class Tasks(NamedTuple):
    """The processes of a TensorFlow job. The chief is one of the workers."""

    workers: int
    servers: int


def requested_tasks(job: TrainingJob) -> Tasks:
    """What a TensorFlow job asks for: a worker per instance unless it says otherwise."""
    distribution = job.distribution
    assert isinstance(distribution, TensorFlow)
    servers = (distribution.parameter_servers or 1) if distribution.strategy == "parameter_server" else 0
    return _working(distribution.workers or job.resources.instance_count, servers)


def local_tasks(job: TrainingJob, target: LocalSettings, machine: Machine) -> Tasks:
    """What will run here: as many workers as the target says, else no more of either kind than the machine can hold."""
    wanted = requested_tasks(job)
    if target.instance_count is not None:
        return _working(target.instance_count, wanted.servers)
    capacity = min(machine.gpus or machine.cpus, MOST_TASKS // 2)
    return _working(min(wanted.workers, capacity), min(wanted.servers, capacity))


MOST_TASKS = 1200
"""Of a TensorFlow job on this machine. Every task is told of all others, so that the plan grows with their square."""


def _working(workers: int, servers: int) -> Tasks:
    """With parameter servers the chief only coordinates, so that one more must work."""
    return Tasks(max(workers, 2) if servers else workers, servers)


def gpu_share(gpu_ids: Sequence[str], instances: int, instance: int) -> tuple[str, ...]:
    """The GPUs that one simulated instance sees: its part of them; where there are too few, one that others see too."""
    if not gpu_ids:
        return ()
    share = max(1, len(gpu_ids) // instances)
    first = (instance * share) % len(gpu_ids)
    return tuple(gpu_ids[first : first + share])
