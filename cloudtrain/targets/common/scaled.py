"""Scale a job so that this machine can emulate a service: reduce instances and processes, and use data on this
machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import Any

from cloudtrain.core.data import Input
from cloudtrain.core.distribution import TensorFlow, no_ray
from cloudtrain.core.job import TrainingJob
from cloudtrain.core.plan import Machine
from cloudtrain.core.resources import InstanceGroup
from cloudtrain.core.targets import DEFAULT_TARGET
from cloudtrain.errors import JobError, Problem
from cloudtrain.targets.common.scaling import JobSize, local_size
from cloudtrain.targets.common.this_machine import LocalAccount, LocalSettings
from cloudtrain.targets.registry import target_of


def scaled_job(job: TrainingJob, target: LocalSettings, account: LocalAccount) -> tuple[TrainingJob, JobSize]:
    """Return the job with numbers of instances and processes that fit this machine, and these numbers as a `JobSize`.
    Inputs without a path on the service get a made-up path.

    Raises:
        JobError: the job needs something that this machine cannot emulate.
    """
    problems = [problem for name, item in job.inputs.items() for problem in _input_problems(name, item)]
    problems += _library_problems(job)
    size = _size(job, target, account.machine)
    problems += _size_problems(size)
    if problems:
        raise JobError(problems)
    update: dict[str, Any] = {"resources": _resources(job, size), "distribution": _distribution(job, size)}
    return placed_job(job, target).model_copy(update=update), size


def placed_job(job: TrainingJob, target: LocalSettings) -> TrainingJob:
    """Return the job with a made-up service path for each input that has a path only on this machine."""
    service = str(target.emulate)
    return job.model_copy(
        update={"inputs": {name: _make_up_place(name, item, service) for name, item in job.inputs.items()}}
    )


MOST_INSTANCES, MOST_PROCESSES = 256, 2048
"""Limits of an emulation. The plan grows with the square of the instances, because every process gets a list of them.
Each process is a separate Python process on this machine."""


def _size_problems(size: JobSize) -> Iterator[Problem]:
    """Yield a problem if an emulation would be too large. Only numbers in the local target's settings can cause it,
    because the job's numbers are reduced."""
    if size.instances > MOST_INSTANCES or size.world_size > MOST_PROCESSES:
        message = f"{size} (instances x processes) is too much to emulate: at most {MOST_INSTANCES} instances, and "
        message += f"{MOST_PROCESSES:,} processes in all"
        hint = "emulate it smaller: `--instances 2 --processes-per-instance 2`"
        yield Problem(("resources", "instance_count"), message, hint, code="CT031")


def _size(job: TrainingJob, target: LocalSettings, machine: Machine) -> JobSize:
    """Return the numbers of instances and processes for this machine. The job's numbers are reduced to the limits of an
    emulation. Numbers that `target` sets are used exactly."""
    size = _fitting(job, target, machine)
    instances = size.instances if target.instance_count else min(size.instances, MOST_INSTANCES)
    most = size.processes_per_instance if target.processes_per_instance else max(1, MOST_PROCESSES // instances)
    return JobSize(instances, min(size.processes_per_instance, most))


def _fitting(job: TrainingJob, target: LocalSettings, machine: Machine) -> JobSize:
    if isinstance(job.distribution, TensorFlow):  # one task per host; a host without a task would have nothing to do
        capacity = machine.gpus or machine.cpus
        return JobSize(target.instance_count or min(job.resources.instance_count, capacity), 1)
    size = local_size(job, target, machine)
    groups = len(job.resources.instance_groups)
    return size if size.instances >= groups else JobSize(groups, 1)


def _resources(job: TrainingJob, size: JobSize) -> Any:
    if not job.resources.instance_groups:
        return job.resources.model_copy(update={"instance_count": size.instances})
    return job.resources.model_copy(update={"instance_groups": _groups(job.resources.instance_groups, size.instances)})


def _groups(groups: tuple[InstanceGroup, ...], instances: int) -> tuple[InstanceGroup, ...]:
    """Reduce instance groups to `instances` instances in total, but not below one instance per group. The largest
    group loses an instance first; of equally large groups, the last one."""
    counts = [group.instance_count for group in groups]
    while sum(counts) > max(instances, len(groups)):
        counts[max(range(len(counts)), key=lambda index: (counts[index], index))] -= 1
    return tuple(
        group.model_copy(update={"instance_count": count}) for group, count in zip(groups, counts, strict=True)
    )


def _distribution(job: TrainingJob, size: JobSize) -> Any:
    distribution = job.distribution
    if "processes_per_instance" in type(distribution).model_fields:
        return distribution.model_copy(update={"processes_per_instance": size.processes_per_instance})
    if isinstance(distribution, TensorFlow):
        counts = {name: getattr(distribution, name) for name in ("workers", "parameter_servers")}
        given = {name: min(count, size.instances) for name, count in counts.items() if count is not None}
        return distribution.model_copy(update=given)
    return distribution


def _make_up_place(name: str, item: Input, service: str) -> Input:
    here = item.of(DEFAULT_TARGET)
    if here is None or item.of(service) is not None:
        return item
    end = PurePath(here).name if item.type == "uri_file" else ""
    return item.model_copy(update={service: f"{target_of(service).emulated_places}/{name}/{end}".rstrip("/")})


def _input_problems(name: str, item: Input) -> list[Problem]:
    if item.of(DEFAULT_TARGET) is None and item.value is None:
        hint = f"add `local: PATH` under `inputs.{name}`, or `--set inputs.{name}.local=PATH`"
        return [Problem(("inputs", name), f"input `{name}` has no path on this machine", hint, code="CT032")]
    if item.mode == "pipe":
        message = f"input `{name}` is a pipe, which an emulation does not support"
        return [
            Problem(
                ("inputs", name, "mode"), message, f"emulate it with `--set inputs.{name}.mode=mount`", code="CT031"
            )
        ]
    return []


def _library_problems(job: TrainingJob) -> list[Problem]:
    if job.distribution.type != "smp":
        return [*no_ray(job.distribution, "on this machine")]
    message = "`smp` is SageMaker's own library and does not exist on this machine"
    hint = "submit it to SageMaker, or use `distribution: {type: torch}` as in `cloudtrain scripts copy pipeline_gpt`"
    return [Problem(("distribution", "type"), message, hint, code="CT030")]


def without_echoes(problems: Sequence[Problem]) -> list[Problem]:
    """Return the first problem of each field, and all problems without a field.

    An emulation first collects the problems with this machine, then those with the service. The service's problems are
    left out for each field that this machine has already refused.
    """
    first = {problem.path: problem for problem in reversed(problems)}
    return [problem for problem in problems if first[problem.path] is problem or not problem.path]
