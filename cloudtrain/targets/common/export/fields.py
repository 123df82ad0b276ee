"""Read the fields of a request, and find fields that an export did not use."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any


class Fields:
    """The fields of a request that have not been used yet."""

    def __init__(self, request: dict[str, Any]) -> None:
        self._left = deepcopy(request)

    def take(self, path: str, default: Any = None) -> Any:
        """Return the value at `path`, such as `ResourceConfig.InstanceType`, and mark the field as used. Return
        `default` if there is no unused field at `path`."""
        *parents, name = path.split(".")
        place: Any = self._left
        for parent in parents:
            place = place.get(parent, {})
        return place.pop(name, default)

    def take_if(self, path: str, expected: Any) -> bool:
        """Mark the field as used if it has the value `expected`. Return whether it has this value. A field with another
        value stays unused, so that it is reported if the SDK has no equivalent."""
        value = self.take(path)
        if value is not None and value != expected:
            self.put_back(path, value)
        return bool(value == expected)

    def put_back(self, path: str, value: Any) -> None:
        """Give the field this value, and mark it as unused."""
        *parents, name = path.split(".")
        place = self._left
        for parent in parents:
            place = place[parent]
        place[name] = value

    def remaining_paths(self) -> list[str]:
        """Return the dotted paths of the unused fields."""
        return sorted(_leaves(self._left))


def _leaves(value: Any, path: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else key)
    else:
        yield path
