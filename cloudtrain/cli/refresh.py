"""`cloudtrain instances --refresh`: ask a target about its types, where its service can."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from cloudtrain.errors import UsageError

if TYPE_CHECKING:
    from cloudtrain.catalogue.refreshed import Refreshed
    from cloudtrain.settings import Settings

_NAMED = 5
"""How many new types a line names."""


@runtime_checkable
class CanRefresh(Protocol):
    """A service that can tell which types there are, at what price."""

    def refresh_catalogue(self, settings: Any) -> Refreshed:
        """Ask, and write the answer into the user's configuration folder.

        Raises:
            TargetError: the target does not answer, or the credentials may not ask.
            SettingsError: account settings that it needs are missing.
        """
        ...


def refresh_types(target: str, profile: str | None) -> Iterator[str]:
    """Ask the target, and return lines that say what it found.

    Raises:
        UsageError: its service cannot.
        TargetError: it does not answer, or the credentials may not ask.
        SettingsError: account settings that it needs are missing.
    """
    from cloudtrain.settings import load_settings
    from cloudtrain.targets.registry import service_of

    settings = load_settings()
    service = service_of(target, settings)
    if not isinstance(service, CanRefresh):
        able = " or ".join(f"`--target {name}`" for name in _able(settings))
        message = f"the types of `{target}` cannot be refreshed: its table comes with cloudtrain"
        raise UsageError(message, hint=f"use {able}" if able else "upgrade cloudtrain: a new version has newer tables")
    done = service.refresh_catalogue(settings.target(target, profile=profile))
    yield f"{done.types} types of {done.location} written to {done.file}"
    if done.added:
        named = ", ".join(f"`{name}`" for name in done.added[:_NAMED])
        more = f" and {len(done.added) - _NAMED} more" if len(done.added) > _NAMED else ""
        yield f"new in the catalogue: {named}{more}"
    yield from done.notes


def _able(settings: Settings) -> Iterator[str]:
    """Return the targets whose services can refresh their tables."""
    from cloudtrain.core.targets import target_names
    from cloudtrain.targets.registry import service_of

    return (name for name in target_names() if isinstance(service_of(name, settings), CanRefresh))
