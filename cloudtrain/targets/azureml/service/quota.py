"""Check whether a region offers a serverless job's instance type, and whether the quota is large enough.

Azure ML limits vCPUs of each family (`standardNCADSA100v4Family`) and of all families (`TotalDedicatedCores`). For spot
capacity, only `TotalLowPriorityCores` applies: the low-priority vCPUs of all families together.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from cloudtrain.core.plan import Level
from cloudtrain.errors import did_you_mean
from cloudtrain.targets.azureml.rules.online import level_of
from cloudtrain.targets.azureml.service.client import Client
from cloudtrain.targets.azureml.service.versions import COMPUTE

_ALL, _ALL_SPARE = "TotalDedicatedCores", "TotalLowPriorityCores"
_ASK = "ask for more in the studio, under Quota: https://ml.azure.com/quota"


class CapacityFault(NamedTuple):
    """A problem with capacity: the code of the rule, and the finding's texts and path."""

    code: str
    message: str
    hint: str
    path: tuple[str, ...]


_TYPE, _COUNT = ("resources", "instance_type"), ("resources", "instance_count")


def serverless_faults(
    client: Client, size: str, count: int, locations: Sequence[str], *, is_spot: bool
) -> list[CapacityFault]:  # fmt: skip
    """Return the capacity problems of a job that needs `count` machines of a size.

    If the job may run in several regions, the region with the fewest problems counts.

    Raises:
        TargetError: see `provider_errors`.
    """
    found = [list(_faults(client, size, count, location, is_spot)) for location in locations]
    return min(found, key=_badness, default=[])


def _badness(faults: Sequence[CapacityFault]) -> tuple[int, int]:
    """Return a sort key for a region's problems: the number of errors, then the number of all problems.

    Errors count more than warnings, because an error means that the service refuses the job.
    """
    return sum(level_of(fault.code) is Level.ERROR for fault in faults), len(faults)


def _faults(client: Client, size: str, count: int, location: str, is_spot: bool) -> Iterator[CapacityFault]:
    sizes = _list_entries(client, location, "vmSizes")
    offered = next((item for item in sizes if item["name"].lower() == size.lower()), None)
    if offered is None:
        hint = did_you_mean(size, [item["name"] for item in sizes if item.get("gpus")]) or "name another region"
        yield CapacityFault("AZ909", f"Azure ML offers no {size} in {location}", hint, _TYPE)
        return
    if is_spot and offered.get("lowPriorityCapable") is False:
        message = f"{size} is not sold as spot capacity in {location}"
        yield CapacityFault("AZ909", message, "remove `spot`, or name another type", _TYPE)
        return
    needed, usages = int(offered["vCPUs"]) * count, _list_entries(client, location, "usages")
    names = [_ALL_SPARE] if is_spot else [str(offered["family"]), _ALL]
    for name in names:
        entries = [usage for usage in usages if _is_of(usage, name)]
        if not entries and name != _ALL:
            message = f"{location} lists no quota `{name}`, so it is not known whether you may use {needed} vCPUs"
            yield CapacityFault("AZ902", message, "look in the studio, under Quota: https://ml.azure.com/quota", _COUNT)
        for usage in entries:
            yield from _shortage(usage, needed, f"`{name}` in {location}")


def _shortage(usage: Mapping[str, Any], needed: int, where: str) -> Iterator[CapacityFault]:
    """Report a quota that is too small, or used up by other jobs. A negative quota means unlimited."""
    limit, used = int(usage["limit"]), int(usage.get("currentValue") or 0)
    if 0 <= limit < needed:
        yield CapacityFault("AZ910", f"the quota of {where} is {limit} vCPUs, and the job needs {needed}", _ASK, _COUNT)
    elif 0 <= limit < used + needed:
        message = f"{used} of the {limit} vCPUs of {where} are in use, and the job needs {needed}"
        yield CapacityFault("AZ911", message, f"it will wait in the queue; or {_ASK}", _COUNT)


def _is_of(usage: Mapping[str, Any], name: str) -> bool:
    """Return whether `usage`, an entry of the service's list, is the quota `name`. Instead of the name, some entries
    contain a title such as `Standard NDv2 Family ... vCPUs`.
    """
    names = usage.get("name") or {}
    if str(names.get("value", "")).lower() == name.lower():
        return True
    words = _letters(str(names.get("value", "")))
    return "vcpus" in words and "lowpriority" not in words and words.startswith(_letters(name))


def _letters(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def _list_entries(client: Client, location: str, what: str) -> list[dict[str, Any]]:
    subscription = client.place.subscription_id
    path = f"/subscriptions/{subscription}/providers/Microsoft.MachineLearningServices/locations/{location}/{what}"
    return [item for page in client.pages(path, api_version=COMPUTE) for item in page]
