"""Replacements for an instance type that is retired or has no suitable network."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from cloudtrain.catalogue.instances import InstanceType, instance_types, table_of

_AFTER = {"K80": "T4", "M60": "A10", "P40": "A100", "P100": "A100", "V100": "A100"}
"""Maps the GPU of a retired series to the GPU of the series that Azure recommends instead (NCasT4 v3, NVadsA10 v5, NC
A100 v4)."""

_FABRICS = {"efa": "EFA", "infiniband": "InfiniBand", "": "RDMA"}


def fabric(known: InstanceType) -> str:
    """Return the name of the fast network on the target of the type `known`, such as `EFA`."""
    table = table_of(known.target)
    return _FABRICS[table.fabric if table is not None else ""]


def last_day(known: InstanceType | None) -> str | None:
    """Return the ISO date from which a type is no longer offered; None if no date is announced."""
    return (known.retired or known.retires or None) if known else None


def better_network(known: InstanceType, count: int, code: str) -> str:
    """Return the hint for a job with `count` instances of `known`, a type without a fast network. The hint recommends
    one instance with as many GPUs as all of them, preferably with at least the same GPU memory. If no such instance is
    offered, it recommends a type with a fast network. It also says how to accept Ethernet: with `--ignore` and the
    rule's `code`.
    """

    def has_all(row: InstanceType) -> bool:
        return known.gpus > 0 and _model(row) == _model(known) and row.gpus >= known.gpus * count

    accept = f"or accept Ethernet with `--ignore {code}`"
    whole = _best(known, lambda row: has_all(row) and _holds_as_much(row, known)) or _best(known, has_all)
    if whole is not None:
        return f"use one `{whole.name}` ({_describe(whole)}), which needs no network, {accept}"
    return f"{with_rdma(known) or f'use a type with {fabric(known)}'}, {accept}"


def has_rdma_somewhere(known: InstanceType) -> bool:
    """Return whether the target offers a type with the GPU model of `known` and a fast network."""
    return _best(known, lambda row: row.interconnect == "rdma" and _model(row) == _model(known)) is not None


def with_rdma(known: InstanceType) -> str | None:
    """Return the hint to use a type with a fast network; None if none is suitable. In order of preference: a type with
    the GPU model of `known` and at least its GPU memory; one with its GPU model; one with at least its GPU memory.
    """

    def same(row: InstanceType) -> bool:
        return row.interconnect == "rdma" and _model(row) == _model(known)

    def no_less(row: InstanceType) -> bool:
        return row.interconnect == "rdma" and row.gpus > 0 and _holds_as_much(row, known)

    better = _best(known, lambda row: same(row) and no_less(row)) or _best(known, same) or _best(known, no_less)
    return f"use `{better.name}` ({_describe(better)})" if better else None


def successor(known: InstanceType) -> str | None:
    """Return the hint to replace `known` by an offered type; None if none is suitable. The replacement has the same GPU
    model or its successor, at least as many GPUs (without GPUs: vCPUs), and a fast network if `known` has one.
    """
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
    """Return the cheapest offered type of the target of `known` for which `fits` is true; None if there is none. Types
    without a price come last. Slices of GPUs and Arm machines are never returned."""
    rows = [
        row
        for row in instance_types(known.target)
        if not last_day(row) and not row.gpu_slice and row.architecture == "x86_64" and fits(row)
    ]
    return min(rows, key=lambda row: (row.price or inf, row.gpus, row.vcpus, row.name), default=None)


def _model(row: InstanceType) -> tuple[str, str]:
    """Return a type's GPU model without its memory size (`H100` for `H100-80GB` and `H100-NVL-94GB`), and the model of
    its AWS Neuron devices, such as `Trainium`. Either is empty if the type has no such device.
    """
    return row.gpu.partition("-")[0], row.neuron


def _holds_as_much(row: InstanceType, known: InstanceType) -> bool:
    return row.gpu_memory_gib >= known.gpu_memory_gib


def _describe(row: InstanceType) -> str:
    is_fast = row.interconnect == "rdma" and row.network_gbps
    speed = f", {row.network_gbps:,.0f} Gb/s of {fabric(row)}" if is_fast else ""
    return f"{row.hardware}{speed}" + (f", ${row.price:,.2f} an hour" if row.price else "")
