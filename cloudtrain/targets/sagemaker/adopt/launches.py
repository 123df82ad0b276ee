"""Read a job's distribution from the training toolkit's hyperparameters: the inverse of `compile/toolkit`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from cloudtrain.targets.sagemaker.launch import keys

OF_TOOLKIT = frozenset(
    {
        keys.PROGRAM, keys.SUBMIT_DIRECTORY, keys.LOG_LEVEL, keys.JOB_NAME, keys.REGION, keys.GROUPS,
        keys.INSTANCE_TYPE, keys.PROCESSES, keys.RANKS, keys.MPI_OPTIONS, keys.SMDDP_OPTIONS, keys.MODEL_PARALLEL,
        keys.NATIVE_LAUNCHER, *keys.LAUNCHER_KEYS,
    }
)  # fmt: skip
"""Hyperparameters for the toolkit, which do not belong to the script."""


def parsed(text: Any) -> Any:
    """Return a hyperparameter's value: decoded if it is JSON, as the SDK writes it, or else the text itself."""
    if not isinstance(text, str):
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def distribution_in(parameters: Mapping[str, Any], instance_gpus: int | None) -> dict[str, Any]:
    """Return the job's field `distribution` that starts the same processes as the hyperparameters.

    Args:
        parameters: the request's hyperparameters with their parsed values.
        instance_gpus: GPUs of each instance, if known.
    """
    if parameters.get(keys.MODEL_PARALLEL) is not None or _is_smp2_without_parameters(parameters):
        return _smp(parameters, instance_gpus)
    if parameters.get(keys.SMDDP):
        options = parameters.get(keys.SMDDP_OPTIONS)
        return {
            "type": "smddp",
            **({"launch": "torch"} if parameters.get(keys.TORCH) else {}),
            **({"mpi_options": options} if options else {}),
        }
    if parameters.get(keys.TORCH):
        return {"type": "torch", **_count(parameters)}
    if parameters.get(keys.MPI):
        options = parameters.get(keys.MPI_OPTIONS)
        return {"type": "mpi", **_count(parameters), **({"options": options} if options else {})}
    if parameters.get(keys.PARAMETER_SERVER):
        return {"type": "tensorflow", "strategy": "parameter_server"}
    if parameters.get(keys.MIRRORED):
        return {"type": "tensorflow"}
    return {}


def _is_smp2_without_parameters(parameters: Mapping[str, Any]) -> bool:
    return bool(parameters.get(keys.TORCH)) and parameters.get(keys.SMDDP) is False


def _smp(parameters: Mapping[str, Any], instance_gpus: int | None) -> dict[str, Any]:
    given = parameters.get(keys.MODEL_PARALLEL)
    options = parameters.get(keys.MPI_OPTIONS)
    version = 2 if parameters.get(keys.TORCH) else 1
    count = _count(parameters)
    if count.get("processes_per_instance") == instance_gpus:
        count = {}
    return {
        "type": "smp",
        "version": version,
        **count,
        **({"parameters": given} if given else {}),
        **({"mpi_options": options} if options and version == 1 else {}),
    }


def _count(parameters: Mapping[str, Any]) -> dict[str, int]:
    count = parameters.get(keys.PROCESSES)
    return {"processes_per_instance": count} if isinstance(count, int) and count > 0 else {}
