"""What to write instead of an Azure instance type that is unknown, retired, or without the right network.

The catalogue's rows are looked at only when a rule has something to say.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from difflib import get_close_matches

from cloudtrain.catalogue.instances import InstanceType, instance_types

_AFTER = {"K80": "T4", "M60": "A10", "P40": "A100", "P100": "A100", "V100": "A100"}
"""GPU of the retired series to that of the series which Azure names for them (NCasT4 v3, NVadsA10 v5, NC A100 v4)."""


def today() -> str:
    """The ISO date."""
    return str(date.today())


def last_day(known: InstanceType | None) -> str | None:
    """The ISO date from which a type is not offered; None where nobody has said one."""
    return (known.retired or known.retires or None) if known else None


def nearest(name: str) -> str | None:
    """The most similar name of the catalogue, if one is similar."""
    names = {row.name.casefold(): row.name for row in instance_types("azureml") if not row.retired}
    bare = name.casefold()
    wanted = bare if bare.startswith("standard_") else f"standard_{bare}"
    return next((names[match] for match in get_close_matches(wanted, names, n=1, cutoff=0.8)), None)


def better_network(known: InstanceType, count: int, code: str) -> str:
    """For `count` of these: one instance with all the GPUs (of no less memory, if there is one), or a type with
    InfiniBand, or to accept it."""

    def has_all(row: InstanceType) -> bool:
        return _model(row) == _model(known) and row.gpus >= known.gpus * count

    accept = f"or accept Ethernet with `--ignore {code}`"
    whole = _best(lambda row: has_all(row) and row.gpu_memory_gib >= known.gpu_memory_gib) or _best(has_all)
    if whole is not None:
        return f"use one `{whole.name}` ({_described(whole)}), which needs no network, {accept}"
    return f"{with_infiniband(known) or 'use a type with InfiniBand'}, {accept}"


def has_infiniband_somewhere(known: InstanceType) -> bool:
    """Whether a type that is offered has InfiniBand and the same model of GPU."""
    return _best(lambda row: row.interconnect == "rdma" and _model(row) == _model(known)) is not None


def with_infiniband(known: InstanceType) -> str | None:
    """A type with InfiniBand: with the same GPU and no less memory, else one of the two."""

    def same(row: InstanceType) -> bool:
        return row.interconnect == "rdma" and _model(row) == _model(known)

    def no_less(row: InstanceType) -> bool:
        return row.interconnect == "rdma" and row.gpus > 0 and row.gpu_memory_gib >= known.gpu_memory_gib

    better = _best(lambda row: same(row) and no_less(row)) or _best(same) or _best(no_less)
    return f"use `{better.name}` ({_described(better)})" if better else None


def successor(known: InstanceType) -> str | None:
    """A type that is offered, with as many GPUs, or as many vCPUs where there are none."""
    model = _AFTER.get(_model(known), _model(known))
    best = _best(
        lambda row: (
            row.name != known.name
            and (row.interconnect == "rdma" or known.interconnect != "rdma")
            and (row.gpus >= known.gpus and _model(row) == model if known.gpus else not row.gpus)
            and (bool(known.gpus) or row.vcpus >= known.vcpus)
        )
    )
    return f"use for example `{best.name}` ({_described(best)})" if best else None


def _best(fits: Callable[[InstanceType], bool]) -> InstanceType | None:
    """The cheapest that fits and is offered; slices of GPUs and Arm machines are for those who ask for them."""
    rows = [
        row
        for row in instance_types("azureml")
        if row.price and not last_day(row) and not row.gpu_slice and row.architecture == "x86_64" and fits(row)
    ]
    return min(rows, key=lambda row: (row.price or 0.0, row.name), default=None)


def _model(row: InstanceType) -> str:
    """`H100` of `H100-80GB` and of `H100-NVL-94GB`."""
    return row.gpu.partition("-")[0]


def _described(row: InstanceType) -> str:
    what = f"{row.gpus} x {row.gpu}" if row.gpus else f"{row.vcpus} vCPUs"
    infiniband = row.interconnect == "rdma"
    speed = f", {row.network_gbps:,.0f} Gb/s of InfiniBand" if infiniband and row.network_gbps else ""
    return f"{what}{speed}, ${row.price:,.2f} an hour"
