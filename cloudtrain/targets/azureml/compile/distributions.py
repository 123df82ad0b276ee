"""Convert a job's distribution to the body's: the launcher and the number of processes that Azure ML starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cloudtrain.catalogue.machines import MachineGroup
from cloudtrain.core.distribution import DeepSpeed, TensorFlow, launcher_of
from cloudtrain.core.job import TrainingJob
from cloudtrain.errors import JobError, Problem
from cloudtrain.targets.azureml.catalogue.vm_names import nearest_size


def distribution_of(job: TrainingJob, machines: MachineGroup) -> dict[str, Any] | None:
    """Return the body's `distribution`; None for a single process without a distribution.

    Raises:
        JobError: Azure ML lacks the distribution; the hint names the alternative.
    """
    return _ROWS[job.distribution.type](job, machines)


def is_launcher(job: TrainingJob) -> bool:
    """Return whether DeepSpeed's own launcher starts the processes of each instance."""
    return isinstance(job.distribution, DeepSpeed) and job.distribution.launch == "launcher"


def only_sagemaker(job: TrainingJob) -> bool:
    """Return whether the distribution is a library that only SageMaker has."""
    return job.distribution.type in ("smddp", "smp")


def processes_per_instance(job: TrainingJob, machines: MachineGroup) -> int:
    """Return the number of processes on each instance.

    The body always contains the number, because the service's default of one would leave seven of eight GPUs idle.

    Raises:
        JobError: the number is neither in the job nor in the catalogue.
    """
    given: int | None = getattr(job.distribution, "processes_per_instance", None)
    count = given or (machines.known.devices if machines.known else None)
    if count is not None:
        return count
    what = f"`{machines.instance_type}` is not in the catalogue" if machines.instance_type else "no instance type given"
    message = f"the number of processes per instance is not known: {what}"
    near = nearest_size(machines.instance_type) if machines.instance_type else None
    hint = "add `processes_per_instance` to `distribution` (the GPUs of an instance)"
    if near:
        place = machines.path or ("resources", "instance_type")
        raise JobError([Problem(place, message, f"did you mean `{near}`? Or {hint}", code="CT040")])
    hint += "" if machines.instance_type else ", or `resources.instance_type`"
    raise JobError([Problem(("distribution", "processes_per_instance"), message, hint, code="CT040")])


def _pytorch(job: TrainingJob, machines: MachineGroup) -> dict[str, Any]:
    return {"distributionType": "PyTorch", "processCountPerInstance": processes_per_instance(job, machines)}


def _mpi(job: TrainingJob, machines: MachineGroup) -> dict[str, Any]:
    return {"distributionType": "Mpi", "processCountPerInstance": processes_per_instance(job, machines)}


def _deepspeed(job: TrainingJob, machines: MachineGroup) -> dict[str, Any]:
    if is_launcher(job):
        return {"distributionType": "PyTorch", "processCountPerInstance": 1}
    return _mpi(job, machines) if launcher_of(job.distribution) == "mpirun" else _pytorch(job, machines)


def _tensorflow(job: TrainingJob, machines: MachineGroup) -> dict[str, Any]:
    """Return the TensorFlow distribution.

    By default the service starts one worker on each instance. With parameter servers, the body always contains the
    number of workers, because the service would also start workers on the servers' instances.
    """
    assert isinstance(job.distribution, TensorFlow)
    servers = (job.distribution.parameter_servers or 1) if job.distribution.strategy == "parameter_server" else 0
    workers = job.distribution.workers or (max(1, machines.count - servers) if servers else None)
    counted = {} if workers is None else {"workerCount": workers}
    return {"distributionType": "TensorFlow", "parameterServerCount": servers, **counted}


def _ray(job: TrainingJob, machines: MachineGroup) -> dict[str, Any]:  # noqa: ARG001 - a row's
    given = job.distribution.model_dump(exclude={"type"}, exclude_none=True)
    return {"distributionType": "Ray", **{camel(name): value for name, value in given.items()}}


def camel(name: str) -> str:
    """Return `dashboard_port` as the API writes it: `dashboardPort`."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _only_sagemaker(alternative: str) -> Callable[[TrainingJob, MachineGroup], None]:
    def refuse(job: TrainingJob, machines: MachineGroup) -> None:  # noqa: ARG001 - a row's
        name = job.distribution.type
        message = f"`{name}` is SageMaker's own library and does not exist on Azure ML"
        raise JobError([Problem(("distribution", "type"), message, alternative, code="CT030")])

    return refuse


_ROWS: dict[str, Callable[[TrainingJob, MachineGroup], dict[str, Any] | None]] = {
    "torch": _pytorch,
    "deepspeed": _deepspeed,
    "mpi": _mpi,
    "horovod": _mpi,
    "tensorflow": _tensorflow,
    "ray": _ray,
    "none": lambda job, machines: None,  # noqa: ARG005 - a row's
    "smddp": _only_sagemaker("use `distribution: {type: torch}`: the same script with NCCL"),
    "smp": _only_sagemaker("use `distribution: {type: torch}` as in `cloudtrain scripts copy pipeline_gpt`, or FSDP2"),
}
