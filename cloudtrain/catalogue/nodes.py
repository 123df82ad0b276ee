"""The machines that a cluster has now, as it tells them itself. No table knows them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable


@dataclass
class NodeKind:
    """Nodes that are alike.

    Attributes:
        cpus: of each.
        memory: of each, in bytes.
        gpus: of each.
        gpu_type: what Slurm calls them: `h100`.
        features: what a `constraint` or a job's `instance_type` can name.
        partitions: those that have such nodes.
        nodes: how many there are.
        idle: how many wait for work.
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
    """A service that can tell which machines there are."""

    def instances(self, place: str) -> list[NodeKind]:
        """Ask.

        Raises:
            TargetError: it does not answer.
        """
        ...
