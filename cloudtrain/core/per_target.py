"""Fields of a job with one value per target, such as `inputs.train.local` and `local_overrides`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, Field, create_model

from cloudtrain.core.targets import target_names

M = TypeVar("M", bound=BaseModel)

OVERRIDES = "_overrides"
"""Suffix of the job fields that are merged into one target's request."""


def per_target(annotation: Any, *, suffix: str = "", **field: Any) -> Callable[[type[M]], type[M]]:
    """Return a decorator that adds one field per installed target to a model. The name of a field is the target's name
    followed by `suffix`, and its type is `annotation`. `field` are arguments of pydantic's `Field`.
    """

    def widen(model: type[M]) -> type[M]:
        fields: dict[str, Any] = {f"{name}{suffix}": (annotation, Field(**field)) for name in target_names()}
        return create_model(
            model.__name__, __base__=model, __module__=model.__module__, __doc__=model.__doc__, **fields
        )

    return widen


def is_widened(model: type[BaseModel]) -> bool:
    """Return whether the class was created by `per_target`. Such a class has no source code."""
    base = model.__bases__[0]
    return (model.__name__, model.__module__) == (base.__name__, base.__module__)


def overrides_of(job: BaseModel, target: str) -> Mapping[str, Any]:
    """Return the job's overrides for one target's request."""
    found: Mapping[str, Any] = getattr(job, target + OVERRIDES, {})
    return found


def value_for(model: BaseModel, target: str) -> str | None:
    """Return the value of the field named after a target, or None if it has no value."""
    value = getattr(model, target, None)
    assert value is None or isinstance(value, str)
    return value
