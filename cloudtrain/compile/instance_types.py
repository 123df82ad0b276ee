"""The catalogue's rows for a job, with the user's own corrections."""

from __future__ import annotations

from typing import Any

from cloudtrain.catalogue.instances import InstanceType, instance_named, instance_types
from cloudtrain.resources import Resources


def known_type(target: str, name: str, overlay: Any) -> InstanceType | None:
    """The catalogue's row of a type, with the user's own corrections; None for one that it does not have."""
    if not overlay:
        return instance_named(target, name)
    from cloudtrain.catalogue.overlay import type_named

    return type_named(target, name, overlay)


def type_by_gpu(target: str, resources: Resources, overlay: Any) -> str:
    """The name of the type that a job describes by its `gpu`.

    Raises:
        JobError: no type fits; the hint names what there is.
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
