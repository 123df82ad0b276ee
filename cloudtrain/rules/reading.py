"""Looking into a finished request. With overrides it may hold anything: what has the wrong type counts as not there.
Other rules say what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def value_at(value: Any, *keys: str) -> Any:
    """What lies at that way into nested mappings; None where it ends early."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def mapping_at(value: Any, *keys: str) -> Mapping[str, Any]:
    """The mapping at that way; an empty one where there is none."""
    found = value_at(value, *keys)
    return found if isinstance(found, Mapping) else {}


def text_at(value: Any, *keys: str) -> str:
    """The text at that way; an empty one where there is none."""
    found = value_at(value, *keys)
    return found if isinstance(found, str) else ""


def rows_at(value: Any, *keys: str) -> list[Mapping[str, Any]]:
    """The mappings in the list at that way; none where there is no list."""
    found = value_at(value, *keys)
    return [row for row in found if isinstance(row, Mapping)] if isinstance(found, list | tuple) else []


def positive_count(value: Any) -> int | None:
    """A whole number from 1 on; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
