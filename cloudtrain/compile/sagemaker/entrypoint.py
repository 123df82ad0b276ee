"""Entrypoint mode: our own launcher, in the bundle, told by one hyperparameter what to start."""

from __future__ import annotations

from typing import Any

from cloudtrain.compile.common import resolve_text
from cloudtrain.compile.sagemaker.machines import Machines
from cloudtrain.compile.sagemaker.modes import uses_mpirun
from cloudtrain.distribution import MPI, DeepSpeed, Horovod, TensorFlow
from cloudtrain.errors import JobError, Problem
from cloudtrain.job import TrainingJob
from cloudtrain.runtime.sagemaker_launcher import LAUNCH_KEY

_LAUNCHERS = {"torch": "torchrun", "deepspeed": "torchrun", "tensorflow": "tensorflow", "none": "single"}


def launch_pairs(job: TrainingJob, machines: Machines, paths: dict[str, str]) -> dict[str, Any]:
    """The hyperparameter that our launcher reads (see `cloudtrain.runtime.sagemaker_launcher`).

    Raises:
        JobError: SageMaker has no such launcher; the hint names the alternative.
    """
    distribution = job.distribution
    if isinstance(distribution, DeepSpeed) and distribution.launch == "launcher":
        message = "the `deepspeed` launcher needs ssh between instances, which SageMaker does not offer"
        raise JobError([Problem(("distribution", "launch"), message, "use `launch: torch`")])
    launch: dict[str, Any] = {"launcher": "mpirun" if uses_mpirun(job) else _LAUNCHERS[distribution.type]}
    if job.command is not None:
        launch["command"] = resolve_text(job.command, paths)
    else:
        launch["entry_point"] = job.entry_point
    launch |= _optional(job, machines)
    return {LAUNCH_KEY: launch}


def _optional(job: TrainingJob, machines: Machines) -> dict[str, Any]:
    distribution = job.distribution
    optional: dict[str, Any] = {
        "processes_per_instance": getattr(distribution, "processes_per_instance", None),
        "instance_groups": list(machines.distribution_groups) or None,
        "requirements": job.environment.requirements,
    }
    if isinstance(distribution, MPI | Horovod):
        optional["mpi_options"] = distribution.options or None
    if isinstance(distribution, TensorFlow):
        optional |= {
            "strategy": distribution.strategy,
            "parameter_servers": distribution.parameter_servers,
            "workers": distribution.workers,
        }
    return {key: value for key, value in optional.items() if value is not None}
