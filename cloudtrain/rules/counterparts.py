"""Equivalent instance types on other targets, for jobs that name an instance type of the wrong target."""

from __future__ import annotations

from typing import Literal

from cloudtrain.catalogue.choose import choose
from cloudtrain.catalogue.instances import InstanceType, instance_named, tables
from cloudtrain.core.targets import find_target
from cloudtrain.errors import JobError


def counterpart(name: str, target: str) -> str | None:
    """Return a hint for a job on `target` whose instance type `name` belongs to another cloud. If `target` has a type
    with the same GPUs, the hint names it. None if no other cloud has a type called `name`.
    """
    for other, table in tables().items():
        known = instance_named(other, name) or instance_named(other, table.prefix + name)
        title = find_target(other).title
        if other == target or known is None:
            continue
        lists = f"`cloudtrain instances --target {target}` lists those of {find_target(target).title}"
        same = _same_gpus(known, target)
        if same is None:
            return f"`{name}` is {title}'s name; {lists}"
        return f"write `{same.name}`, which has {same.hardware} too; `{name}` is {title}'s name"
    return None


def _same_gpus(known: InstanceType, target: str) -> InstanceType | None:
    if not known.gpu:
        return None
    try:
        fast: Literal["rdma"] | None = "rdma" if known.interconnect == "rdma" else None
        return choose(target, gpu=known.gpu, gpus_per_instance=known.gpus, interconnect=fast)
    except JobError:
        return None
