"""Reading a request so that no field is passed over in silence."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any


class Fields:
    """The fields of a request that nobody has taken yet."""

    def __init__(self, request: dict[str, Any]) -> None:
        self._left = deepcopy(request)

    def take(self, path: str, default: Any = None) -> Any:
        """The value at `path` (`ResourceConfig.InstanceType`), which counts as used from here on."""
        *parents, name = path.split(".")
        place: Any = self._left
        for parent in parents:
            place = place.get(parent, {})
        return place.pop(name, default)

    def take_if(self, path: str, expected: Any) -> bool:
        """Whether the field has this value. Any other stays: an SDK that has no word for it must say so."""
        value = self.take(path)
        if value is not None and value != expected:
            self._put_back(path, value)
        return bool(value == expected)

    def _put_back(self, path: str, value: Any) -> None:
        *parents, name = path.split(".")
        place = self._left
        for parent in parents:
            place = place[parent]
        place[name] = value

    def remaining_paths(self) -> list[str]:
        """Dotted paths of what has not been taken."""
        return sorted(_leaves(self._left))


def _leaves(value: Any, path: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else key)
    else:
        yield path
