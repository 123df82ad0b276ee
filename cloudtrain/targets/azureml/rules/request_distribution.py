"""The distribution that the body of a command job asks for."""

from __future__ import annotations

from cloudtrain.core.distribution import MPI, Distribution, NoDistribution, Torch
from cloudtrain.rules.effective_distribution import as_written, count_in, tensorflow_with
from cloudtrain.targets.azureml.launch.body import Body


def distribution_in(written: Distribution, body: Body) -> Distribution:
    """Return the distribution in the body.

    If the body starts processes in the same way as `written`, the job's distribution, the result is `written` with the
    body's numbers of processes.
    """
    count = count_in(body.distribution.get("processCountPerInstance"))
    if body.kind == "PyTorch":
        return as_written(written, Torch.model_construct(processes_per_instance=count or 1))
    if body.kind == "Mpi":
        return as_written(written, MPI.model_construct(processes_per_instance=count))
    if body.kind == "TensorFlow":
        return as_written(written, tensorflow_with(bool(body.parameter_servers), body.parameter_servers, body.workers))
    return NoDistribution.model_construct()
