"""Two requests side by side: equal, or every difference with its reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cloudtrain.core.differences import Path
from cloudtrain.errors import dotted


@dataclass(frozen=True)
class Difference:
    """One place where the adopted job sends something else."""

    path: str
    original: Any
    adopted: Any
    reason: str


@dataclass(frozen=True)
class Comparison:
    """What the original request and the adopted job's request have in common."""

    differences: tuple[Difference, ...]
    renewed: tuple[tuple[str, str], ...] = ()
    """Places that cloudtrain writes anew for every run, and why: no difference of the job."""

    @property
    def equal(self) -> bool:
        """Whether the adopted job sends the original request."""
        return not self.differences


def shown_path(path: Path) -> str:
    """Return the path to a value as people read it."""
    return dotted(path) or "(the whole request)"
