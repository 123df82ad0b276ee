"""Functions that list and import the installed targets, which are entry points of the group `cloudtrain.targets`.

Built-in targets and targets of other packages are found in the same way. A target's module is imported when the target
is first used, so listing the names only scans the installed packages (2 ms for 150 packages).
"""

from __future__ import annotations

import os
import sys
from functools import cache
from keyword import iskeyword
from typing import TYPE_CHECKING, Any

from cloudtrain.errors import CloudtrainError, TargetUnavailable

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "cloudtrain.targets"

OWN = "cloudtrain."
"""Prefix of the modules of the built-in targets."""

OWN_PACKAGE = "cloudtrain"

DEFAULT_TARGET = "local"
"""The target used when you name none: this machine, which needs no account."""


LOADED: dict[str, Any] = {}
"""The targets that are loaded already, by name."""


def target_names() -> tuple[str, ...]:
    """Return the names of the installed targets: the built-in ones first, then those of other packages."""
    return tuple(_entries())


def find_target(name: str) -> Any:
    """Import and return the target with that name.

    Raises:
        KeyError: no installed package has a target with that name.
        TargetUnavailable: the target's package is broken, or collides with another package.
    """
    if name not in LOADED:
        entry = _entries()[name]
        LOADED[name] = entry.load()() if is_own(entry) else _load_plugin(entry)
    return LOADED[name]


def find_usable(name: str) -> Any | None:
    """Import and return the target with that name; None if its package is not installed, or is broken."""
    try:
        return find_target(name) if name in target_names() else None
    except TargetUnavailable:
        return None


def all_targets() -> list[Any]:
    """Import and return every target that can be used, in display order. A target whose package is broken is left out:
    it must not keep you from using the others, and `cloudtrain doctor` reports it.
    """
    found = [target for name in target_names() if (target := find_usable(name)) is not None]
    return sorted(found, key=lambda target: (target.order, target.name))


def is_own(entry: EntryPoint) -> bool:
    """Return whether an entry point is a built-in target."""
    return entry.value.startswith(OWN)


def usable_name(name: str) -> bool:
    """Return whether a target of another package can have this name, which becomes a field of jobs and a table of
    settings.
    """
    is_word = name.isascii() and name.isidentifier() and name == name.lower() and name[0] != "_"
    return is_word and not iskeyword(name) and not name.startswith("model_") and name not in TAKEN


TAKEN = frozenset((
    "access asset_name asset_version attribute_names base build channel compression conda_file construct content_type "
    "copy data_type description dict dockerfile framework from_orm image instance_groups json keep mode of parse_file "
    "parse_obj parse_raw path profiles python record_wrapper replace requirements schema schema_json secrets shard "
    "shuffle_seed tags target type update_forward_refs validate value variables version"
).split())  # fmt: skip
"""Names that no target can have: fields and methods of the models with a field per target, and keys of
`cloudtrain.toml`."""


def package_of(entry: EntryPoint) -> str:
    """Return the name of the package that declares an entry point, as `pip install` takes it."""
    name: str | None = None if entry.dist is None else entry.dist.metadata["Name"]
    return name or top_module(entry)


def package_of_target(name: str) -> str:
    """Return the name of the package that has the target `name`."""
    entry = _entries().get(name)
    return OWN_PACKAGE if entry is None or is_own(entry) else package_of(entry)


def top_module(entry: EntryPoint) -> str:
    """Return the name of the top-level module that an entry point names."""
    return entry.value.partition(":")[0].partition(".")[0]


def _load_plugin(entry: EntryPoint) -> Any:
    """Import and return a target of another package.

    Raises:
        TargetUnavailable: the package is broken, or another package has a target of that name or with the same rule
            prefix. The same error is raised each time.
    """
    target, message, hint = _load(entry)
    if target is None:
        raise TargetUnavailable(message, hint=hint)
    return target


@cache
def _load(entry: EntryPoint) -> tuple[Any, str, str]:
    """Return the target, or None with the message and the hint of the error."""
    name, package = entry.name, package_of(entry)
    packages = dict.fromkeys(package_of(other) for other in declared() if other.name == name)
    if len(packages) > 1:
        both = " and ".join(f"`{other}`" for other in packages)
        return None, f"two packages have a target `{name}`: {both}", f"uninstall one: `pip uninstall {package}`"
    upgrade = f"upgrade its package `{package}`, or uninstall it: `pip uninstall {package}`"
    try:
        target = entry.load()()
        refuse = getattr(target, "refuse_name", None)
        wrong = "it is not a subclass of `cloudtrain.targets.base.Target`" if refuse is None else refuse(name)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the other targets have to go on
        wrong = f"{type(error).__name__}: {error.message if isinstance(error, CloudtrainError) else error}"
    if wrong is not None:
        return None, f"the target `{name}` cannot be loaded from `{entry.value}`: {wrong}", upgrade
    for other in target_names()[: target_names().index(name)]:
        if getattr(find_usable(other), "rule_prefix", None) == target.rule_prefix:
            message = f"the codes of the rules of `{name}` begin with `{target.rule_prefix}`, as those of `{other}` do"
            return None, message, upgrade
    return target, "", ""


@cache
def declared() -> tuple[EntryPoint, ...]:
    """Return every entry point of the group: the built-in ones first, each group sorted by name."""
    return tuple(sorted(_find_entries(), key=_rank))


@cache
def _entries() -> dict[str, EntryPoint]:
    found: dict[str, EntryPoint] = {}
    for entry in declared():
        if is_own(entry) or usable_name(entry.name):
            found.setdefault(entry.name, entry)  # another package can add names but cannot replace a built-in target
    return found


def _rank(entry: EntryPoint) -> tuple[bool, bool, str]:
    return (not is_own(entry), entry.name == DEFAULT_TARGET, entry.name)


def _find_entries() -> list[EntryPoint]:
    """Return the entry points of the group. `importlib.metadata.entry_points` parses the files of every package, which
    takes 7 ms for 150 packages; this function searches each file for the group's name first."""
    from importlib.metadata import Distribution

    found: list[EntryPoint] = []
    for folder in dict.fromkeys(sys.path):
        try:
            names = [
                entry.name for entry in os.scandir(folder or ".") if entry.name.endswith((".dist-info", ".egg-info"))
            ]
        except OSError:  # a missing path, or a zip file
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
