"""Settings that all targets share. Profiles, flags or these models hold them; a job never does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import PrivateAttr

from cloudtrain.core.model import Model

if TYPE_CHECKING:
    from typing_extensions import Self


class TargetSettings(Model):
    """What targets have in common: the origin of their account settings."""

    type: str
    """The name of the target."""

    _files: tuple[str, ...] = PrivateAttr(default=())

    @property
    def settings_files(self) -> tuple[str, ...]:
        """The settings files that contributed, the weakest first."""
        return self._files

    def from_files(self, files: tuple[str, ...]) -> Self:
        """Return the same settings, with a note of the files they came from."""
        same = self.model_copy()
        same._files = files  # type: ignore[misc]  # only fields are frozen
        return same

    def replace(self, **changes: Any) -> Self:
        """Replace fields, as in every model. The note of settings files stays."""
        return super().replace(**changes).from_files(self._files)
