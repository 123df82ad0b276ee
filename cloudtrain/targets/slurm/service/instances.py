"""The nodes of a cluster, as `sinfo` reports them now."""

from __future__ import annotations

from collections.abc import Iterable

from cloudtrain.catalogue.nodes import NodeKind
from cloudtrain.targets.slurm.service.online import parse_gres
from cloudtrain.targets.slurm.service.runner import Runner
from cloudtrain.targets.slurm.service.scripts import NODES

_IDLE = ("idle", "idle~", "idle#")
"""States of idle nodes. `~` and `#` mark nodes of a cloud that are off or starting."""


def list_nodes(runner: Runner) -> list[NodeKind]:
    """Return the types of nodes in the cluster, sorted by number of GPUs, highest first."""
    found = parse_nodes(runner.run(NODES).decode("utf-8", "replace").splitlines())
    return sorted(found, key=lambda kind: (-kind.gpus, -kind.cpus, -kind.memory))


def parse_nodes(lines: Iterable[str]) -> list[NodeKind]:
    """Parse the lines of `sinfo -N -o '%N|%R|%T|%c|%m|%G|%f'`: one for each node and partition."""
    kinds: dict[tuple[object, ...], NodeKind] = {}
    seen: set[str] = set()
    for line in sorted(lines):  # sinfo asks for all partitions at the same time, so its lines have no order
        name, partition, state, cpus, memory, gres, features = line.split("|", 6)
        gpus = [(kind, count) for what, kind, count in parse_gres(gres) if what == "gpu"]
        named = () if features == "(null)" else tuple(features.split(","))
        key = (cpus, memory, gres, named)
        kind = kinds.setdefault(
            key,
            NodeKind(
                int(cpus.rstrip("+")),
                int(memory.rstrip("+")) * 2**20,
                sum(count for _, count in gpus),
                ",".join(kind for kind, _ in gpus if kind),
                named,
            ),
        )
        if partition not in kind.partitions:
            kind.partitions.append(partition)
        if name not in seen:
            seen.add(name)
            kind.nodes += 1
            kind.idle += state.rstrip("*") in _IDLE
    return list(kinds.values())
