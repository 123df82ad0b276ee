"""What the variables of a host and its plan share: the instance groups, the families with fast
networks, and values as texts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .machine import Config

HOMOGENEOUS = "homogeneousCluster"
"""SageMaker's name for the only group of a cluster whose instances all have one type."""


RDMA_FAMILIES = frozenset(
    {
        "p4d",
        "p4de",
        "p5",
        "p5e",
        "p5en",
        "p6-b200",
        "p6-b300",
        "p6e-gb200",
        "trn1",
        "trn1n",
        "trn2",
    }
)
"""Instance families whose EFA reads and writes device memory. sagemaker-training 5.1.4 lacks p5en,
p6-b*, trn1n and trn2."""


def instance_groups(resource: Config) -> dict[str, list[str]]:
    """Return a map from each instance group to its hosts. If there are no groups, as in SageMaker's
    local mode, all hosts form one group."""
    hosts_by_group = {}
    for group in resource.get("instance_groups") or []:
        hosts_by_group[group["instance_group_name"]] = list(group["hosts"])
    return hosts_by_group or {HOMOGENEOUS: list(resource["hosts"])}


def text_of(value: Any) -> str:
    """Return a value as text: an empty text for None, a string unchanged, other values as compact
    JSON with sorted keys (the toolkit's `to_env_vars`)."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
