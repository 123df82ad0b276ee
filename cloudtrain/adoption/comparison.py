"""The comparison of two requests: all differences, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cloudtrain.core.differences import Path
from cloudtrain.errors import dotted


@dataclass(frozen=True)
class Difference:
    """One field in which the adopted job's request differs from the original request."""

    path: str
    original: Any
    adopted: Any
    reason: str


@dataclass(frozen=True)
class Comparison:
    """The differences between the original request and the adopted job's request."""

    differences: tuple[Difference, ...]
    renewed: tuple[tuple[str, str], ...] = ()
    """Fields that cloudtrain writes anew for every run, with the reasons. They do not count as differences."""

    @property
    def equal(self) -> bool:
        """Whether the adopted job sends the original request."""
        return not self.differences


def shown_path(path: Path) -> str:
    """Format the path of a value as text for the user."""
    return dotted(path) or "(the whole request)"
