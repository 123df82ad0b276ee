"""From a target's name to its backend."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from cloudtrain.backends import BUILT_IN, ENTRY_POINTS
from cloudtrain.backends.base import Backend
from cloudtrain.errors import SettingsError, did_you_mean
from cloudtrain.settings import Settings


def backend_of(name: str, settings: Settings) -> Backend:
    """The backend of a target. It is made with `state_dir` and `environ`, and does nothing until it is used.

    Raises:
        SettingsError: no such target.
    """
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
        factory = getattr(import_module(module), attribute)
    else:
        factory = _from_entry_points(name)
    return cast(Backend, factory(settings.state_dir, environ=settings.environ))


def _from_entry_points(name: str) -> object:
    from importlib.metadata import entry_points

    found = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
    if name not in found:
        raise SettingsError(f"`{name}` is not a target", hint=did_you_mean(name, {*BUILT_IN, *found}))
    return found[name].load()
