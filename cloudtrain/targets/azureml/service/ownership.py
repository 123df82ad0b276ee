"""Find out whether cloudtrain created a job, from one of the job's properties or from its content."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MARK = "cloudtrain.run"
"""The property of every job that cloudtrain makes; its value is the run's name."""


def is_ours(job: Mapping[str, Any], request: Mapping[str, Any] | None = None) -> bool:
    """Return whether cloudtrain created the job, for the run of the same name.

    cloudtrain's jobs have the property `MARK`. If overrides removed the property from `request`, the job is compared
    with `request` instead. Without `request`, a job that lacks the property counts as someone else's.
    """
    found = job["properties"]
    mark = (found.get("properties") or {}).get(MARK)
    if mark is not None:
        return bool(mark == job["name"])
    if request is None or MARK in (request["properties"].get("properties") or {}):
        return False
    return _contains(found, request["properties"])


def _contains(found: Any, asked: Any) -> bool:
    """Return whether the answer `found` contains all values of the request `asked`. Additional values are ignored."""
    if isinstance(asked, Mapping):
        return isinstance(found, Mapping) and all(_contains(found.get(key), asked[key]) for key in asked)
    return bool(found == asked)
