"""What the settings of all targets have in common. Never part of a job: profiles, flags or these models hold them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import PrivateAttr

from cloudtrain.core.model import Model

if TYPE_CHECKING:
    from typing_extensions import Self


class TargetSettings(Model):
    """What targets have in common: where their account settings come from."""

    type: str
    """The name of the target."""

    _files: tuple[str, ...] = PrivateAttr(default=())

    @property
    def settings_files(self) -> tuple[str, ...]:
        """The settings files that had a part in it, the weakest first."""
        return self._files

    def from_files(self, files: tuple[str, ...]) -> Self:
        """The same target, which remembers its settings files."""
        same = self.model_copy()
        same._files = files  # type: ignore[misc]  # only fields are frozen
        return same

    def replace(self, **changes: Any) -> Self:
        """As of every model; the settings files stay."""
        return super().replace(**changes).from_files(self._files)
