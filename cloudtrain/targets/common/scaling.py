"""Fit a job's instances and processes to this machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cloudtrain.core.distribution import TensorFlow
from cloudtrain.core.job import TrainingJob
from cloudtrain.core.plan import Machine
from cloudtrain.targets.common.this_machine import LocalSettings

REHEARSAL_PROCESSES = 2
"""Default number of processes per instance on a machine without GPUs: the smallest that makes a job distributed."""


class JobSize(NamedTuple):
    """The size of a job: instances, and processes per instance."""

    instances: int
    processes_per_instance: int

    @property
    def world_size(self) -> int:
        """Return the total number of processes."""
        return self.instances * self.processes_per_instance

    def __str__(self) -> str:
        return f"{self.instances} x {self.processes_per_instance}"


def requested_size(job: TrainingJob, machine: Machine) -> JobSize:
    """Return the size that the job asks for. Default for processes: one per GPU, or two on a machine without GPUs."""
    resources = job.resources
    instances = sum(group.instance_count for group in resources.instance_groups) or resources.instance_count
    if job.distribution.type == "none":
        return JobSize(instances, 1)
    processes = getattr(job.distribution, "processes_per_instance", None) or resources.gpus_per_instance
    return JobSize(instances, processes or machine.gpus or min(machine.cpus, REHEARSAL_PROCESSES))


def local_size(job: TrainingJob, target: LocalSettings, machine: Machine) -> JobSize:
    """Return the size that the job has on this machine. Numbers that `target` sets are used exactly. The job's numbers
    are reduced to the machine's capacity.

    The capacity is the number of GPUs, or of CPUs on a machine without GPUs. Processes are reduced before instances, so
    that a job with several instances still runs with several.
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
    """The numbers of workers and parameter servers of a TensorFlow job. The chief counts as a worker."""

    workers: int
    servers: int


def requested_tasks(job: TrainingJob) -> Tasks:
    """Return the tasks that a TensorFlow job asks for. Default: one worker per instance."""
    distribution = job.distribution
    assert isinstance(distribution, TensorFlow)
    servers = (distribution.parameter_servers or 1) if distribution.strategy == "parameter_server" else 0
    return _working(distribution.workers or job.resources.instance_count, servers)


def local_tasks(job: TrainingJob, target: LocalSettings, machine: Machine) -> Tasks:
    """Return the tasks that run on this machine. The target's `instance_count` sets the number of workers exactly. By
    default, the job's workers and servers are each reduced to the machine's capacity."""
    wanted = requested_tasks(job)
    if target.instance_count is not None:
        return _working(target.instance_count, wanted.servers)
    capacity = min(machine.gpus or machine.cpus, MOST_TASKS // 2)
    return _working(min(wanted.workers, capacity), min(wanted.servers, capacity))


MOST_TASKS = 1200
"""Maximum number of tasks of a TensorFlow job on this machine. The plan grows with the square of the tasks, because
every task gets the addresses of all others."""


def _working(workers: int, servers: int) -> Tasks:
    """Return the tasks, with at least two workers if there are parameter servers. With parameter servers the chief only
    coordinates, so another worker must train."""
    return Tasks(max(workers, 2) if servers else workers, servers)


def gpu_share(gpu_ids: Sequence[str], instances: int, instance: int) -> tuple[str, ...]:
    """Return the GPUs of one simulated instance. The instances get equal parts. If there are more instances than GPUs,
    several instances share a GPU."""
    if not gpu_ids:
        return ()
    share = max(1, len(gpu_ids) // instances)
    first = (instance * share) % len(gpu_ids)
    return tuple(gpu_ids[first : first + share])
