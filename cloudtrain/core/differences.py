"""Differences between two JSON values, and the overrides that turn one value into the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Path = tuple["str | int", ...]

ABSENT = "(absent)"
"""Stands for a field that only one of the two values has."""


def paths_that_differ(theirs: Any, ours: Any, path: Path = ()) -> Iterator[tuple[Path, Any, Any]]:
    """Yield each path at which two JSON values differ, with both values. Mappings are compared key by key, all other
    values as a whole. The yielded paths begin with `path`.
    """
    if isinstance(theirs, Mapping) and isinstance(ours, Mapping):
        for key in [*theirs, *(key for key in ours if key not in theirs)]:
            yield from paths_that_differ(theirs.get(key, ABSENT), ours.get(key, ABSENT), (*path, key))
    elif not _same(theirs, ours):
        yield path, theirs, ours


def overrides_between(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the overrides with which `core.merging.merged` turns `ours` into `theirs`."""
    found: dict[str, Any] = {}
    for key in [*theirs, *(key for key in ours if key not in theirs)]:
        wanted, have = theirs.get(key, ABSENT), ours.get(key, ABSENT)
        if wanted is ABSENT:
            found[key] = None
        elif isinstance(wanted, Mapping) and isinstance(have, Mapping):
            if inner := overrides_between(have, wanted):
                found[key] = inner
        elif not _same(wanted, have):
            found[key] = wanted
    return found


def _same(one: Any, other: Any) -> bool:
    """Return whether two JSON values are equal. `true` differs from 1."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)
