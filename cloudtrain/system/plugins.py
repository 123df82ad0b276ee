"""Functions that list and import the installed targets, which are entry points of the group
`cloudtrain.targets`.

Built-in targets and targets of other packages are found in the same way. A target's module is
imported when the target is first used, so listing the names only scans the installed packages (2 ms
for 150 packages).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module
from keyword import iskeyword
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from cloudtrain.errors import CloudtrainError, MissingExtra, TargetUnavailable, quoted

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


GROUP = "cloudtrain.targets"

OWN = "cloudtrain."
"""Prefix of the modules of the built-in targets."""

OWN_PACKAGE = "cloudtrain"

PORTABLE = "CT"
"""Prefix of the codes of rules for all targets."""

DEFAULT_TARGET = "local"
"""The target used when you name none: this machine, which needs no account."""


LOADED: dict[str, Any] = {}
"""The targets that are loaded already, by name."""


def target_names() -> tuple[str, ...]:
    """Return the names of the installed targets: the built-in ones first, then those of other
    packages."""
    return tuple(_entries())


def find_target(name: str) -> Any:
    """Import and return the target with that name.

    Raises:
        KeyError: no installed package has a target with that name.
        TargetUnavailable: the target's package is broken, or collides with another package.
    """
    if name not in LOADED:
        # An entry point loads the class of a target.
        entry = _entries()[name]
        target = entry.load()() if is_own(entry) else _load_plugin(entry)
        if isinstance(target, PluginFault):
            raise TargetUnavailable(target.message, hint=target.hint)
        LOADED[name] = target
    return LOADED[name]


def find_usable(name: str) -> Any | None:
    """Import and return the target with that name; None if its package is not installed, or is
    broken."""
    try:
        return find_target(name) if name in _entries() else None
    except TargetUnavailable:
        return None


_Part = TypeVar("_Part")


def ability(name: str) -> Callable[[type[_Part]], type[_Part]]:
    """Return a decorator for the type of a part of targets. `name` is the key of the part in
    `Target.parts`."""

    def register(kind: type[_Part]) -> type[_Part]:
        _ABILITIES[kind] = name
        return kind

    return register


_ABILITIES: dict[type, str] = {}
"""Maps the type of a part to its key in `Target.parts`."""


def has_part(target: object, kind: type) -> bool:
    """Return whether a target has the part of the type `kind`. Nothing is imported."""
    return _ABILITIES[kind] in getattr(target, "parts", {})


def part(target: object, kind: type[_Part]) -> _Part | None:
    """Import and return the part of a target that has the type `kind`; None if the target has no
    such part, or if `target` is None.

    Raises:
        TargetUnavailable: the part is another package's, and cannot be imported.
    """
    places: Mapping[str, str] = getattr(target, "parts", {})
    place = places.get(_ABILITIES[kind])
    if place is None:
        return None
    found: _Part = _import(place)
    return found


def all_parts(kind: type[_Part]) -> dict[str, _Part]:
    """Import and return the parts of this type, by the name of their target, in display order."""
    found: dict[str, _Part] = {}
    for target in all_targets():
        its_part = part(target, kind)
        if its_part is not None:
            found[target.name] = its_part
    return found


@cache
def _import(place: str) -> Any:
    """Import and return the object at `MODULE:NAME`. Raises TargetUnavailable if that fails in
    another package."""
    module, _, name = place.partition(":")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        if module.startswith(OWN):
            raise
        message = f"`{place}` cannot be loaded: {type(error).__name__}: {error}"
        raise TargetUnavailable(
            message, hint="upgrade the package that adds the target, or uninstall it"
        ) from error


def all_targets() -> list[Any]:
    """Import and return every target that can be used, in display order. A target whose package is
    broken is left out: it must not keep you from using the others, and `cloudtrain doctor` reports
    it."""
    found = map(find_usable, target_names())
    targets = [target for target in found if target is not None]
    return sorted(targets, key=lambda target: (target.order, target.name))


def is_own(entry: EntryPoint) -> bool:
    return entry.value.startswith(OWN)


def usable_name(name: str) -> bool:
    """Return whether a target of another package can have this name, which becomes a field of jobs
    and a table of settings."""
    if not name.isascii() or not name.isidentifier() or name != name.lower():
        return False
    if name.startswith(("_", "model_")):
        return False
    return not iskeyword(name) and name not in TAKEN


TAKEN = frozenset((
    "access asset_name asset_version attribute_names base build channel compression conda_file "
    "construct content_type "
    "copy data_type description dict dockerfile extras framework from_orm groups image "
    "instance_groups json keep mode "
    "of parse_file parse_obj parse_raw path profiles python record_wrapper replace requirements "
    "schema schema_json "
    "secrets shard shuffle_seed tags target type update_forward_refs validate value variables "
    "version"
).split())  # fmt: skip
"""Names that no target can have: fields and methods of the models with a field per target, and keys
of `cloudtrain.toml`."""


def package_of(entry: EntryPoint) -> str:
    """Return the name of the package that declares an entry point, as `pip install` takes it."""
    name: str | None = None if entry.dist is None else entry.dist.metadata["Name"]
    return name or top_module(entry)


def package_of_target(name: str) -> str:
    """Return the name of the package with a target; for an unknown target, cloudtrain."""
    entry = _entries().get(name)
    return OWN_PACKAGE if entry is None or is_own(entry) else package_of(entry)


def top_module(entry: EntryPoint) -> str:
    """Return the name of the outermost module of an entry point: `a` for `a.b:Target`."""
    return entry.value.partition(":")[0].partition(".")[0]


@cache
def _load_plugin(entry: EntryPoint) -> Any:
    """Import and return a target of another package, or a `PluginFault` if it cannot be used."""
    name = entry.name
    package = package_of(entry)

    entries = [other for other in declared() if other.name == name]
    packages = dict.fromkeys(map(package_of, entries))
    if len(packages) > 1:
        names = quoted(packages, " and ")
        message = f"two packages have a target `{name}`: {names}"
        return PluginFault(name, message, f"uninstall one: `pip uninstall {package}`")

    find_target(DEFAULT_TARGET)  # a built-in target brings the check of the contract
    target: Any = None
    fault: str | None = None
    try:
        target = entry.load()()
        for check in _contract_checks:
            fault = fault or check(target, entry)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the other targets have to go on
        text = error.message if isinstance(error, CloudtrainError) else str(error)
        fault = not_loaded(entry, f"{type(error).__name__}: {text}")

    if fault is not None:
        hint = f"upgrade its package `{package}`, or uninstall it: `pip uninstall {package}`"
        return PluginFault(name, fault, hint)
    return target


def not_loaded(entry: EntryPoint, why: str) -> str:
    """Return the message about a target that cannot be loaded. `why` is a clause."""
    return f"the target `{entry.name}` cannot be loaded from `{entry.value}`: {why}"


_Check = Callable[[object, "EntryPoint"], str | None]

_contract_checks: list[_Check] = []


def add_contract_check(check: _Check) -> None:
    """Check each target of another package with `check` when it is loaded. `check` returns a
    message if cloudtrain cannot use the target. The contract stands above this module, so the room
    of the contract calls this function when it is imported."""
    _contract_checks.append(check)


@cache
def declared() -> tuple[EntryPoint, ...]:
    """Return every entry point of the group: the built-in ones first, each group sorted by name."""

    def position(entry: EntryPoint) -> tuple[bool, bool, str]:
        return not is_own(entry), entry.name == DEFAULT_TARGET, entry.name

    return tuple(sorted(_find_entries(), key=position))


@cache
def _entries() -> dict[str, EntryPoint]:
    """Return the entry points by the names of their targets, without those that cannot be used."""
    entries: dict[str, EntryPoint] = {}
    for entry in declared():
        if is_own(entry) or usable_name(entry.name):
            # The first one counts, so another package cannot replace a built-in target.
            entries.setdefault(entry.name, entry)
    return entries


def _find_entries() -> list[EntryPoint]:
    """Return the entry points of the group. `importlib.metadata.entry_points` parses the files of
    every package, which takes 7 ms for 150 packages; this function searches each file for the
    group's name first."""
    from importlib.metadata import Distribution

    heading = f"[{GROUP}]".encode()
    entries: list[EntryPoint] = []
    for folder in dict.fromkeys(sys.path):
        try:
            names = os.listdir(folder or ".")
        except OSError:  # a missing path, or a zip file
            continue
        for name in names:
            if not name.endswith((".dist-info", ".egg-info")):
                continue
            # Without pathlib: there are hundreds of packages, and every command waits.
            place = os.path.join(folder or ".", name)
            try:
                with open(os.path.join(place, "entry_points.txt"), "rb") as file:
                    content = file.read()
            except OSError:
                continue
            if heading in content:
                entries.extend(Distribution.at(place).entry_points.select(group=GROUP))
    return entries


