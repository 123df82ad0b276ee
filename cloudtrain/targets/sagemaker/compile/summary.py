"""The lines at the top of a printed plan: machines, processes, data locations and maximum cost."""

from __future__ import annotations

from typing import Any

from cloudtrain.catalogue.machines import MachineGroup, Machines
from cloudtrain.core.distribution import SMP, Distribution
from cloudtrain.core.processes import Processes
from cloudtrain.core.units import format_duration
from cloudtrain.targets.sagemaker.compile.request import DEFAULT_MAX_RUNTIME, Parts

_MODES = {
    "toolkit": "the image's training toolkit",
    "entrypoint": "cloudtrain's own launcher",
    "image": "the image's own entry point",
}


def summary(parts: Parts, machines: Machines, request: dict[str, Any], processes: Processes) -> list[tuple[str, str]]:
    """Return pairs of label and text, in reading order."""
    job, account = parts.job, parts.account
    pairs = [
        ("target", f"sagemaker ({account.region})"),
        ("instances", instances(machines)),
        ("processes", _processes(machines, processes)),
        ("distribution", _distribution(job.distribution)),
        ("launch", f"{_MODES[parts.launch.mode]}: {parts.launch.reason}"),
        ("image", request["AlgorithmSpecification"].get("TrainingImage", "")),
        ("script", job.entry_point or job.command or ""),
        *_data(request),
        ("max runtime", format_duration(max_runtime(request))),
        ("spot", _spot(request)),
        ("cost", cost(machines, request)),
    ]
    return [(label, text) for label, text in pairs if text]


def max_runtime(request: dict[str, Any]) -> int:
    """Return the seconds after which the service ends the job."""
    limit: int = request.get("StoppingCondition", {}).get("MaxRuntimeInSeconds", DEFAULT_MAX_RUNTIME)
    return limit


def instances(machines: Machines, *, together: bool = True) -> str:
    """Return the instances, a line for each group or preferred type.

    `together`: whether the instances communicate with each other. EFA is named only if they do.
    """
    between = "\nor " if machines.kind == "preferences" else "\n"
    return between.join(_instances(group, machines, together) for group in machines.groups)


def cost(machines: Machines, request: dict[str, Any]) -> str:
    """Return the maximum cost: all instances at list prices for the whole `max_runtime`."""
    price = machines.price
    if price is None or not price.exact:
        return "unknown: the catalogue has no price of this type"
    spot = ", less on spot capacity" if request.get("EnableManagedSpotTraining") else ""
    return f"at most ${price.over(max_runtime(request)):,.2f} at list prices{spot}"


def _instances(group: MachineGroup, machines: Machines, together: bool) -> str:
    known = group.known
    text = f"{group.count} x {group.instance_type}"
    if known is not None:
        efa = ", EFA" if together and known.interconnect == "rdma" and group.count > 1 else ""
        text += f" ({known.hardware}{efa})"
    return f"{group.name}: {text}" if machines.kind == "groups" else text


def _distribution(distribution: Distribution) -> str:
    if not isinstance(distribution, SMP):
        return distribution.type
    parameters = ", ".join(f"{name} {value}" for name, value in distribution.parameters.items())
    return f"smp version {distribution.version}" + (f": {parameters}" if parameters else "")


def _processes(machines: Machines, processes: Processes) -> str:
    ranks = processes.ranks
    if not ranks:
        return ""
    return (
        f"{ranks.total()} on {len(ranks)} of {machines.count} instances" if machines.count > 1 else str(ranks.total())
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
