"""The base class of all targets' settings. Users set them in settings files, with flags or in Python, not in a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import PrivateAttr

from cloudtrain.core.model import Model

if TYPE_CHECKING:
    from typing_extensions import Self


class TargetSettings(Model):
    """The base class of target settings. It records the settings files that the values come from."""

    type: str
    """The name of the target."""

    _files: tuple[str, ...] = PrivateAttr(default=())

    @property
    def settings_files(self) -> tuple[str, ...]:
        """The settings files that set these values, in increasing order of precedence."""
        return self._files

    def from_files(self, files: tuple[str, ...]) -> Self:
        """Return the same settings with `settings_files` set to `files`."""
        same = self.model_copy()
        same._files = files  # type: ignore[misc]  # only fields are frozen
        return same

    def replace(self, **changes: Any) -> Self:
        """Return a copy with the given fields replaced, like `Model.replace`. The copy keeps `settings_files`."""
        return super().replace(**changes).from_files(self._files)


AnyTarget = str | TargetSettings | None
"""The name of a target, a target's settings, or None for the default target."""
