"""Choose the instance type of a job that names only a GPU, from the catalogue with the user's own corrections."""

from __future__ import annotations

from typing import Any

from cloudtrain.catalogue.instances import instance_types
from cloudtrain.core.resources import Resources


def type_by_gpu(target: str, resources: Resources, overlay: Any) -> str:
    """Return the name of the instance type for `resources.gpu`. `overlay`: the user's corrections of the catalogue.

    Raises:
        JobError: no instance type fits; the hint names the available types.
    """
    from cloudtrain.catalogue.choose import choose
    from cloudtrain.catalogue.overlay import apply_overlay

    assert resources.gpu is not None
    return choose(
        target,
        gpu=resources.gpu,
        gpus_per_instance=resources.gpus_per_instance,
        interconnect=resources.interconnect,
        types=apply_overlay(instance_types(target), overlay) if overlay else None,
    ).name
