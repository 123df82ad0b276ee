"""Rules about the number of processes against GPUs: what the container will really run, seen before it is paid for."""

from __future__ import annotations

from collections.abc import Iterator

from cloudtrain.core.plan import Level
from cloudtrain.rules.rule import Fault, Subject, rule
from cloudtrain.rules.shared import processes as shared
from cloudtrain.targets.sagemaker.rules.library import distribution_ignored


@rule("SM331", Level.WARNING)
def fewer_processes_than_gpus(subject: Subject) -> Iterator[Fault]:
    """An instance has more GPUs than processes.

    One process uses one GPU unless the script does more itself, so the others are paid for and idle. The count is
    what the container will really start, overrides and the toolkit's own rules included.
    """
    if not any(distribution_ignored(subject)):
        yield from shared.fewer_processes_than_gpus(subject)


@rule("SM332", Level.ERROR)
def more_processes_than_gpus(subject: Subject) -> Iterator[Fault]:
    """More processes than GPUs on an instance.

    Two ranks on one GPU make NCCL fail at start ("Duplicate GPU detected"), after the machines were paid for. On
    Trainium each process takes a Neuron core.
    """
    return shared.more_processes_than_gpus(subject)


rule("SM333", Level.WARNING)(shared.more_ranks_than_gpus)


@rule("SM334", Level.WARNING)
def mpi_with_one_process(subject: Subject) -> Iterator[Fault]:
    """mpirun starts a single process.

    Without `processes_per_instance` there is one process for each GPU, and one on an instance without GPUs: on one
    instance with at most one GPU, nothing is distributed. The SageMaker SDK starts it without a word.
    """
    return shared.mpi_with_one_process(subject)
