"""The instances of a SageMaker job, from its `SM_*` variables.

`SM_HOSTS` lists the instances by name, `algo-10` before `algo-2`; ranks follow this order. With instance groups, the
job's processes run in the groups of `SM_DISTRIBUTION_INSTANCE_GROUPS`. The first host of the first of these groups is
the master, even if other hosts precede it in `SM_HOSTS`. If the container sets `SM_MASTER_ADDR` and `SM_MASTER_PORT`,
as with SageMaker's SDK v3, these are used instead.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

Variables = Mapping[str, str]

TOOLKIT_PORT = 7777


def first_host(variables: Variables) -> str | None:
    """Return the host of rank 0; None outside SageMaker."""
    if variables.get("SM_MASTER_ADDR"):
        return variables["SM_MASTER_ADDR"]
    groups = _json(variables, "SM_INSTANCE_GROUPS_DICT", {})
    spanned = _json(variables, "SM_DISTRIBUTION_INSTANCE_GROUPS", [])
    hosts = [host for name in spanned if name in groups for host in groups[name].get("hosts", ())]
    hosts = hosts or _json(variables, "SM_HOSTS", [])
    return str(hosts[0]) if hosts else None


def port(variables: Variables) -> int:
    """Return the port of rank 0: `SM_MASTER_PORT`, or if it is not set, the toolkit's port, 7777."""
    text = variables.get("SM_MASTER_PORT", "")
    return int(text) if text.isdecimal() else TOOLKIT_PORT


def place(variables: Variables) -> tuple[int, int]:
    """Return this instance's number (from 0) and the number of instances; (0, 1) outside SageMaker."""
    hosts, own = _json(variables, "SM_HOSTS", []), variables.get("SM_CURRENT_HOST")
    return (hosts.index(own), len(hosts)) if own in hosts else (0, 1)


def _json(variables: Variables, name: str, default: Any) -> Any:
    """Return the value of a JSON variable if it has the same type as `default`, else `default`."""
    try:
        value = json.loads(variables.get(name) or "null")
    except ValueError:
        return default
    return value if isinstance(value, type(default)) else default
