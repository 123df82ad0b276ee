"""What overrides did to a job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cloudtrain.documents.document import Path
from cloudtrain.errors import Problem


@dataclass(frozen=True)
class Changes:
    """What overrides did: which override each path comes from, and how its plain values are written there."""

    origins: Mapping[Path, str] = field(default_factory=dict)
    texts: Mapping[Path, str] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()

    def origin(self, path: Path) -> str | None:
        """The override (`--set a.b=1`) that set the value at a path, or what holds it."""
        return next((self.origins[path[:end]] for end in range(len(path), 0, -1) if path[:end] in self.origins), None)
