"""Whether a job of a name that we chose is ours: one of its properties says so, or the job itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MARK = "cloudtrain.run"
"""The property of every job that cloudtrain makes; its value is the run's name."""


def is_ours(job: Mapping[str, Any], request: Mapping[str, Any] | None = None) -> bool:
    """Whether the job that the service tells of was made by a submission of its name.

    A request whose mark was overridden is recognised by its content; a command that mends a broken submission has no
    request, and takes no job without a mark for its own.
    """
    found = job["properties"]
    mark = (found.get("properties") or {}).get(MARK)
    if mark is not None:
        return bool(mark == job["name"])
    if request is None or MARK in (request["properties"].get("properties") or {}):
        return False
    return _contains(found, request["properties"])


def _contains(found: Any, asked: Any) -> bool:
    """Whether an answer repeats what was asked; the service adds values of its own."""
    if isinstance(asked, Mapping):
        return isinstance(found, Mapping) and all(_contains(found.get(key), asked[key]) for key in asked)
    return bool(found == asked)
