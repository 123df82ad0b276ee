"""Instance types as documents: a table of types for 80 columns, and a page with all facts about one type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from cloudtrain.job.model import format_duration, value_text
from cloudtrain.job.sweep import Objective
from cloudtrain.machines.table import InstanceType, NodeKind, table_of
from cloudtrain.plans.document import Block, Document, Heading, Pairs, Table
from cloudtrain.plans.states import RunState, RunStatus, Trial, best_of
from cloudtrain.plans.status import run_document, state_cell

if TYPE_CHECKING:
    from cloudtrain.lifecycle.sweep_run import SweepCost


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


# A sweep and its trials as documents.

_SHOWN = 5
"""Number of the best trials that a status shows."""


def sweep_document(
    name: str,
    ref: str,
    status: RunStatus,
    trials: Sequence[Trial],
    objective: Objective | None,
    more: Mapping[str, str],
    cost: SweepCost | None = None,
) -> Document:
    """Return a page about a sweep: its progress, its cost, and its best trials. Without an objective, the page shows
    the newest trials instead of the best. `more` adds label-value pairs."""
    ended_count = sum(trial.state.is_final for trial in trials)
    total = int(status.metrics.get("trials", len(trials)))
    going_on = len(trials) - ended_count
    words = f"{ended_count} of {total} ended" + (f", {going_on} running" if going_on else "")
    failures = sum(trial.state in (RunState.FAILED, RunState.LOST) for trial in trials)
    words += f", {failures} failed" if failures else ""
    rows = {"trials": words}
    best = best_of(trials, objective)
    if best is not None and objective is not None:
        rows["best"] = f"trial {best.number}: {objective.metric}={best.value:.4g}"
    left = _time_left(trials, total, status)
    rows |= {"left": left} if left else {}
    rows |= {"cost": _cost_text(cost, status)} if cost is not None else {}
    blocks: list[Block] = list(run_document(name, ref, replace(status, metrics={}), {**more, **rows}).blocks)
    shown_trials = ranked(trials, objective)[:_SHOWN] if objective is not None else list(trials)[-_SHOWN:]
    if shown_trials:
        title = "Best trials" if objective is not None else "Newest trials"
        blocks += [Heading(title), trials_table(shown_trials, objective, best=best)]
    return Document(blocks)


def ranked(trials: Sequence[Trial], objective: Objective | None) -> list[Trial]:
    """Return the trials that have a value of the objective, the best first. Without an objective, return all trials in
    the given order."""
    if objective is None:
        return list(trials)
    with_value = [trial for trial in trials if trial.value is not None]
    sign = -1.0 if objective.goal == "maximize" else 1.0
    return sorted(with_value, key=lambda trial: (not trial.counts, sign * (trial.value or 0.0)))


def trials_table(trials: Sequence[Trial], objective: Objective | None, *, best: Trial | None = None) -> Table:
    """Return a table with one row per trial. A star marks the best trial."""
    best = best or best_of(trials, objective)
    names = list(dict.fromkeys(name for trial in trials for name in trial.values))
    value = [objective.metric.upper()] if objective is not None else []
    reasons = any(trial.reason for trial in trials)
    headers = ("TRIAL", "STATE", *value, *(name.upper() for name in names), "TOOK", *(["REASON"] if reasons else []))
    rows = [
        (
            f"{trial.number}{'*' if best is not None and trial.number == best.number else ''}",
            "stopped early" if trial.stopped_early else state_cell(trial.state),
            *(["" if trial.value is None else f"{trial.value:.4g}"] if value else []),
            *(value_text(trial.values.get(name)) for name in names),
            _took(trial),
            *([trial.reason or ""] if reasons else []),
        )
        for trial in trials
    ]
    return Table(headers, rows)


def _time_left(trials: Sequence[Trial], total: int, status: RunStatus) -> str:
    """Return the estimated time of the remaining trials, such as `about 5m`; empty if it cannot be estimated. The
    estimate assumes that trials continue to end at the sweep's average rate. If the sweep continues an earlier one, the
    rate ignores the trials of the earlier sweep."""
    left, start_time = total - sum(trial.state.is_final for trial in trials), status.started
    if left <= 0 or status.state.is_final or start_time is None:
        return ""
    ends = [trial.ended for trial in trials if trial.state.is_final and (trial.ended or 0.0) > start_time]
    pace = (max(end or 0.0 for end in ends) - start_time) / len(ends) if ends else None
    return "" if pace is None else f"about {format_duration(max(1, int(pace * left)))}"


def _cost_text(cost: SweepCost, status: RunStatus) -> str:
    """Return a text such as `$1.20 so far, up to $3.40 more, at list prices`."""
    words = [f"${cost.spent:,.2f}" + ("" if status.state.is_final and not cost.left else " so far")]
    words += ["no limit for the rest"] if cost.left is None else []
    words += [f"up to ${cost.left:,.2f} more"] if cost.left else []
    return ", ".join([*words, "at list prices"] if len(words) > 1 else [f"{words[0]} at list prices"])


def _took(trial: Trial) -> str:
    if trial.started is None or trial.ended is None:
        return ""
    return format_duration(max(0.0, trial.ended - trial.started))
