"""The machines of a job: groups of equal machines, the catalogue's facts about each, and the total cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from cloudtrain.catalogue.cost import Price, price_of
from cloudtrain.catalogue.instances import InstanceType, instance_named

Device = Literal["gpu", "neuron", "cpu"]


@dataclass(frozen=True)
class MachineGroup:
    """A group of equal machines."""

    instance_type: str
    """Empty if the job leaves the choice to a cluster or the service."""
    count: int
    known: InstanceType | None
    """The catalogue's row; None if the catalogue does not have the type."""
    name: str = ""
    """The name that distinguishes the group from the job's other groups."""
    path: tuple[str | int, ...] = ()
    """The path in the job that requests the machines."""

    @property
    def gpus(self) -> int:
        """The number of GPUs of each machine; 0 if unknown. Neuron cores do not count."""
        return self.known.gpus if self.known else 0

    @property
    def accelerators(self) -> int:
        """The number of GPUs of each machine, or of Neuron cores if it has no GPUs. 0 if it has neither
        or its type is unknown."""
        return self.gpus or (self.known.neuron_cores if self.known else 0)

    @property
    def device(self) -> Device | None:
        """The kind of device that the processes compute on; None if unknown."""
        if self.known is None:
            return None
        return "gpu" if self.known.gpus else "neuron" if self.known.neuron_cores else "cpu"


@dataclass(frozen=True)
class Machines:
    """All machines of a job."""

    groups: tuple[MachineGroup, ...]
    """The single type, or each group, or each preference. Of preferences, any one can be used instead of the others."""
    kind: Literal["type", "groups", "preferences"] = "type"
    spans: tuple[str, ...] = ()
    """Names of the groups that the distribution spans; empty if it spans all."""

    @property
    def spanned(self) -> tuple[MachineGroup, ...]:
        """The groups that the distribution spans. If the groups are preferences, only one of them will be used, but all
        of them are returned."""
        return tuple(group for group in self.groups if not self.spans or group.name in self.spans)

    @property
    def first(self) -> MachineGroup:
        """The group that represents the job: the first group that the distribution spans."""
        return (self.spanned or self.groups)[0]

    @property
    def count(self) -> int:
        """The total number of machines."""
        return self._number(self.groups)

    @property
    def spanned_count(self) -> int:
        """The number of machines that the distribution spans."""
        return self._number(self.spanned)

    @property
    def price(self) -> Price | None:
        """The price of all machines; if the groups are preferences, the price of the most expensive group. The price
        without the training service replaces an unknown price. None if that price is unknown too."""
        counted = [(group.known, group.count) for group in self.groups]
        return price_of(counted, any_of=self.kind == "preferences")

    def _number(self, groups: tuple[MachineGroup, ...]) -> int:
        counts = [group.count for group in groups]
        return max(counts, default=0) if self.kind == "preferences" else sum(counts)


def known_type(target: str, name: str, overlay: Any) -> InstanceType | None:
    """Return the catalogue's row of a type with the user's corrections; None if neither the catalogue nor the user has
    the type."""
    if not overlay:
        return instance_named(target, name)
    from cloudtrain.catalogue.overlay import type_named

    return type_named(target, name, overlay)
