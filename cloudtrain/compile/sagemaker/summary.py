"""What a person reads first: the machines, what starts on them, where things are, and what it can cost."""

from __future__ import annotations

from typing import Any

from cloudtrain.compile.sagemaker.machines import Group
from cloudtrain.compile.sagemaker.request import Parts
from cloudtrain.plans import Process
from cloudtrain.units import format_duration

_MODES = {
    "toolkit": "the image's training toolkit",
    "entrypoint": "cloudtrain's own launcher",
    "image": "the image's own entry point",
}


def summary(parts: Parts, request: dict[str, Any], processes: tuple[Process, ...]) -> list[tuple[str, str]]:
    """Label and text pairs, in reading order."""
    job, account = parts.job, parts.account
    pairs = [
        ("target", f"sagemaker ({account.region})"),
        ("instances", "\n".join(_instances(group, parts) for group in parts.machines.groups)),
        ("processes", _processes(parts, processes)),
        ("distribution", job.distribution.type),
        ("launch", f"{_MODES[parts.launch.mode]}: {parts.launch.reason}"),
        ("image", request["AlgorithmSpecification"].get("TrainingImage", "")),
        ("script", job.entry_point or job.command or ""),
        *_data(request),
        ("max runtime", format_duration(request["StoppingCondition"]["MaxRuntimeInSeconds"])),
        ("spot", _spot(request)),
        ("cost", _cost(parts, request)),
    ]
    return [(label, text) for label, text in pairs if text]


def most_it_can_cost(parts: Parts, request: dict[str, Any]) -> float | None:
    """US dollars for all instances over the whole `max_runtime`, at list prices; None where a price is unknown."""
    hours = request["StoppingCondition"]["MaxRuntimeInSeconds"] / 3600
    prices = [(group.known.price if group.known else None, group.count) for group in parts.machines.groups]
    if any(price is None for price, _ in prices):
        return None
    return sum(price * count for price, count in prices if price is not None) * hours


def _instances(group: Group, parts: Parts) -> str:
    known = group.known
    text = f"{group.count} x {group.instance_type}"
    if known is not None:
        gpus = f"{known.gpus} x {known.gpu}" if known.gpus else f"{known.vcpus} vCPUs"
        if known.neuron_cores:
            gpus = f"{known.neuron_cores} Neuron cores"
        efa = ", EFA" if known.interconnect == "rdma" and group.count > 1 else ""
        text += f" ({gpus}{efa})"
    return f"{group.name}: {text}" if parts.machines.heterogeneous else text


def _processes(parts: Parts, processes: tuple[Process, ...]) -> str:
    ranks = [process for process in processes if process.rank is not None]
    if not ranks:
        return ""
    return (
        f"{len(ranks)} on {len({process.instance for process in ranks})} of {parts.machines.count} instances"
        if (parts.machines.count > 1)
        else str(len(ranks))
    )


def _data(request: dict[str, Any]) -> list[tuple[str, str]]:
    checkpoint = request.get("CheckpointConfig", {})
    return [
        ("output", request["OutputDataConfig"]["S3OutputPath"]),
        ("checkpoint", checkpoint.get("S3Uri", "")),
    ]


def _spot(request: dict[str, Any]) -> str:
    if not request.get("EnableManagedSpotTraining"):
        return ""
    wait = request["StoppingCondition"].get("MaxWaitTimeInSeconds")
    return f"waits at most {format_duration(wait)}, the run included" if wait else "yes"


def _cost(parts: Parts, request: dict[str, Any]) -> str:
    most = most_it_can_cost(parts, request)
    if most is None:
        return "unknown: the catalogue has no price of this type"
    spot = ", less on spot capacity" if parts.job.spot else ""
    return f"at most ${most:,.2f} at list prices{spot}"
