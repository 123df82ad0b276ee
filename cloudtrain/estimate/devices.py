"""The rates of GPUs and networks, each from its maker's documents: `gpus.toml`."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from cloudtrain.documents.document import load_table
from cloudtrain.machines.table import InstanceType, instance_types

_GIGA = 1e9
_TERA = 1e12
_GIB = 2**30

PCIE = 12.0
"""GB/s that a GPU sends over PCIe 3.0 x16 in practice; newer buses are faster."""

ETHERNET = 10.0
"""Gigabits per second of a network whose provider gives no number."""


class Rates(NamedTuple):
    """What one GPU can do at best. None: no document says it.

    Attributes:
        bandwidth: bytes per second of its memory.
        half: FLOP/s of 16-bit products.
        has_bf16: whether bf16 is as fast as fp16; otherwise it is as fast as fp32.
        tf32: FLOP/s of fp32 products on tensor cores.
        fp32: FLOP/s of other fp32 operations.
        capability: the first number of the compute capability.
        source: where the figures come from.
    """

    bandwidth: float
    half: float | None
    has_bf16: bool
    tf32: float | None
    fp32: float
    capability: int
    source: str

    def peak(self, dtype: str, *, may_round: bool) -> float | None:
        """Return the FLOP/s of products of this dtype. `may_round`: fp32 products may use TF32."""
        if dtype == "float16" or (dtype == "bfloat16" and self.has_bf16):
            return self.half
        if dtype == "float32" and may_round:
            return self.tf32 or self.fp32
        return self.fp32


class GpuInstance(NamedTuple):
    """The GPUs of an instance, and what connects them. Bytes, and bytes per second."""

    name: str
    gpu: str
    gpus: int
    memory: float
    rates: Rates | None
    link: float
    """To another GPU of the instance."""
    network: float
    """Of the whole instance to others."""
    price: float | None
    """US dollars per hour, as the list has it."""

    @classmethod
    def of(cls, row: InstanceType) -> GpuInstance:
        """Return the machine of a row of the catalogue."""
        link = _tables()["links"].get(row.family, PCIE)
        network = row.network_gbps or ETHERNET
        return cls(
            row.name,
            row.gpu,
            row.gpus,
            row.gpu_memory_gib * _GIB,
            rates_of(row),
            link * _GIGA,
            network * _GIGA / 8,
            row.price,
        )


def rates_of(row: InstanceType) -> Rates | None:
    """Return the rates of the GPU of an instance type; None for an unknown one. A slice of a GPU
    has its share."""
    gpus = _tables()["gpus"]
    found = gpus.get(row.gpu) or gpus.get(row.gpu_model)
    if found is None:
        return None

    share = 1.0
    if row.gpu_slice:
        part, _, whole = row.gpu_slice.partition("/")
        share = int(part) / int(whole)

    def rate(name: str, unit: float) -> float | None:
        value = found.get(name)
        return None if value is None else value * unit * share

    return Rates(
        rate("bandwidth", _GIGA) or 0.0,
        rate("half", _TERA),
        found.get("half_is") != "fp16",
        rate("tf32", _TERA),
        rate("fp32", _TERA) or 0.0,
        found["capability"],
        found["source"],
    )


def holders(target: str, need: float, gpus: int) -> list[InstanceType]:
    """Return the types of a target whose GPUs have `need` bytes, and of which each instance has at
    least `gpus` of them; the cheapest first, those without a price last."""
    found = []
    for row in instance_types(target):
        if row.gpus >= gpus and row.gpu_memory_gib * _GIB >= need and not row.retired:
            found.append(row)
    return sorted(found, key=lambda row: (row.price is None, row.price or row.gpus, row.name))


@cache
def _tables() -> dict[str, Any]:
    return load_table(__file__, "gpus.toml")
