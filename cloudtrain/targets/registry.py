"""Find targets and their services by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from cloudtrain.errors import NearName, TargetUnavailable, did_you_mean
from cloudtrain.system.plugins import all_targets as all_found
from cloudtrain.system.plugins import find_target, find_usable, target_names

if TYPE_CHECKING:
    from cloudtrain.targets.contract import Service, Target


class ServiceContext(Protocol):
    """The values that `service_of` needs to make a service."""

    @property
    def environ(self) -> Mapping[str, str]:
        """The environment variables."""

    @property
    def state_dir(self) -> Path:
        """The folder of the run store and of local runs."""


def target_of(name: str) -> Target:
    """Return the target with the name `name`.

    Raises:
        TargetUnavailable: the target does not exist, its package was uninstalled since the run, or
            is broken.
    """
    if name not in target_names():
        near = did_you_mean(name, target_names())
        hint = "install the package that adds it" + (
            f"; {near}" if isinstance(near, NearName) else ""
        )
        raise TargetUnavailable(f"the target `{name}` is not installed", hint=hint)
    return cast("Target", find_target(name))


def usable_target(name: str) -> Target | None:
    """Return the target with the name `name`; None if it cannot be used, for example because its
    package was uninstalled since the run."""
    return cast("Target | None", find_usable(name))


def all_targets() -> list[Target]:
    """Return all targets that can be used, in the order in which users see them."""
    return all_found()


def service_of(name: str, context: ServiceContext) -> Service:
    """Return the service of a target, which makes no request until a method is called. Raises as
    `target_of` does."""
    return target_of(name).service(environ=context.environ, state_dir=context.state_dir)
