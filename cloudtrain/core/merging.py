"""What the user adds to a request by hand, merged into what the job says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def merged(request: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """`request` with `overrides` on top: mappings are merged key by key, everything else is replaced, and a null
    removes its key. Neither argument is changed."""
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
