"""Functions that read values from a finished request. Overrides can put anything into a request, so values of a wrong
type count as missing; other rules report them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def value_at(value: Any, *keys: str) -> Any:
    """Return the value at `keys` in nested mappings; None if a key is missing."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def mapping_at(value: Any, *keys: str) -> Mapping[str, Any]:
    """Return the mapping at `keys`; an empty mapping if the value is missing."""
    found = value_at(value, *keys)
    return found if isinstance(found, Mapping) else {}


def text_at(value: Any, *keys: str) -> str:
    """Return the text at `keys`; an empty text if the value is missing."""
    found = value_at(value, *keys)
    return found if isinstance(found, str) else ""


def rows_at(value: Any, *keys: str) -> list[Mapping[str, Any]]:
    """Return the mappings in the list at `keys`; an empty list if the value is missing."""
    found = value_at(value, *keys)
    return [row for row in found if isinstance(row, Mapping)] if isinstance(found, list | tuple) else []


def positive_count(value: Any) -> int | None:
    """Return `value` if it is an integer of at least 1, otherwise None."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
