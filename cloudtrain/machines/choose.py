"""Instance types: one chosen by the GPUs of a job, those that a query selects, and the machines of
a whole job."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal, NamedTuple

from cloudtrain.errors import JobError, Problem, ValuePath
from cloudtrain.machines.table import (
    InstanceType,
    Interconnect,
    has_gpu,
    hourly,
    instance_types,
    named_memory,
    types_with_gpu,
    unknown_gpu,
)


def choose(
    target: str,
    *,
    gpu: str,
    gpus_per_instance: int | None = None,
    interconnect: Interconnect | None = None,
    types: Sequence[InstanceType] | None = None,
) -> InstanceType:
    """Return the instance type for a job. `types` replaces the target's table.

    A type fits if it has the GPU `gpu`, `gpus_per_instance` GPUs (None: any number), and with
    `interconnect="rdma"` also RDMA. With `interconnect="ethernet"`, all types fit, because every
    type has Ethernet.

    Of the types that fit, the best is chosen by these criteria, in this order: not retired, whole
    GPUs before slices of a GPU, fewer GPUs, lower price, less GPU memory, fewer vCPUs, less memory,
    lower price without the training service, newer generation, name. If one of the types (except
    retired ones) has no known price, the price comes only after the memory.

    Raises:
        JobError: no type has that GPU, that number of GPUs, or RDMA. The hint names the GPUs,
            numbers or types that are available.
    """
    if types is None:
        same_gpu = types_with_gpu(target, gpu)  # without parsing the whole table
    else:
        same_gpu = [item for item in types if has_gpu(item, gpu)]
    if not same_gpu:
        table = instance_types(target) if types is None else types
        if table:
            raise _error("gpu", *unknown_gpu(gpu, table))
        raise _error(
            "gpu",
            f"there is no table of instance types for `{target}`, so none can be chosen by its GPU",
            "name a type with `instance_type`",
        )

    fitting = same_gpu
    if gpus_per_instance is not None:
        fitting = [instance for instance in fitting if instance.gpus == gpus_per_instance]
        if not fitting:
            message = f"no instance type has {gpus_per_instance} x `{gpu}`"
            raise _error("gpus_per_instance", message, _offer(same_gpu))
    if interconnect == "rdma":
        fitting = [instance for instance in fitting if instance.interconnect == "rdma"]
        if not fitting:
            what = f"`{gpu}`"
            if gpus_per_instance is not None:
                what = f"{gpus_per_instance} x {what}"
            offers = [instance for instance in same_gpu if instance.interconnect == "rdma"]
            hint = (
                "remove `interconnect: rdma`; the instances then communicate over TCP, which is "
                "slower"
            )
            if offers:
                hint = _offer(offers)
            raise _error("interconnect", f"no instance type with {what} has RDMA", hint)

    offers = [instance for instance in fitting if not instance.retired] or fitting
    has_prices = all(instance.price is not None for instance in offers)
    return min(fitting, key=lambda instance: _rank(instance, has_prices))


def _rank(instance: InstanceType, has_prices: bool) -> tuple[object, ...]:
    """Return a sort key with the criteria of `choose`, the best type first. `has_prices`: the
    prices of all types are known."""
    price = _known_price(instance)
    machine_price = inf if instance.machine_price is None else instance.machine_price
    # 5 for `p5en` and `NCads H100 v5`
    family = instance.family
    number = re.search(r"v(\d+)$", family) or re.match(r"[a-zA-Z]+(\d+)", family)
    generation = int(number[1]) if number else 0
    return (
        bool(instance.retired), bool(instance.gpu_slice), instance.gpus,
        price if has_prices else 0.0,
        instance.gpu_memory_gib, instance.vcpus, instance.memory_gib,
        price, machine_price, -generation, instance.name,
    )  # fmt: skip


def _offer(types: Iterable[InstanceType]) -> str:
    """Return the hint that names the numbers of GPUs that types have, each with its best type by
    the order of unknown prices."""
    best: dict[int, str] = {}
    for instance in sorted(types, key=lambda instance: _rank(instance, False)):
        best.setdefault(instance.gpus, f"{instance.gpus} (`{instance.name}`)")
    return f"set `gpus_per_instance` to {' or '.join(best.values())}"


def _error(field: str, message: str, hint: str | None) -> JobError:
    """Return the error for a field of the job's resources."""
    return JobError([Problem(("resources", field), message, hint, code="CT033")])


# Queries on instance types: which types match, in which order, and which conditions prevent a
# match.

INTERCONNECTS = ("rdma", "ethernet", "efa", "infiniband")
"""`ethernet` means only Ethernet; `infiniband` means InfiniBand that NCCL can use."""

ORDERS = {
    "price": "price",
    "name": "name",
    "gpus": "gpus",
    "gpu-memory": "gpu_memory_gib",
    "vcpus": "vcpus",
    "memory": "memory_gib",
    "network": "network_gbps",
}
"""Maps each order to its column. Prices are sorted from the cheapest, with unknown prices last; all
else from the largest. Ties and names are sorted by family and size."""