# Targets of other packages: which ones cannot be used and why, and which one a defect is in.


class PluginFault(NamedTuple):
    """A target of another package that cannot be used. `name` is the target's name."""

    name: str
    message: str
    hint: str | None
    is_harmless: bool = False
    """Whether another target of that name works."""


def plugin_faults() -> Iterator[PluginFault]:
    """Yield each target of another package that cannot be used."""
    for entry in declared():
        if is_own(entry):
            continue

        package = package_of(entry)
        used = _entries().get(entry.name)
        if used is not None and is_own(used):
            message = f"`{package}` has a target of this name too, which cloudtrain does not use"
            yield PluginFault(
                entry.name, message, f"uninstall it: `pip uninstall {package}`", is_harmless=True
            )
        elif used is None:
            message = f"`{package}` has a target of this name, and a target cannot have it"
            hint = (
                "ask its authors for a name of lower-case letters, digits and underscores "
                "that is no field of a job"
            )
            yield PluginFault(entry.name, message, hint)

    for name in target_names():
        try:
            find_target(name)
        except TargetUnavailable as error:
            yield PluginFault(name, error.message, error.hint)


def plugin_of(error: BaseException) -> str | None:
    """Return the package with a target whose code raised `error`; None if the code is not in such a
    package."""
    packages = {top_module(entry): package_of(entry) for entry in declared() if not is_own(entry)}

    # The innermost module of cloudtrain or of such a package decides.
    package = None
    step = error.__traceback__
    while step is not None:
        name = str(step.tb_frame.f_globals.get("__name__", ""))
        module = name.partition(".")[0]
        if module == OWN_PACKAGE or module in packages:
            package = packages.get(module)
        step = step.tb_next
    return package


