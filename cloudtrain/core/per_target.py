"""Fields of a job that have a value for each target: `inputs.train.NAME`, `instance_type.NAME`, `NAME_overrides`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, Field, create_model

from cloudtrain.core.targets import target_names

M = TypeVar("M", bound=BaseModel)

OVERRIDES = "_overrides"
"""With this ends the field of a job that is merged into one target's request."""


def per_target(annotation: Any, *, suffix: str = "", **field: Any) -> Callable[[type[M]], type[M]]:
    """Give a model a field for every installed target, named after it. `field` are arguments of pydantic's `Field`.

    The fields are pydantic's own, so that unknown names, types, the JSON Schema and overrides are theirs too.
    """

    def widen(model: type[M]) -> type[M]:
        fields: dict[str, Any] = {f"{name}{suffix}": (annotation, Field(**field)) for name in target_names()}
        return create_model(
            model.__name__, __base__=model, __module__=model.__module__, __doc__=model.__doc__, **fields
        )

    return widen


def is_widened(model: type[BaseModel]) -> bool:
    """Whether the class is what `per_target` made of one: it has no source of its own."""
    base = model.__bases__[0]
    return (model.__name__, model.__module__) == (base.__name__, base.__module__)


def overrides_of(job: BaseModel, target: str) -> Mapping[str, Any]:
    """What a job has the user merge into one target's request."""
    found: Mapping[str, Any] = getattr(job, target + OVERRIDES, {})
    return found


def value_for(model: BaseModel, target: str) -> str | None:
    """The value of the field that is named after a target; None where it has none."""
    value = getattr(model, target, None)
    assert value is None or isinstance(value, str)
    return value
