"""Toolkit mode: write the distribution as `sagemaker_*` hyperparameters, which the containers' training toolkit reads.

Keys and values equal those of the SageMaker SDK 2.257.7 (`Framework._distribution_configuration`), verified by
comparing requests. Exceptions are settings that the SDK drops or writes wrongly, so that a different job would run:

* With `torch` on a heterogeneous cluster the SDK drops the groups, so each group would run a separate torchrun job.
* With `smddp` on a heterogeneous cluster the SDK writes the instance type `null`.
* The SDK cannot express `processes_per_instance` of `torch`. cloudtrain writes MPI's key, which the toolkit reads for
  torchrun too.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from cloudtrain.catalogue.machines import Machines
from cloudtrain.core.distribution import MPI, SMDDP, SMP, DeepSpeed, Horovod, TensorFlow, Torch
from cloudtrain.core.job import TrainingJob
from cloudtrain.targets.sagemaker.launch import keys

Pairs = dict[str, Any]
"""Maps each hyperparameter to its value before JSON encoding."""

LOG_LEVEL = 20
"""The level logging.INFO, as the SDK sets it."""


def script_pairs(*, program: str, submit_directory: str, run_name: str, region: str) -> Pairs:
    """Return the hyperparameters that every script needs: the location of the code, and the script to run."""
    return {
        keys.SUBMIT_DIRECTORY: submit_directory,
        keys.PROGRAM: program,
        keys.LOG_LEVEL: LOG_LEVEL,
        keys.JOB_NAME: run_name,
        keys.REGION: region,
    }


def distribution_pairs(job: TrainingJob, machines: Machines) -> Pairs:
    """Return the hyperparameters that tell the toolkit how to start the processes."""
    groups: Pairs = {}
    if machines.spans and job.distribution.type != "tensorflow":
        groups = {keys.GROUPS: list(machines.spans)}
    return groups | _WRITERS[job.distribution.type](job.distribution, machines)


def _torch(distribution: Torch, machines: Machines) -> Pairs:
    pairs: Pairs = {keys.TORCH: True}
    if machines.kind != "groups":
        pairs[keys.INSTANCE_TYPE] = machines.first.instance_type
    asked = distribution.processes_per_instance
    if asked is not None and asked != machines.first.accelerators:
        pairs[keys.PROCESSES] = asked
    return pairs


def _smddp(distribution: SMDDP, machines: Machines) -> Pairs:
    pairs = {
        keys.SMDDP: True,
        keys.INSTANCE_TYPE: machines.first.instance_type,
        keys.SMDDP_OPTIONS: distribution.mpi_options,
    }
    return pairs | ({keys.TORCH: True} if distribution.launch == "torch" else {})


def _smp(distribution: SMP, machines: Machines) -> Pairs:
    parameters = {keys.MODEL_PARALLEL: distribution.parameters} if distribution.parameters else {}
    library = {keys.SMDDP: False, keys.INSTANCE_TYPE: machines.first.instance_type}
    if distribution.version == 2:
        return parameters | library | {keys.TORCH: True} | _processes_for_torch(distribution, machines)
    processes = distribution.processes_per_instance or machines.first.gpus
    launcher = {keys.MPI: True, keys.PROCESSES: processes, keys.MPI_OPTIONS: distribution.mpi_options}
    return launcher | parameters | library


def _processes_for_torch(distribution: SMP, machines: Machines) -> Pairs:
    asked = distribution.processes_per_instance
    return {keys.PROCESSES: asked} if asked is not None and asked != machines.first.accelerators else {}


def _mpi(distribution: MPI | Horovod, machines: Machines) -> Pairs:  # noqa: ARG001 - as the other writers
    return _mpi_pairs(distribution.processes_per_instance, distribution.options)


def _mpi_pairs(processes: int | None, options: str) -> Pairs:
    """Return the MPI hyperparameters. If `processes` is None, the toolkit starts one process for each GPU."""
    count = {keys.PROCESSES: processes} if processes is not None else {}
    return {keys.MPI: True, **count, keys.MPI_OPTIONS: options}


def _deepspeed(distribution: DeepSpeed, machines: Machines) -> Pairs:
    if distribution.launch == "mpi":
        return _mpi_pairs(distribution.processes_per_instance, "")
    assert distribution.launch == "torch", "`launch_of` refuses the others"
    return _torch(Torch(processes_per_instance=distribution.processes_per_instance), machines)


def _tensorflow(distribution: TensorFlow, machines: Machines) -> Pairs:  # noqa: ARG001 - as the other writers
    if distribution.strategy == "parameter_server":
        return {keys.PARAMETER_SERVER: True}
    return {keys.MIRRORED: True}


def _none(distribution: Any, machines: Machines) -> Pairs:  # noqa: ARG001 - as the other writers
    return {}


_WRITERS: dict[str, Callable[[Any, Machines], Pairs]] = {
    "torch": _torch,
    "smddp": _smddp,
    "smp": _smp,
    "deepspeed": _deepspeed,
    "mpi": _mpi,
    "horovod": _mpi,
    "tensorflow": _tensorflow,
    "none": _none,
}


def encode_values(pairs: Pairs) -> dict[str, str]:
    """Encode each value as JSON, so that the toolkit decodes it to the same type."""
    return {name: json.dumps(value) for name, value in pairs.items()}