# Optional dependencies. They are imported late, and the error for a missing one shows the exact pip
# line.


def require(module: str, *, extra: str) -> ModuleType:
    """Import and return `module`, which the extra installs.

    An import error from inside the module (a broken installation) is passed on unchanged.

    Raises:
        MissingExtra: the module is not installed.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing.split(".")[0] != module.split(".")[0]:
            raise
        package = module
        for start, name in _PACKAGES.items():
            if f"{module}.".startswith(f"{start}."):
                package = name
        raise MissingExtra(f"`{package}` is not installed", hint=pip_line(extra)) from error


def pip_line(extra: str) -> str:
    """Return the command that installs an extra of cloudtrain from where this cloudtrain came from
    (PEP 610): a checkout, a repository or a package index."""
    import json
    import shlex
    from importlib.metadata import PackageNotFoundError, distribution
    from urllib.parse import unquote

    try:
        text = distribution(OWN_PACKAGE).read_text("direct_url.json")
        origin = json.loads(text or "{}")
    except (PackageNotFoundError, ValueError):
        origin = {}
    url = str(origin.get("url", ""))

    vcs = origin.get("vcs_info", {}).get("vcs")
    if vcs:
        requirement = f"{OWN_PACKAGE}[{extra}] @ {vcs}+{url}"
        return f"pip install {shlex.quote(requirement)}"

    folder = unquote(url.removeprefix("file://"))
    # A plan starts sooner without pathlib.
    if "dir_info" in origin and os.path.isdir(folder):
        option = "-e " if origin["dir_info"].get("editable") else ""
        requirement = shlex.quote(f"{folder}[{extra}]")
        return f"pip install {option}{requirement}"
    return f"pip install '{OWN_PACKAGE}[{extra}]'"


_PACKAGES = {
    "botocore": "boto3",
    "s3transfer": "boto3",
    "boto3": "boto3",
    "azure.core": "azure-core",
    "azure.identity": "azure-identity",
    "azure.storage.blob": "azure-storage-blob",
    "azure.ai.ml": "azure-ai-ml",
}
"""Maps modules to their package names in `pip list`. boto3 installs its own dependencies."""
