"""Rules that compare the number of processes with the number of GPUs.

They count the processes that the container will really start, with all overrides."""

from __future__ import annotations

from collections.abc import Iterator

from cloudtrain.core.plan import Level
from cloudtrain.rules.rule import Fault, Subject, rule
from cloudtrain.rules.shared import processes as shared
from cloudtrain.targets.sagemaker.rules.library import distribution_ignored


@rule("SM331", Level.WARNING)
def fewer_processes_than_gpus(subject: Subject) -> Iterator[Fault]:
    """An instance has more GPUs than processes.

    A process uses one GPU, unless the script itself uses more. You pay for the other GPUs, and they stay idle.
    cloudtrain counts the processes that the container will start, including overrides and the toolkit's own rules.
    """
    if not any(distribution_ignored(subject)):
        yield from shared.fewer_processes_than_gpus(subject)


@rule("SM332", Level.ERROR)
def more_processes_than_gpus(subject: Subject) -> Iterator[Fault]:
    """An instance has more processes than GPUs.

    With two ranks on one GPU, NCCL fails at start ("Duplicate GPU detected"), when you already pay for the machines. On
    Trainium each process uses a Neuron core.
    """
    return shared.more_processes_than_gpus(subject)


rule("SM333", Level.WARNING)(shared.more_ranks_than_gpus)


@rule("SM334", Level.WARNING)
def mpi_with_one_process(subject: Subject) -> Iterator[Fault]:
    """mpirun starts a single process.

    Without `processes_per_instance`, mpirun starts one process for each GPU, or one on an instance without GPUs. On a
    single instance with at most one GPU, this is a single process, so nothing is distributed. The SageMaker SDK starts
    such a job without a warning.
    """
    return shared.mpi_with_one_process(subject)
