"""Queries on instance types: which types match, in which order, and which conditions prevent a match."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from cloudtrain.catalogue.gpus import has_gpu, named_memory
from cloudtrain.catalogue.instances import InstanceType

Test = Callable[[InstanceType], bool]

INTERCONNECTS: dict[str, Test] = {
    "rdma": lambda instance: instance.interconnect == "rdma",
    "ethernet": lambda instance: instance.interconnect == "ethernet",
    "efa": lambda instance: instance.interconnect == "rdma" and instance.fabric == "efa",
    "infiniband": lambda instance: instance.interconnect == "rdma" and instance.fabric == "infiniband",
}
"""`ethernet` means only Ethernet; `infiniband` means InfiniBand that NCCL can use."""

ORDERS: dict[str, Callable[[InstanceType], Any]] = {
    "price": lambda instance: inf if instance.price is None else instance.price,
    "name": lambda _: 0,
    "gpus": lambda instance: -instance.gpus,
    "gpu-memory": lambda instance: -instance.gpu_memory_gib,
    "vcpus": lambda instance: -instance.vcpus,
    "memory": lambda instance: -instance.memory_gib,
    "network": lambda instance: -(instance.network_gbps or 0),
}
"""Sort keys. Prices are sorted from the cheapest, with unknown prices last; all else from the largest. Ties and names
are sorted by family and size."""


@dataclass(frozen=True)
class Query:
    """The conditions on an instance type. None means no condition."""

    gpu: str | None = None
    gpus: int | None = None
    interconnect: str | None = None
    """A key of `INTERCONNECTS`."""
    min_gpu_memory: float | None = None
    """GiB of each GPU, as in its name: an `A10G-24GB` has 24."""
    max_price: float | None = None
    """US dollars per hour. A type without a known price does not match."""

    def tests(self) -> Mapping[str, Test]:
        """Return one test for each condition that is not None, by the name of its field."""
        gpu, gpus, memory, price = self.gpu, self.gpus, self.min_gpu_memory, self.max_price
        tests: dict[str, Test] = {}
        if gpu is not None:
            tests["gpu"] = lambda instance: has_gpu(instance, gpu)
        if gpus is not None:
            tests["gpus"] = lambda instance: instance.gpus == gpus
        if self.interconnect is not None:
            tests["interconnect"] = INTERCONNECTS[self.interconnect]
        if memory is not None:
            tests["min_gpu_memory"] = lambda instance: named_memory(instance) >= memory
        if price is not None:
            tests["max_price"] = lambda instance: instance.price is not None and instance.price <= price
        return tests


def select(types: Iterable[InstanceType], query: Query, order: str = "price") -> list[InstanceType]:
    """Return the types that match, sorted by `order`, a key of `ORDERS`. Retired types come last."""
    tests = query.tests().values()
    fitting = (instance for instance in types if all(test(instance) for test in tests))
    return sorted(fitting, key=lambda instance: (bool(instance.retired), ORDERS[order](instance), *_size(instance)))


def _size(instance: InstanceType) -> tuple[Any, ...]:
    return instance.family.casefold(), instance.vcpus, instance.memory_gib, instance.name


def without_each(types: Sequence[InstanceType], query: Query) -> dict[str, int]:
    """Return, for each condition of the query, how many types would match without this condition. The keys are the
    names of the conditions' fields."""
    tests = query.tests()
    others = {field: [test for name, test in tests.items() if name != field] for field in tests}
    return {
        field: sum(all(test(instance) for test in remaining) for instance in types)
        for field, remaining in others.items()
    }


def count_unpriced(types: Iterable[InstanceType], query: Query) -> int:
    """Return how many types have no known price and match everything except `max_price`."""
    tests = [test for field, test in query.tests().items() if field != "max_price"]
    return sum(instance.price is None and all(test(instance) for test in tests) for instance in types)
