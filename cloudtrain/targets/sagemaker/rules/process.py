"""Rules about the number of processes against GPUs. They count what the container will really run."""

from __future__ import annotations

from collections.abc import Iterator

from cloudtrain.core.plan import Level
from cloudtrain.rules.rule import Fault, Subject, rule
from cloudtrain.rules.shared import processes as shared
from cloudtrain.targets.sagemaker.rules.library import distribution_ignored


@rule("SM331", Level.WARNING)
def fewer_processes_than_gpus(subject: Subject) -> Iterator[Fault]:
    """An instance has more GPUs than processes.

    One process uses one GPU if the script itself does not use more. You pay for the other GPUs, and they stay idle. The
    count is what the container will really start, overrides and the toolkit's own rules included.
    """
    if not any(distribution_ignored(subject)):
        yield from shared.fewer_processes_than_gpus(subject)


@rule("SM332", Level.ERROR)
def more_processes_than_gpus(subject: Subject) -> Iterator[Fault]:
    """More processes than GPUs on an instance.

    Two ranks on one GPU make NCCL fail at start ("Duplicate GPU detected"), when you already pay for the machines. On
    Trainium each process takes a Neuron core.
    """
    return shared.more_processes_than_gpus(subject)


rule("SM333", Level.WARNING)(shared.more_ranks_than_gpus)


@rule("SM334", Level.WARNING)
def mpi_with_one_process(subject: Subject) -> Iterator[Fault]:
    """mpirun starts a single process.

    Without `processes_per_instance` mpirun starts one process for each GPU, and one on an instance without GPUs. One
    instance with at most one GPU therefore distributes nothing. The SageMaker SDK starts such a job without a warning.
    """
    return shared.mpi_with_one_process(subject)
