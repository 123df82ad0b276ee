"""Find out whether we made a job of a given name: by one of its properties, or by its content."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MARK = "cloudtrain.run"
"""The property of every job that cloudtrain makes; its value is the run's name."""


def is_ours(job: Mapping[str, Any], request: Mapping[str, Any] | None = None) -> bool:
    """Return whether the described job was made by a submission of its name.

    If overrides have removed the mark, the job is compared with the request. A command that repairs a broken submission
    has no request, and accepts only jobs with the mark.
    """
    found = job["properties"]
    mark = (found.get("properties") or {}).get(MARK)
    if mark is not None:
        return bool(mark == job["name"])
    if request is None or MARK in (request["properties"].get("properties") or {}):
        return False
    return _contains(found, request["properties"])


def _contains(found: Any, asked: Any) -> bool:
    """Return whether an answer repeats the requested values; the service adds others."""
    if isinstance(asked, Mapping):
        return isinstance(found, Mapping) and all(_contains(found.get(key), asked[key]) for key in asked)
    return bool(found == asked)
