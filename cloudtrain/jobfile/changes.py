"""The changes that overrides made to a job."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from cloudtrain.documents.document import Path
from cloudtrain.errors import Problem

_NOTHING: Mapping[Any, Any] = MappingProxyType({})


class Changes(NamedTuple):
    """The changes that overrides made: for each changed path, the override and the spelling of the new value.
    `problems` are about overrides that could not be applied."""

    origins: Mapping[Path, str] = _NOTHING
    texts: Mapping[Path, str] = _NOTHING
    problems: tuple[Problem, ...] = ()

    def origin(self, path: Path) -> str | None:
        """Return the override (`--set a.b=1`) that set the value at a path or one of its parents; None if none did."""
        return next((self.origins[path[:end]] for end in range(len(path), 0, -1) if path[:end] in self.origins), None)
