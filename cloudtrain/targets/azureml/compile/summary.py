"""The first lines of a plan, for the user: machines, processes, environment, checkpoints and highest cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cloudtrain.catalogue.cost import hourly, over
from cloudtrain.catalogue.machines import MachineGroup
from cloudtrain.core.processes import Processes
from cloudtrain.core.units import format_duration
from cloudtrain.targets.azureml.compile.durations import duration_seconds
from cloudtrain.targets.azureml.compile.machines import is_cluster
from cloudtrain.targets.azureml.compile.request import Parts
from cloudtrain.targets.azureml.launch.body import Body


def summary(parts: Parts, request: Mapping[str, Any], processes: Processes) -> list[tuple[str, str]]:
    """Return the lines as pairs of label and text, in reading order."""
    job, account, body = parts.job, parts.account, request["properties"]
    seconds = max_runtime(body)
    pairs = [
        ("target", f"azureml (workspace {account.workspace} in {account.resource_group})"),
        ("compute", _compute(body)),
        ("instances", _instances(parts, instance_count(body))),
        ("processes", _processes(processes, instance_count(body))),
        ("distribution", job.distribution.type),
        ("environment", _environment(parts, body)),
        ("script", job.entry_point or job.command or ""),
        ("checkpoint", Body(request).outputs.get("checkpoint", {}).get("uri", "")),
        ("max runtime", format_duration(seconds) if seconds else "none: it runs until it ends"),
        ("tier", _tier(body)),
        ("cost", _cost(parts.machines, body)),
    ]
    return [(label, text) for label, text in pairs if text]


def instance_count(body: Mapping[str, Any]) -> int:
    """Return the number of instances that a body asks for. Default: one."""
    return Body({"properties": body}).instances


def max_runtime(body: Mapping[str, Any]) -> int | None:
    """Return the seconds after which the service ends the job; None if the body sets no limit."""
    return duration_seconds(str((body.get("limits") or {}).get("timeout", "")))


def most_it_can_cost(machines: MachineGroup, body: Mapping[str, Any]) -> float | None:
    """Return the cost of all instances for the whole time limit in US dollars; None if the price or the limit is
    unknown.
    """
    seconds, rate = max_runtime(body), _hourly(machines, body)
    return None if seconds is None or rate is None else over(rate, seconds)


def _hourly(machines: MachineGroup, body: Mapping[str, Any]) -> float | None:
    return hourly([(machines.known, instance_count(body))])


def _tier(body: Mapping[str, Any]) -> str:
    queue = body.get("queueSettings")
    return str(queue.get("jobTier", "")) if isinstance(queue, Mapping) else ""


def _compute(body: Mapping[str, Any]) -> str:
    compute = str(body.get("computeId", "serverless"))
    return compute.rpartition("/")[2]


def _instances(parts: Parts, count: int) -> str:
    known = parts.machines.known
    if known is None:
        left_open = "the type of the cluster" if is_cluster(parts.target.compute) else "any type"
        return f"{count} x {parts.machines.instance_type or left_open}"
    network = ", InfiniBand" if known.interconnect == "rdma" and count > 1 else ""
    return f"{count} x {known.name} ({known.hardware}{network})"


def _processes(processes: Processes, instances: int) -> str:
    if not processes:
        return ""
    hosts = processes.started
    return f"{len(processes)} on {len(hosts)} of {instances} instances" if instances > 1 else str(len(processes))


def _environment(parts: Parts, body: Mapping[str, Any]) -> str:
    upload = parts.environment.upload
    if upload is None or body.get("environmentId") != parts.environment.id:
        return str(body.get("environmentId", ""))
    given = parts.job.environment
    *_, asset, _, version = upload.destination.split("/")
    registered = f", registered as {asset}:{version}" if given.asset_name else ""
    if upload.folder is not None:
        return f"built from {upload.folder}/{given.dockerfile or 'Dockerfile'}{registered}"
    image = given.image.of("azureml") if given.image else None
    conda = f" with {given.conda_file}" if given.conda_file else ""
    return f"made of {image}{conda}{registered}"


def _cost(machines: MachineGroup, body: Mapping[str, Any]) -> str:
    most, rate = most_it_can_cost(machines, body), _hourly(machines, body)
    spot = ", less on spot capacity" if _tier(body) == "Spot" else ""
    if most is not None:
        return f"at most ${most:,.2f} at list prices{spot}"
    if rate is not None:
        return f"${rate:,.2f} an hour at list prices{spot}; no limit is set"
    return "unknown: the catalogue has no price of this type" if machines.known is not None else ""
