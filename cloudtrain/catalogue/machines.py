"""The machines of a job: groups of equal ones, what the catalogue knows of each, and what all of them cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from cloudtrain.catalogue.cost import Price, price_of
from cloudtrain.catalogue.instances import InstanceType, instance_named

Device = Literal["gpu", "neuron", "cpu"]


@dataclass(frozen=True)
class MachineGroup:
    """Equal machines."""

    instance_type: str
    """Empty where the job leaves it to a cluster, or to the service."""
    count: int
    known: InstanceType | None
    """The catalogue's row; None for a type that it does not have."""
    name: str = ""
    """What tells the group from others of the job."""
    path: tuple[str | int, ...] = ()
    """Where the job asks for them."""

    @property
    def gpus(self) -> int:
        """Of each machine, as far as is known; Neuron cores are not GPUs."""
        return self.known.gpus if self.known else 0

    @property
    def accelerators(self) -> int:
        """What a launcher starts one process for: GPUs, else Neuron cores."""
        return self.gpus or (self.known.neuron_cores if self.known else 0)

    @property
    def device(self) -> Device | None:
        """What its processes compute on; None where nobody knows."""
        if self.known is None:
            return None
        return "gpu" if self.known.gpus else "neuron" if self.known.neuron_cores else "cpu"


@dataclass(frozen=True)
class Machines:
    """All machines of a job."""

    groups: tuple[MachineGroup, ...]
    """The one type, or each group, or each preference: any of which may be taken instead of the others."""
    kind: Literal["type", "groups", "preferences"] = "type"
    spans: tuple[str, ...] = ()
    """Names of the groups that the distribution spans; empty where it spans all."""

    @property
    def spanned(self) -> tuple[MachineGroup, ...]:
        """The groups that the distribution spans; of preferences all, because any may be taken."""
        return tuple(group for group in self.groups if not self.spans or group.name in self.spans)

    @property
    def first(self) -> MachineGroup:
        """The group that decides what the job is: the first one that the distribution spans."""
        return (self.spanned or self.groups)[0]

    @property
    def count(self) -> int:
        """Machines in all."""
        return self._number(self.groups)

    @property
    def spanned_count(self) -> int:
        """Machines that work together."""
        return self._number(self.spanned)

    @property
    def price(self) -> Price | None:
        """Of all, of preferences that of the dearest; None where one has no price at all."""
        counted = [(group.known, group.count) for group in self.groups]
        return price_of(counted, any_of=self.kind == "preferences")

    def _number(self, groups: tuple[MachineGroup, ...]) -> int:
        counts = [group.count for group in groups]
        return max(counts, default=0) if self.kind == "preferences" else sum(counts)


def known_type(target: str, name: str, overlay: Any) -> InstanceType | None:
    """The catalogue's row of a type, with the user's own corrections; None for one that it does not have."""
    if not overlay:
        return instance_named(target, name)
    from cloudtrain.catalogue.overlay import type_named

    return type_named(target, name, overlay)
