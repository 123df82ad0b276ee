"""Functions that find targets and their services by name, and the check of a target that another
package brings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from cloudtrain.errors import NearName, TargetUnavailable, UsageError, did_you_mean
from cloudtrain.system.plugins import (
    PORTABLE,
    add_contract_check,
    find_target,
    find_usable,
    not_loaded,
    target_names,
)
from cloudtrain.system.plugins import all_targets as all_found
from cloudtrain.targets.contract import Target

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from cloudtrain.targets.contract import Service


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
        TargetUnavailable: the target does not exist, its package was uninstalled since the run, or
            is broken.
    """
    if name not in target_names():
        hint = "install the package that adds it"
        near = did_you_mean(name, target_names())
        if isinstance(near, NearName):
            hint += f"; {near}"
        raise TargetUnavailable(f"the target `{name}` is not installed", hint=hint)
    return cast("Target", find_target(name))


def require_target(name: str) -> None:
    """Raise UsageError if there is no target of this name."""
    if name not in target_names():
        hint = did_you_mean(name, target_names())
        raise UsageError(f"`{name}` is not a target", hint=hint, code="CT913")


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


# The check of a target of another package.


def contract_fault(target: object, entry: EntryPoint) -> str | None:
    """Return why cloudtrain cannot use the target of the entry point `entry`, as a message; None if
    it can."""
    if not isinstance(target, Target):
        return not_loaded(entry, "it is not a subclass of `cloudtrain.targets.contract.Target`")
    clause = _refusal(target, entry.name)
    if clause is not None:
        return not_loaded(entry, clause)

    names = target_names()
    for earlier in names[: names.index(entry.name)]:
        if getattr(find_usable(earlier), "prefix", None) == target.prefix:
            return (
                f"the codes of the rules of `{entry.name}` begin with `{target.prefix}`, as those "
                f"of `{earlier}` do"
            )
    return None


_REQUIRED = ("name", "title", "settings", "prefix")

_EARLIER_WORDS = ("settings_model", "rule_prefix", "rule_modules")
"""Attributes of targets for earlier versions of cloudtrain."""


def _refusal(target: Target, name: str) -> str | None:
    """Return why cloudtrain cannot use `target` under the name `name`, as a clause; None if it
    can."""
    for word in _EARLIER_WORDS:
        if hasattr(target, word):
            return f"its class sets `{word}`, as targets for earlier versions of cloudtrain do"
    for word in _REQUIRED:
        if getattr(target, word, None) is None:
            return f"its class has no `{word}`"
    for word in target.facts._fields:
        if hasattr(target, word):
            return f"its class sets `{word}`, which is one of its `facts`"

    if target.name != name:
        return f"its class calls it `{target.name}`"
    if len(target.prefix) != 2 or not (target.prefix.isalpha() and target.prefix.isupper()):
        return f"its `prefix` is `{target.prefix}`, not two capital letters"
    if target.prefix == PORTABLE:
        return f"its `prefix` is `{PORTABLE}`, which stands for all targets"

    kind = getattr(target.settings, "model_fields", {}).get("type")
    if kind is None or kind.default != name:
        return f'its `settings` lacks `type: Literal["{name}"] = "{name}"`'
    return None


add_contract_check(contract_fault)
