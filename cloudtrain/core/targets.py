"""The names of the targets that are installed, and the way to each: the entry points of the group `cloudtrain.targets`.

The built-in targets are found in the same way as those of other packages. A target's module is imported when the target
is first used, so listing the names costs a look at the installed packages (2 ms for 150 of them) and no more.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from typing import TYPE_CHECKING, Any

from cloudtrain.errors import SettingsError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "cloudtrain.targets"

OWN = "cloudtrain."
"""With this begin the modules of the built-in targets."""

DEFAULT_TARGET = "local"
"""The target when none is named: this machine, which needs no account."""


LOADED: dict[str, Any] = {}
"""The targets that have been asked for, by name."""


def target_names() -> tuple[str, ...]:
    """The installed targets: the built-in ones, and then those of other packages."""
    return tuple(_entries())


def find_target(name: str) -> Any:
    """The target of that name; its module is imported now.

    Raises:
        KeyError: no installed package has one.
        SettingsError: its package is broken.
    """
    if name not in LOADED:
        entry = _entries()[name]
        try:
            LOADED[name] = entry.load()()
        except Exception as error:
            if entry.value.startswith(OWN):
                raise
            message = f"the target `{name}` cannot be loaded from `{entry.value}`: {type(error).__name__}: {error}"
            raise SettingsError(message, hint="upgrade or uninstall its package") from error
    return LOADED[name]


def all_targets() -> list[Any]:
    """Every target, in the order in which people see them; their modules are imported now."""
    return sorted(map(find_target, target_names()), key=lambda target: (target.order, target.name))


@cache
def _entries() -> dict[str, EntryPoint]:
    found: dict[str, EntryPoint] = {}
    for entry in sorted(_find_entries(), key=_rank):
        found.setdefault(entry.name, entry)  # another package adds names; it cannot replace a built-in one
    return found


def _rank(entry: EntryPoint) -> tuple[bool, bool, str]:
    return (not entry.value.startswith(OWN), entry.name == DEFAULT_TARGET, entry.name)


def _find_entries() -> list[EntryPoint]:
    """The entry points of the group. `importlib.metadata.entry_points` reads and parses every package's, which takes
    7 ms for 150 packages; this looks for the group's name first."""
    from importlib.metadata import Distribution

    found: list[EntryPoint] = []
    for folder in dict.fromkeys(sys.path):
        try:
            names = [
                entry.name for entry in os.scandir(folder or ".") if entry.name.endswith((".dist-info", ".egg-info"))
            ]
        except OSError:  # a path that is missing, or a zip file
            continue
        for name in names:
            place = os.path.join(folder or ".", name)  # noqa: PTH118 - hundreds of them, before every command
            try:
                with open(os.path.join(place, "entry_points.txt"), "rb") as file:  # noqa: PTH118, PTH123
                    has_group = b"[" + GROUP.encode() + b"]" in file.read()
            except OSError:
                continue
            if has_group:
                found.extend(Distribution.at(place).entry_points.select(group=GROUP))
    return found
