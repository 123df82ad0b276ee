"""What to write instead of an instance type that is retired, or without the right network.

The catalogue's rows are looked at only when a rule has something to say.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from cloudtrain.catalogue.instances import InstanceType, instance_types, table_of

_AFTER = {"K80": "T4", "M60": "A10", "P40": "A100", "P100": "A100", "V100": "A100"}
"""GPU of a retired series to that of the series which Azure names for it (NCasT4 v3, NVadsA10 v5, NC A100 v4)."""

_FABRICS = {"efa": "EFA", "infiniband": "InfiniBand", "": "RDMA"}


def fabric(known: InstanceType) -> str:
    """What the target's fast network is called."""
    table = table_of(known.target)
    return _FABRICS[table.fabric if table is not None else ""]


def last_day(known: InstanceType | None) -> str | None:
    """The ISO date from which a type is not offered; None where nobody has said one."""
    return (known.retired or known.retires or None) if known else None


def better_network(known: InstanceType, count: int, code: str) -> str:
    """For `count` of these: one instance with all the GPUs (of no less memory, if there is one), or a type with a fast
    network, or to accept Ethernet."""

    def has_all(row: InstanceType) -> bool:
        return known.gpus > 0 and _model(row) == _model(known) and row.gpus >= known.gpus * count

    accept = f"or accept Ethernet with `--ignore {code}`"
    whole = _best(known, lambda row: has_all(row) and _holds_as_much(row, known)) or _best(known, has_all)
    if whole is not None:
        return f"use one `{whole.name}` ({_describe(whole)}), which needs no network, {accept}"
    return f"{with_rdma(known) or f'use a type with {fabric(known)}'}, {accept}"


def has_rdma_somewhere(known: InstanceType) -> bool:
    """Whether a type that is offered has a fast network and the same model of GPU."""
    return _best(known, lambda row: row.interconnect == "rdma" and _model(row) == _model(known)) is not None


def with_rdma(known: InstanceType) -> str | None:
    """A type with a fast network: with the same GPU and no less memory, else one of the two."""

    def same(row: InstanceType) -> bool:
        return row.interconnect == "rdma" and _model(row) == _model(known)

    def no_less(row: InstanceType) -> bool:
        return row.interconnect == "rdma" and row.gpus > 0 and _holds_as_much(row, known)

    better = _best(known, lambda row: same(row) and no_less(row)) or _best(known, same) or _best(known, no_less)
    return f"use `{better.name}` ({_describe(better)})" if better else None


def successor(known: InstanceType) -> str | None:
    """A type that is offered, with as many GPUs, or as many vCPUs where there are none."""
    gpu, neuron = _model(known)
    model = _AFTER.get(gpu, gpu), neuron
    best = _best(
        known,
        lambda row: (
            row.name != known.name
            and (row.interconnect == "rdma" or known.interconnect != "rdma")
            and _model(row) == model
            and (row.gpus >= known.gpus if known.gpus else row.vcpus >= known.vcpus)
        ),
    )
    return f"use for example `{best.name}` ({_describe(best)})" if best else None


def _best(known: InstanceType, fits: Callable[[InstanceType], bool]) -> InstanceType | None:
    """The cheapest of its target that fits and is offered, those without a price behind all others; slices of GPUs and
    Arm machines are for those who ask for them."""
    rows = [
        row
        for row in instance_types(known.target)
        if not last_day(row) and not row.gpu_slice and row.architecture == "x86_64" and fits(row)
    ]
    return min(rows, key=lambda row: (row.price or inf, row.gpus, row.vcpus, row.name), default=None)


def _model(row: InstanceType) -> tuple[str, str]:
    """`H100` of `H100-80GB` and of `H100-NVL-94GB`; on other machines `Trainium`, or neither."""
    return row.gpu.partition("-")[0], row.neuron


def _holds_as_much(row: InstanceType, known: InstanceType) -> bool:
    return row.gpu_memory_gib >= known.gpu_memory_gib


def _describe(row: InstanceType) -> str:
    is_fast = row.interconnect == "rdma" and row.network_gbps
    speed = f", {row.network_gbps:,.0f} Gb/s of {fabric(row)}" if is_fast else ""
    return f"{row.hardware}{speed}" + (f", ${row.price:,.2f} an hour" if row.price else "")