class Query(NamedTuple):
    """The conditions on an instance type. None means no condition."""

    gpu: str | None = None
    gpus: int | None = None
    interconnect: str | None = None
    """One of `INTERCONNECTS`."""
    min_gpu_memory: float | None = None
    """GiB of each GPU, as in its name: an `A10G-24GB` has 24."""
    max_price: float | None = None
    """US dollars per hour. A type without a known price does not match."""

    def fields(self) -> list[str]:
        """Return the names of the conditions that are not None."""
        return [name for name, value in self._asdict().items() if value is not None]

    def fits(self, instance: InstanceType) -> bool:
        """Return whether a type meets all conditions."""
        if self.gpu is not None and not has_gpu(instance, self.gpu):
            return False
        if self.gpus not in (None, instance.gpus):
            return False
        networks: list[str | None] = [None, instance.interconnect]
        if instance.interconnect == "rdma":
            networks.append(instance.fabric)
        if self.interconnect not in networks:
            return False
        if named_memory(instance) < (self.min_gpu_memory or 0):
            return False
        if self.max_price is None:
            return True
        return instance.price is not None and instance.price <= self.max_price


def _known_price(instance: InstanceType) -> float:
    """Return the price of a type; infinity if it is unknown."""
    return inf if instance.price is None else instance.price


def select(types: Iterable[InstanceType], query: Query, order: str = "price") -> list[InstanceType]:
    """Return the types that match, sorted by `order`, a key of `ORDERS`. Retired types come
    last."""

    def rank(instance: InstanceType) -> tuple[object, ...]:
        value: float = 0
        if order == "price":
            value = _known_price(instance)
        elif order != "name":
            value = -(getattr(instance, ORDERS[order]) or 0)
        size = (instance.family.casefold(), instance.vcpus, instance.memory_gib, instance.name)
        return bool(instance.retired), value, *size

    return sorted(filter(query.fits, types), key=rank)


def without_each(types: Sequence[InstanceType], query: Query) -> dict[str, int]:
    """Return, for each condition of the query, how many types would match without this condition.
    The keys are the names of the conditions' fields."""
    counts = {}
    for field in query.fields():
        without = query._replace(**{field: None})
        counts[field] = sum(map(without.fits, types))
    return counts


def count_unpriced(types: Iterable[InstanceType], query: Query) -> int:
    """Return how many types have no known price and match everything except `max_price`."""
    without = query._replace(max_price=None)
    return sum(instance.price is None for instance in filter(without.fits, types))


# The machines of a job: groups of equal machines, the catalogue's facts about each, and the total
# cost.

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
    path: ValuePath = ()
    """The path in the job that requests the machines."""

    @property
    def gpus(self) -> int:
        """The number of GPUs of each machine; 0 if unknown. Neuron cores do not count."""
        return self.known.gpus if self.known else 0

    @property
    def accelerators(self) -> int:
        """The number of GPUs of each machine, or of Neuron cores if it has no GPUs. 0 if it has
        neither or its type is unknown."""
        if self.known is None:
            return 0
        return self.known.gpus or self.known.neuron_cores

    @property
    def device(self) -> Device | None:
        """The kind of device that the processes compute on; None if unknown."""
        if self.known is None:
            return None
        if self.known.gpus:
            return "gpu"
        return "neuron" if self.known.neuron_cores else "cpu"


@dataclass(frozen=True)
class Machines:
    """All machines of a job."""

    groups: tuple[MachineGroup, ...]
    """The single type, or each group, or each preference. Of preferences, any one can be used
    instead of the others."""
    kind: Literal["type", "groups", "preferences"] = "type"
    spans: tuple[str, ...] = ()
    """Names of the groups that the distribution spans; empty if it spans all."""

    @property
    def spanned(self) -> tuple[MachineGroup, ...]:
        """The groups that the distribution spans. If the groups are preferences, only one of them
        will be used, but all of them are returned."""
        if not self.spans:
            return self.groups
        return tuple(group for group in self.groups if group.name in self.spans)

    @property
    def first(self) -> MachineGroup:
        """The group that represents the job: the first group that the distribution spans."""
        return (self.spanned or self.groups)[0]

    @property
    def count(self) -> int:
        """The number of machines of the job."""
        return self._count(self.groups)

    @property
    def spanned_count(self) -> int:
        """The number of machines that the distribution spans."""
        return self._count(self.spanned)

    @property
    def hourly(self) -> float | None:
        """The list price of all machines in US dollars per hour; if the groups are preferences, the
        price of the dearest group. None if a price is unknown."""
        counts = [(group.known, group.count) for group in self.groups]
        return hourly(counts, any_of=self.kind == "preferences")

    def _count(self, groups: tuple[MachineGroup, ...]) -> int:
        """Return the number of machines in the groups; of preferences, the largest number."""
        counts = [group.count for group in groups]
        if self.kind == "preferences":
            return max(counts, default=0)
        return sum(counts)
