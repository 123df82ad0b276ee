"""Instance types as documents: a table of types for 80 columns, and a page with all facts about one type."""

from __future__ import annotations

from collections.abc import Sequence

from cloudtrain.machines.table import InstanceType, NodeKind, table_of
from cloudtrain.plans.document import Document, Heading, Pairs, Table

HEADERS = ("NAME", "GPUS", "GPU", "vCPU", "MEMORY", "NETWORK", "USD/H")

INFINIBAND_HEADERS = ("NAME", "GPUS", "GPU", "vCPU", "GiB", "IB", "USD/H")

NODE_HEADERS = ("NODES", "IDLE", "GPUS", "GPU", "vCPU", "MEMORY", "PARTITIONS", "FEATURES")

_FABRIC = {"efa": "EFA", "infiniband": "InfiniBand", "": ""}

_SHORT = {"efa": "EFA", "infiniband": "IB", "": ""}


def type_table(types: Sequence[InstanceType]) -> Document:
    """Return a table with one row per type. The column NETWORK shows the bandwidth in Gbit/s and the kind of RDMA.

    On a target with InfiniBand, the table omits units because the names are long: memory is in GiB, and the column IB
    shows the bandwidth of InfiniBand in Gbit/s. `(no)` marks InfiniBand without SR-IOV, which NCCL cannot use. A
    retired type has `retired` in the column of prices.
    """
    if has_infiniband(types):
        return Document([Table(INFINIBAND_HEADERS, [_infiniband_row(instance) for instance in types])])
    return Document([Table(HEADERS, [_row(instance) for instance in types])])


def node_table(kinds: Sequence[NodeKind]) -> Document:
    """Return a table with one row per kind of node. A row shows the number of nodes, the number of idle nodes, and
    their hardware, partitions and features."""
    rows = [
        (
            str(kind.nodes),
            str(kind.idle),
            str(kind.gpus or "-"),
            kind.gpu_type or "-",
            str(kind.cpus),
            f"{kind.memory / 2**30:.0f} GiB",
            ", ".join(kind.partitions),
            ", ".join(kind.features) or "-",
        )
        for kind in kinds
    ]
    return Document([Table(NODE_HEADERS, rows)])


def has_infiniband(types: Sequence[InstanceType]) -> bool:
    table = table_of(types[0].target) if types else None
    return table is not None and table.fabric == "infiniband"


def one_type(instance: InstanceType) -> Document:
    """Return a page with all known facts about a type and their sources."""
    table = table_of(instance.target)
    own = table.describe(instance) if table is not None else []
    rows = [*_machine(instance), *own, *_prices(instance), ("source", instance.source)]
    return Document([Heading(instance.name), Pairs(rows)])


def _row(instance: InstanceType) -> tuple[str, ...]:
    network = "-" if instance.network_gbps is None else f"{instance.network_gbps:g}"
    rdma = _SHORT[instance.fabric] if instance.interconnect == "rdma" else ""
    return (
        instance.name,
        str(instance.gpus or "-"),
        instance.gpu or instance.neuron or "-",
        str(instance.vcpus),
        f"{instance.memory_gib:g} GiB",
        f"{network} {rdma}".strip(),
        _price(instance),
    )


def _infiniband_row(instance: InstanceType) -> tuple[str, ...]:
    infiniband = "-"
    if instance.interconnect == "rdma":
        infiniband = f"{instance.network_gbps:g}" if instance.network_gbps else "yes"
    elif instance.fabric:
        infiniband = "(no)"
    return (
        instance.name,
        str(instance.gpus or "-"),
        instance.gpu or "-",
        str(instance.vcpus),
        f"{instance.memory_gib:g}",
        infiniband,
        _price(instance),
    )


def _price(instance: InstanceType) -> str:
    if instance.retired:
        return "retired"
    return "-" if instance.price is None else f"{instance.price:.2f}"


def _machine(instance: InstanceType) -> list[tuple[str, str]]:
    is_redundant = instance.network_gbps is None or f"{instance.network_gbps:g} Gigabit" in instance.network
    gbps = "" if is_redundant or instance.fabric == "infiniband" else f", {instance.network_gbps:g} Gbit/s in all"
    part = f", {instance.gpu_slice} of an {instance.gpu_model}" if instance.gpu_slice else ""
    rows = [
        ("target", instance.target),
        *([("retired", instance.retired)] if instance.retired else []),
        *([("retires", f"{instance.retires}, still offered until then")] if instance.retires else []),
        ("GPUs", _each(instance.gpus, instance.gpu, instance.gpu_memory_gib) + part),
        ("vCPUs", f"{instance.vcpus} ({instance.architecture})"),
        ("memory", f"{instance.memory_gib:g} GiB"),
        ("network", instance.network + gbps if instance.network else "not known"),
        ("interconnect", _interconnect(instance)),
    ]
    if instance.quota_vcpus is not None:
        at_once = instance.quota_vcpus // instance.vcpus if instance.vcpus else 0
        rows.append(("quota", f"{instance.quota_vcpus} vCPUs of its family: {at_once} at once"))
    if instance.neuron:
        devices = _each(instance.neuron_devices, instance.neuron, instance.neuron_memory_gib)
        rows.insert(1, ("Neuron", f"{devices}, {instance.neuron_cores} logical cores in all"))
    return rows


def _each(number: int, model: str, memory_gib: float) -> str:
    if not number:
        return "none"
    if not memory_gib:
        return f"{number} x {model} (memory not known)"
    total = f", {number * memory_gib:g} GiB in all" if number > 1 else ""
    return f"{number} x {model} ({memory_gib:g} GiB{' each' if number > 1 else ''}{total})"


def _interconnect(instance: InstanceType) -> str:
    fabric = _FABRIC[instance.fabric]
    if instance.interconnect == "rdma":
        infiniband = instance.fabric == "infiniband"
        several = instance.interfaces > 1
        number = f", {instance.interfaces} {'port' if infiniband else 'interface'}{'s' if several else ''}"
        has_speed = infiniband and instance.network_gbps is not None
        gbps = f", {instance.network_gbps:g} Gbit/s{' in all' if several else ''}" if has_speed else ""
        return f"rdma ({fabric}{number if instance.interfaces else ''}{gbps})"
    return f"ethernet ({fabric} without SR-IOV, which NCCL cannot use)" if fabric else "ethernet"


def _prices(instance: InstanceType) -> list[tuple[str, str]]:
    if instance.price is None:
        rows = [("price", "not known")]
    else:
        rows = [("price", _dollars(instance.price, instance.price_date)), ("", instance.price_source)]
    if instance.machine_price is not None:
        text = _dollars(instance.machine_price, instance.machine_price_date)
        rows += [("machine only", f"{text}; with the service it costs more"), ("", instance.machine_price_source)]
    return rows


def _dollars(price: float, date: str) -> str:
    return f"{price:g} USD an hour" + (f" on {date}" if date else ", date not known")
