"""Merging of the user's overrides into a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def merged(request: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return `request` with `overrides` applied: mappings are merged key by key, null removes a key, and any other
    value replaces the old value. Neither argument is changed.
    """
    result = dict(request)
    for key, value in overrides.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping):
            below = result.get(key)
            result[key] = merged(below if isinstance(below, Mapping) else {}, value)
        else:
            result[key] = value
    return result
