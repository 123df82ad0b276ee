"""Find targets and their services by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, cast

from cloudtrain.core.targets import all_targets as all_found
from cloudtrain.core.targets import find_target, target_names
from cloudtrain.errors import SettingsError, did_you_mean
from cloudtrain.targets.base import Service, Target


class ServiceContext(Protocol):
    """The values that `service_of` needs to make a service."""

    @property
    def environ(self) -> Mapping[str, str]:
        """The environment variables."""
        ...

    @property
    def state_dir(self) -> Path:
        """The folder of the run store and of local runs."""
        ...


def target_of(name: str) -> Target:
    """Return the target with the name `name`.

    Raises:
        SettingsError: the target does not exist.
    """
    if name not in target_names():
        raise SettingsError(f"`{name}` is not a target", hint=did_you_mean(name, target_names()), code="CT913")
    return cast(Target, find_target(name))


def all_targets() -> list[Target]:
    """Return all installed targets, in the order in which users see them."""
    return all_found()


def service_of(name: str, context: ServiceContext) -> Service:
    """Return the service of a target. The service makes no request until a method is called.

    Raises:
        SettingsError: the target does not exist.
    """
    return target_of(name).service(environ=context.environ, state_dir=context.state_dir)
