"""`cloudtrain instances --refresh`: ask a target's service for its current instance types and prices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from cloudtrain.errors import UsageError

if TYPE_CHECKING:
    from cloudtrain.catalogue.refreshed import Refreshed
    from cloudtrain.settings import Settings

_NAMED = 5
"""The most new types that a line names."""


@runtime_checkable
class CanRefresh(Protocol):
    """A service that can list its current instance types and prices."""

    def refresh_catalogue(self, settings: Any) -> Refreshed:
        """Ask the service for its types, write them into the user's configuration folder, and return what was written.

        Raises:
            TargetError: the target does not answer, or the credentials lack the permission.
            SettingsError: required account settings are missing.
        """
        ...


def refresh_types(target: str, profile: str | None) -> Iterator[str]:
    """Refresh the target's table of types, and yield lines that report the result.

    Raises:
        UsageError: the target's service cannot list its types.
        TargetError: the target does not answer, or the credentials lack the permission.
        SettingsError: required account settings are missing.
    """
    from cloudtrain.settings import load_settings
    from cloudtrain.targets.registry import service_of

    settings = load_settings()
    service = service_of(target, settings)
    if not isinstance(service, CanRefresh):
        able = " or ".join(f"`--target {name}`" for name in _able(settings))
        message = f"the types of `{target}` cannot be refreshed, because their table is part of cloudtrain"
        raise UsageError(message, hint=f"use {able}" if able else "upgrade cloudtrain for a newer table")
    done = service.refresh_catalogue(settings.target(target, profile=profile))
    yield f"{done.types} types of {done.location} written to {done.file}"
    if done.added:
        named = ", ".join(f"`{name}`" for name in done.added[:_NAMED])
        more = f" and {len(done.added) - _NAMED} more" if len(done.added) > _NAMED else ""
        yield f"new in the catalogue: {named}{more}"
    yield from done.notes


def _able(settings: Settings) -> Iterator[str]:
    """Return the names of the targets whose services can list their types."""
    from cloudtrain.core.targets import all_targets
    from cloudtrain.targets.registry import service_of

    return (each.name for each in all_targets() if isinstance(service_of(each.name, settings), CanRefresh))
