"""Where the user's overrides write what a field of the job says too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Path = tuple[str | int, ...]
Keys = tuple[str, ...]
KeysOf = Callable[[Path], list[Keys]]
"""From the rest of a path in the job to the places in the overrides that write it."""


def is_written(written: Any, *keys: str) -> bool:
    """Whether the overrides say something at that way, null among it, which removes what the job says."""
    for key in keys:
        if not isinstance(written, Mapping) or key not in written:
            return False
        written = written[key]
    return True


def keys_at(*places: Keys) -> KeysOf:
    """These places, whatever the rest of the path is."""
    return lambda _: list(places)


def keys_named(*keys: str) -> KeysOf:
    """The place below these keys that has the name of the path's next part."""
    return lambda rest: [(*keys, *map(str, rest[:1]))]
