"""Entrypoint mode: one hyperparameter tells cloudtrain's launcher, which is in the bundle, what to start."""

from __future__ import annotations

from typing import Any

from cloudtrain.catalogue.machines import Machines
from cloudtrain.core.distribution import MPI, Horovod, TensorFlow, launcher_of
from cloudtrain.core.job import TrainingJob
from cloudtrain.runtime.sagemaker_launcher import LAUNCH_KEY
from cloudtrain.targets.common.compiling import has_bare_flags, resolve_text


def launch_pairs(job: TrainingJob, machines: Machines, paths: dict[str, str]) -> dict[str, Any]:
    """Return the hyperparameter that cloudtrain's launcher reads (see `cloudtrain.runtime.sagemaker_launcher`)."""
    launcher = launcher_of(job.distribution)
    launch: dict[str, Any] = {"launcher": "single" if launcher == "none" else launcher}
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
        "instance_groups": list(machines.spans) or None,
        "requirements": job.environment.requirements,
        "bare_flags": True if has_bare_flags(job) else None,
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
