"""The current nodes of a cluster, as the cluster reports them. The catalogue's tables do not contain them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable


@dataclass
class NodeKind:
    """A group of equal nodes.

    Attributes:
        cpus: CPUs of each node.
        memory: memory of each node, in bytes.
        gpus: GPUs of each node.
        gpu_type: Slurm's name of the GPUs, such as `h100`.
        features: features that a `constraint` or a job's `instance_type` can name.
        partitions: partitions with such nodes.
        nodes: number of nodes.
        idle: number of idle nodes.
    """

    cpus: int
    memory: int
    gpus: int
    gpu_type: str
    features: tuple[str, ...]
    partitions: list[str] = field(default_factory=list)
    nodes: int = 0
    idle: int = 0


@runtime_checkable
class ListsNodes(Protocol):
    """A service that can list the machines of a cluster."""

    def instances(self, place: str) -> list[NodeKind]:
        """Return the kinds of nodes in the cluster `place`.

        Raises:
            TargetError: the cluster does not answer.
        """
        ...
