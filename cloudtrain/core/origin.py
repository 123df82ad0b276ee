"""The origin of a job: the folder of its file. The settings of the project in that folder apply even if the job is used
from another folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import PrivateAttr

from cloudtrain.core.model import Model

if TYPE_CHECKING:
    from typing_extensions import Self


class FromFile(Model):
    """A model that remembers the folder of the file that it was read from. Equality ignores the folder."""

    _folder: Path | None = PrivateAttr(default=None)

    @property
    def folder(self) -> Path | None:
        """The folder of the job's file; None for a job that was written in Python."""
        return self._folder

    def from_folder(self, folder: Path | None) -> Self:
        """Return a copy of the job with this `folder`, as if the job was read from a file in the folder."""
        same = self.model_copy()
        same._folder = folder  # type: ignore[misc]  # only fields are frozen
        return same

    def replace(self, **changes: Any) -> Self:
        """Return a validated copy in which `changes` replace the values of the named fields. The copy keeps
        `folder`.
        """
        return super().replace(**changes).from_folder(self._folder)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in type(self).model_fields)
