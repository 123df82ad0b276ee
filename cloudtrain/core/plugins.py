"""Targets of other packages: which ones cannot be used and why, and which one a defect is in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from cloudtrain.core.targets import declared, find_target, is_own, package_of, target_names, top_module, usable_name
from cloudtrain.errors import TargetUnavailable


class PluginFault(NamedTuple):
    """A target of another package that cannot be used. `name` is the target's name."""

    name: str
    message: str
    hint: str | None
    is_harmless: bool = False
    """Whether another target of that name works."""


def plugin_faults() -> Iterator[PluginFault]:
    """Yield each target of another package that cannot be used."""
    own = [entry.name for entry in declared() if is_own(entry)]
    for entry in declared():
        package = package_of(entry)
        if not is_own(entry) and entry.name in own:
            message = f"`{package}` has a target of this name too, which cloudtrain does not use"
            yield PluginFault(entry.name, message, f"uninstall it: `pip uninstall {package}`", is_harmless=True)
        elif not is_own(entry) and not usable_name(entry.name):
            message = f"`{package}` has a target of this name, and a target cannot have it"
            hint = "ask its authors for a name of lower-case letters, digits and underscores that is no field of a job"
            yield PluginFault(entry.name, message, hint)
    for name in target_names():
        try:
            find_target(name)
        except TargetUnavailable as error:
            yield PluginFault(name, error.message, error.hint)


def plugin_of(error: BaseException) -> str | None:
    """Return the package with a target whose code raised `error`; None if the code is not in such a package."""
    packages = {top_module(entry): package_of(entry) for entry in declared() if not is_own(entry)}
    found, step = None, error.__traceback__
    while step is not None:
        module = str(step.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
        if module == "cloudtrain" or module in packages:
            found = packages.get(module)
        step = step.tb_next
    return found
