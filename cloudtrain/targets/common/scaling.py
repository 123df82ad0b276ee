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
        """Return the number of processes in all."""
        return self.instances * self.processes_per_instance

    def __str__(self) -> str:
        return f"{self.instances} x {self.processes_per_instance}"


def requested_size(job: TrainingJob, machine: Machine) -> JobSize:
    """Return the size that the job asks for. Where the job leaves the processes open, it is one per GPU, or two on a
    machine without GPUs."""
    resources = job.resources
    instances = sum(group.instance_count for group in resources.instance_groups) or resources.instance_count
    if job.distribution.type == "none":
        return JobSize(instances, 1)
    processes = getattr(job.distribution, "processes_per_instance", None) or resources.gpus_per_instance
    return JobSize(instances, processes or machine.gpus or min(machine.cpus, REHEARSAL_PROCESSES))


def local_size(job: TrainingJob, target: LocalSettings, machine: Machine) -> JobSize:
    """Return the size that will run here. The target's own counts are used exactly; the job's are scaled to the
    machine.

    The capacity is the number of GPUs, or of CPUs on a machine without GPUs. Processes are reduced before instances,
    because a job for several instances is rehearsed better when it still has several.
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
    """Return the tasks that a TensorFlow job asks for. Default: one worker per instance."""
    distribution = job.distribution
    assert isinstance(distribution, TensorFlow)
    servers = (distribution.parameter_servers or 1) if distribution.strategy == "parameter_server" else 0
    return _working(distribution.workers or job.resources.instance_count, servers)


def local_tasks(job: TrainingJob, target: LocalSettings, machine: Machine) -> Tasks:
    """Return the tasks that will run here: as many workers as the target says. Without a count of the target, neither
    kind exceeds what the machine can hold."""
    wanted = requested_tasks(job)
    if target.instance_count is not None:
        return _working(target.instance_count, wanted.servers)
    capacity = min(machine.gpus or machine.cpus, MOST_TASKS // 2)
    return _working(min(wanted.workers, capacity), min(wanted.servers, capacity))


MOST_TASKS = 1200
"""Limit of a TensorFlow job on this machine. The plan grows with the square of the tasks, because every task knows all
others."""


def _working(workers: int, servers: int) -> Tasks:
    """Return the number of workers that train. With parameter servers the chief only coordinates, so one more worker is
    needed."""
    return Tasks(max(workers, 2) if servers else workers, servers)


def gpu_share(gpu_ids: Sequence[str], instances: int, instance: int) -> tuple[str, ...]:
    """Return the GPUs that one simulated instance sees: its part of them. Where there are too few GPUs, instances share
    them."""
    if not gpu_ids:
        return ()
    share = max(1, len(gpu_ids) // instances)
    first = (instance * share) % len(gpu_ids)
    return tuple(gpu_ids[first : first + share])
