"""Where a job comes from: the folder of its file, whose project's settings count wherever the job is used."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import PrivateAttr

from cloudtrain.core.model import Model

if TYPE_CHECKING:
    from typing_extensions import Self


class FromFile(Model):
    """A model that remembers the folder of the file that it was read from. Two of the same fields are equal all the
    same."""

    _folder: Path | None = PrivateAttr(default=None)

    @property
    def folder(self) -> Path | None:
        """The folder of the job's file; None for a job that was written in Python."""
        return self._folder

    def from_folder(self, folder: Path | None) -> Self:
        """The same job, as one of a file in that folder."""
        same = self.model_copy()
        same._folder = folder  # type: ignore[misc]  # only fields are frozen
        return same

    def replace(self, **changes: Any) -> Self:
        """As of every model; the folder stays."""
        return super().replace(**changes).from_folder(self._folder)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in type(self).model_fields)
