"""Positions in the user's overrides that set the same value as a field of the job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Path = tuple[str | int, ...]
Keys = tuple[str, ...]
KeysOf = Callable[[Path], list[Keys]]
"""Maps the rest of a path in the job to the positions in the overrides that write it."""


def is_written(written: Any, *keys: str) -> bool:
    """Return whether the overrides set the value at nested `keys`. Null also sets it, by removing the job's value."""
    for key in keys:
        if not isinstance(written, Mapping) or key not in written:
            return False
        written = written[key]
    return True


def keys_at(*places: Keys) -> KeysOf:
    """Return a function that maps every path inside a field of the job to the positions `places` in the overrides."""
    return lambda _: list(places)


def keys_named(*keys: str) -> KeysOf:
    """Return a function that maps a path inside a field of the job to one position in the overrides: `keys`, then the
    first part of that path. `keys_named("Environment")` maps `("A",)` to `("Environment", "A")`.
    """
    return lambda rest: [(*keys, *map(str, rest[:1]))]
