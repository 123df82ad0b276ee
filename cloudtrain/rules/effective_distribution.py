"""Helpers that read the distribution from a finished request, shared by the request views of all targets."""

from __future__ import annotations

from typing import Any

from cloudtrain.core.distribution import (
    MPI,
    SMDDP,
    SMP,
    DeepSpeed,
    Distribution,
    Horovod,
    NoDistribution,
    Ray,
    TensorFlow,
    Torch,
)
from cloudtrain.rules.reading import positive_count


def tensorflow_with(serves: bool, servers: int | None, workers: int | None) -> TensorFlow:
    """Return a TensorFlow distribution with the given number of workers, and if `serves`, with the strategy
    `parameter_server` and the given number of servers. The numbers are not validated.
    """
    if serves:
        return TensorFlow.model_construct(strategy="parameter_server", parameter_servers=servers, workers=workers)
    return TensorFlow.model_construct(workers=workers)


_KIN: dict[str, tuple[type, ...]] = {
    "torch": (Torch, DeepSpeed),
    "mpi": (MPI, Horovod, DeepSpeed),
    "smddp": (SMDDP,),
    "smp": (SMP,),
    "tensorflow": (TensorFlow,),
    "none": (NoDistribution, Ray),
}
"""Maps a launcher's type to the distributions in a job that can lead to it."""


def as_written(written: Distribution, asked: Distribution, *, options: Any = None) -> Distribution:
    """Return the distribution that the finished request starts, close to the job's own wording. `asked` is the
    distribution read from the request, `written` the one in the job. If both start the same launcher, return `written`
    with the request's number of processes, otherwise `asked`. If `options` is given, it replaces the options for
    mpirun.
    """
    if not isinstance(written, _KIN[asked.type]) or not _same_launch(written, asked):
        found: Distribution = asked
    elif isinstance(written, TensorFlow):
        found = written if written == asked or (isinstance(asked, TensorFlow) and asked.workers is None) else asked
    else:
        count = getattr(asked, "processes_per_instance", None)
        found = written.model_copy(update={"processes_per_instance": count}) if count else written
    field = "mpi_options" if isinstance(found, SMDDP | SMP) else "options"
    if isinstance(options, str) and field in type(found).model_fields:
        return found.model_copy(update={field: options})
    return found


def _same_launch(written: Distribution, asked: Distribution) -> bool:
    if isinstance(written, DeepSpeed):
        return (written.launch == "mpi") is isinstance(asked, MPI)
    if isinstance(written, SMDDP) and isinstance(asked, SMDDP):
        return written.launch == asked.launch
    if isinstance(written, TensorFlow) and isinstance(asked, TensorFlow):
        return written.strategy == asked.strategy
    return True


def count_in(value: Any) -> int | None:
    """Return `value`, such as `4` or `"4"`, as a positive integer; None if it is anything else."""
    return positive_count(int(value) if isinstance(value, str) and value.isdecimal() else value)
