"""The distribution that a CreateTrainingJob request asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cloudtrain.core.distribution import MPI, SMDDP, SMP, Distribution, NoDistribution, TensorFlow, Torch
from cloudtrain.rules.effective_distribution import as_written, count_in, tensorflow_with
from cloudtrain.runtime.sagemaker_launcher import LAUNCH_KEY
from cloudtrain.targets.sagemaker.launch import keys


def distribution_in(written: Distribution, parameters: Mapping[str, Any]) -> Distribution:
    """Return the distribution that the request's hyperparameters ask for.

    The result is the job's distribution `written` with the changes that the hyperparameters make. It is not validated,
    because overrides may contain any value.
    """
    launch = parameters.get(LAUNCH_KEY)
    if isinstance(launch, Mapping):
        return as_written(written, _of_our_launcher(launch))
    processes, options = count_in(parameters.get(keys.PROCESSES)), parameters.get(keys.MPI_OPTIONS)
    if parameters.get(keys.PARAMETER_SERVER):
        return as_written(written, TensorFlow.model_construct(strategy="parameter_server"))
    if parameters.get(keys.MIRRORED):
        return as_written(written, TensorFlow.model_construct())
    if parameters.get(keys.MPI):
        if parameters.get(keys.MODEL_PARALLEL):
            return as_written(
                written, SMP.model_construct(version=1, processes_per_instance=processes), options=options
            )
        return as_written(written, MPI.model_construct(processes_per_instance=processes), options=options)
    if parameters.get(keys.SMDDP):
        by_torch, by_mpi = SMDDP.model_construct(launch="torch"), SMDDP.model_construct(launch="mpi")
        made_by = by_torch if parameters.get(keys.TORCH) else by_mpi
        return as_written(written, made_by, options=parameters.get(keys.SMDDP_OPTIONS))
    if parameters.get(keys.TORCH):
        if parameters.get(keys.MODEL_PARALLEL):
            return as_written(written, SMP.model_construct(version=2, processes_per_instance=processes))
        return as_written(written, Torch.model_construct(processes_per_instance=processes))
    return written if isinstance(written, NoDistribution) else NoDistribution.model_construct()


def _of_our_launcher(launch: Mapping[str, Any]) -> Distribution:
    count = count_in(launch.get("processes_per_instance"))
    if launch.get("launcher") == "torchrun":
        return Torch.model_construct(processes_per_instance=count)
    if launch.get("launcher") == "mpirun":
        return MPI.model_construct(processes_per_instance=count, options=str(launch.get("mpi_options") or ""))
    if launch.get("launcher") == "tensorflow":
        servers, workers = count_in(launch.get("parameter_servers")), count_in(launch.get("workers"))
        return tensorflow_with(launch.get("strategy") == "parameter_server", servers, workers)
    return NoDistribution.model_construct()
