"""The job that this machine can run as a service would: fewer instances and processes, data from here."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

from cloudtrain.compile.scaling import Shape, local_shape
from cloudtrain.data import Input
from cloudtrain.distribution import TensorFlow
from cloudtrain.errors import JobError, Problem
from cloudtrain.job import TrainingJob
from cloudtrain.plans import LocalAccount, Machine
from cloudtrain.resources import InstanceGroup
from cloudtrain.targets import Local


def scaled_job(job: TrainingJob, target: Local, account: LocalAccount) -> tuple[TrainingJob, Shape]:
    """The job with counts that fit here, and its shape. Inputs that the service has no place for get a made-up one.

    Raises:
        JobError: the job needs something that cannot be emulated here.
    """
    problems = [problem for name, item in job.inputs.items() for problem in _input_problems(name, item)]
    problems += _library_problems(job)
    if problems:
        raise JobError(problems)
    shape = _shape(job, target, account.machine)
    update: dict[str, Any] = {
        "resources": _resources(job, shape),
        "distribution": _distribution(job, shape),
        "inputs": {name: _placed(name, item, str(target.emulate)) for name, item in job.inputs.items()},
    }
    return job.model_copy(update=update), shape


def _shape(job: TrainingJob, target: Local, machine: Machine) -> Shape:
    if isinstance(job.distribution, TensorFlow):  # one task per host; a host without a task would have nothing to do
        capacity = machine.gpus or machine.cpus
        return Shape(target.instance_count or min(job.resources.instance_count, capacity), 1)
    shape = local_shape(job, target, machine)
    groups = len(job.resources.instance_groups)
    return shape if shape.instances >= groups else Shape(groups, 1)


def _resources(job: TrainingJob, shape: Shape) -> Any:
    if not job.resources.instance_groups:
        return job.resources.model_copy(update={"instance_count": shape.instances})
    return job.resources.model_copy(update={"instance_groups": _groups(job.resources.instance_groups, shape.instances)})


def _groups(groups: tuple[InstanceGroup, ...], instances: int) -> tuple[InstanceGroup, ...]:
    """Every group keeps one instance at least; the largest ones lose first, of equal ones the last."""
    counts = [group.instance_count for group in groups]
    while sum(counts) > max(instances, len(groups)):
        counts[max(range(len(counts)), key=lambda index: (counts[index], index))] -= 1
    return tuple(
        group.model_copy(update={"instance_count": count}) for group, count in zip(groups, counts, strict=True)
    )


def _distribution(job: TrainingJob, shape: Shape) -> Any:
    distribution = job.distribution
    if "processes_per_instance" in type(distribution).model_fields:
        return distribution.model_copy(update={"processes_per_instance": shape.processes_per_instance})
    if isinstance(distribution, TensorFlow):
        counts = {name: getattr(distribution, name) for name in ("workers", "parameter_servers")}
        given = {name: min(count, shape.instances) for name, count in counts.items() if count is not None}
        return distribution.model_copy(update=given)
    return distribution


_STORES = {"sagemaker": "s3://emulated", "azureml": "azureml://datastores/emulated/paths"}
"""What stands for the place of data that is only on this machine."""


def _placed(name: str, item: Input, service: str) -> Input:
    if item.local is None or item.of(service) is not None:
        return item
    end = PurePath(item.local).name if item.type == "uri_file" else ""
    return item.model_copy(update={service: f"{_STORES[service]}/{name}/{end}".rstrip("/")})


def _input_problems(name: str, item: Input) -> list[Problem]:
    if item.local is None and item.value is None:
        hint = f"add `local: PATH` under `inputs.{name}`, or `--set inputs.{name}.local=PATH`"
        return [Problem(("inputs", name), f"input `{name}` has no place on this machine", hint)]
    if item.mode == "pipe":
        message = f"input `{name}` is a pipe, which only SageMaker fills"
        return [Problem(("inputs", name, "mode"), message, f"emulate it with `--set inputs.{name}.mode=mount`")]
    return []


def _library_problems(job: TrainingJob) -> list[Problem]:
    if job.distribution.type != "smp":
        return []
    message = "`smp` is SageMaker's own library and does not exist on this machine"
    hint = "submit it to SageMaker, or use `distribution: {type: torch}` as in `cloudtrain scripts copy pipeline_gpt`"
    return [Problem(("distribution", "type"), message, hint)]
