"""Find the ranks of each instance of a job from the service's job description."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from cloudtrain.catalogue.overlay import Overlay, type_named
from cloudtrain.runtime.sagemaker_launcher import LAUNCH_KEY
from cloudtrain.runtime.sagemaker_launcher.arguments import decode_hyperparameters
from cloudtrain.targets.sagemaker.launch import keys
from cloudtrain.targets.sagemaker.launch.hosts import Host, hosts, hyperparameters_file

Settings = Mapping[str, Any]
"""A job's hyperparameters, decoded."""


def ranks_of(description: Mapping[str, Any], overlay: Overlay) -> dict[int, range]:
    """Map each instance to its ranks. Launchers number the hosts by name, so `algo-10` comes before `algo-2`.

    An instance is left out if its number of ranks is unknown. `overlay`: the user's own instance types.
    """
    given = _settings(description)
    if given is None or "ResourceConfig" not in description:
        return {}
    found: dict[int, range] = {}
    for world in _worlds(given, hosts(description)):
        first = 0
        for host in world:
            count = _count(given, host, overlay)
            if count is None:
                break
            found[host.index] = range(first, first + count)
            first += count
    return found


def _settings(description: Mapping[str, Any]) -> Settings | None:
    """Return the hyperparameters that decide how a script starts.

    Returns None for processing jobs, and for jobs that run an image's own entry point.
    """
    given = decode_hyperparameters(hyperparameters_file(description))
    if not isinstance(given.get(LAUNCH_KEY), dict):
        given.pop(LAUNCH_KEY, None)
    return given if given.keys() & {LAUNCH_KEY, keys.PROGRAM} else None


def _count(given: Settings, host: Host, overlay: Overlay) -> int | None:
    """Return the number of ranks on a host; None if unknown."""
    if launch := given.get(LAUNCH_KEY):
        alone, asked = launch.get("launcher") == "single", launch.get("processes_per_instance")
    else:
        alone, asked = not _asks_for_launcher(given), given.get(keys.PROCESSES)
    if alone:
        return 1
    return _number(asked) if asked else _devices(host.instance_type, overlay)


def _asks_for_launcher(given: Settings) -> bool:
    return any(given.get(key) for key in keys.LAUNCHER_KEYS)


def _worlds(given: Settings, everyone: Iterable[Host]) -> list[list[Host]]:
    """Return the sets of hosts whose ranks are numbered together, each in the order of ranks.

    If the distribution names no instance groups, the toolkit numbers the ranks of each instance group separately, and
    cloudtrain's launcher numbers the ranks of all groups together.
    """
    in_order = list(everyone)
    groups: dict[str, list[Host]] = {host.group: [] for host in sorted(in_order, key=lambda host: host.index)}
    for host in in_order:
        groups[host.group].append(host)
    if launch := given.get(LAUNCH_KEY):
        if launch.get("launcher") == "single":
            return [in_order]
        spanned = launch.get("instance_groups") or groups
        return [[host for name in spanned for host in groups.get(name, ())]]
    if not _asks_for_launcher(given):
        return [in_order]
    spanned = given.get(keys.GROUPS)
    if not isinstance(spanned, list):
        return list(groups.values())
    return [[host for name, members in groups.items() if name in spanned for host in members]]


def _number(value: Any) -> int | None:
    """Return a value as a number; None if it is not a number. Like the toolkit, it accepts numbers in quotes."""
    try:
        return int(value)
    except (TypeError, ValueError):
        return None


def _devices(instance_type: str, overlay: Overlay) -> int | None:
    known = type_named("sagemaker", instance_type, overlay)
    return known.devices if known is not None else None
