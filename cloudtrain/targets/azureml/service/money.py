"""The billed machines of a job, and their cost per hour at list prices or at the user's own prices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from cloudtrain.catalogue.cost import hourly
from cloudtrain.catalogue.overlay import Overlay, type_named

ClusterOf = Callable[[str], Mapping[str, Any] | None]
"""Returns the resource manager's description of a compute by its id; None if there is none."""

_SPARE = ("spot", "lowpriority")


class Paid(NamedTuple):
    """The machines of a job. `is_spare` marks spot capacity, for which no list price exists."""

    instance_type: str
    instances: int
    is_spare: bool = False

    def hourly_price(self, overlay: Overlay) -> float | None:
        """Return the price of all instances in US dollars per hour; None if unknown."""
        known = None if self.is_spare else type_named("azureml", self.instance_type, overlay)
        return hourly([(known, self.instances)])


def paid_machines(properties: Mapping[str, Any], details: Mapping[str, Any], cluster_of: ClusterOf) -> Paid | None:
    """Return the machines of a job, from the run history, the job's body or the job's cluster; None if unknown.

    Args:
        properties: the job's body.
        details: the run's details from the run history, which may lack the machines.
        cluster_of: returns a cluster's description; called only if the other sources lack the machines.
    """
    resources = properties.get("resources") or {}
    tier = (properties.get("queueSettings") or {}).get("jobTier")
    seen = details.get("compute") or {}
    count = int(seen.get("instanceCount") or resources.get("instanceCount") or 1)
    instance_type, priority = seen.get("vmSize"), seen.get("priority") or tier
    compute = properties.get("computeId") or ""
    if not instance_type and not _is_cluster(compute):
        instance_type = resources.get("instanceType")
    if not instance_type and _is_cluster(compute):
        made = ((cluster_of(compute) or {}).get("properties") or {}).get("properties") or {}
        instance_type, priority = made.get("vmSize"), made.get("vmPriority")
    return Paid(str(instance_type), count, _is_spare(priority)) if instance_type else None


def _is_cluster(compute: str) -> bool:
    return "/computes/" in compute and not compute.endswith("/serverless")


def _is_spare(word: Any) -> bool:
    return str(word or "").replace("_", "").lower() in _SPARE
