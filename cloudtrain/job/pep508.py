"""Reads the names, versions and environment markers of packages with `packaging`, and refuses what
it takes and a line of a list must not hold: line breaks, other control characters, and texts
without an end."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Set
from typing import NamedTuple

from packaging.markers import Marker, UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import Requirement as Parsed
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

Values = Mapping[str, "str | Set[str]"]
"""The values of environment markers."""

NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"

_LONGEST = 4_000
_DEEPEST = 50
"""The most characters and parentheses of a text. uv writes some hundred, and ten; Python reads no
number of over 4,300 digits."""


class Requirement(NamedTuple):
    """A package that something asks for, such as `numpy[mkl] >=1.26,<3 ; python_version < '3.13'`.
    In a file of pip, `name` is empty if only the installer finds it.

    Attributes:
        url: where the package is; empty for an index.
        path: where it is on the machine: a file or a folder, from the top folder of the code.
        text: the requirement as it is written.
        place: the line and the file, for messages.
    """

    name: str = ""
    versions: SpecifierSet = SpecifierSet()
    extras: frozenset[str] = frozenset()
    url: str = ""
    marker: str = ""
    path: str = ""
    text: str = ""
    hashes: tuple[str, ...] = ()
    place: str = ""
    is_constraint: bool = False

    def __str__(self) -> str:
        if self.path:
            return posixpath.join(".", self.path)
        lower_first = sorted(map(str, self.versions), reverse=True)
        return f"{self.name}{','.join(lower_first)}"

    def is_met_by(self, version: str | None) -> bool:
        """Return whether a package of this version is enough; None if it is not installed."""
        return version is not None and are_met(self.versions, version)

    @property
    def pin(self) -> str | None:
        """The version that the requirement leaves no choice about."""
        for clause in self.versions:
            if clause.operator in ("==", "===") and not clause.version.endswith(".*"):
                return clause.version
        return None


def requirement_in(text: str) -> Requirement:
    """Read a requirement. Raises ValueError if it is none."""
    _check(text, "requirement")
    try:
        parsed = Parsed(text)
    except ValueError as error:
        raise ValueError(str(error).splitlines()[0]) from None  # the others point into the text
    if any(name.endswith("_") for name in (parsed.name, *parsed.extras)):
        raise ValueError("a name ends with a letter or a digit")  # `packaging` takes the line
    extras = frozenset(map(normal, parsed.extras))
    marker = str(parsed.marker or "")
    applies(marker, {})  # for its errors
    return Requirement(parsed.name, parsed.specifier, extras, parsed.url or "", marker, text=text)


def versions_in(text: str) -> SpecifierSet:
    """Read versions such as `>=1.26,<3`. Raises ValueError if they are none."""
    _check(text, "version")
    return SpecifierSet(text)


def _check(text: str, kind: str) -> None:
    if len(text) > _LONGEST or text.count("(") > _DEEPEST:
        raise ValueError(f"the {kind} is too long")
    if not text.isascii() or not text.replace("\t", "").isprintable():
        raise ValueError(f"the {kind} holds another character than those of ASCII")


def normal(name: str) -> str:
    """Return the normalized name of a package: `Flash_Attn` becomes `flash-attn`."""
    return str(canonicalize_name(name))


def are_met(versions: SpecifierSet, version: str) -> bool:
    """Return whether a version is one of those asked for. One that is none of Python's counts."""
    try:
        return versions.contains(Version(version), prereleases=True)
    except InvalidVersion:
        return True


def conflict_in(versions: SpecifierSet) -> bool:
    """Return whether it is certain that no version is one of these: if one is, then so is a bound
    of theirs, or the next version after it."""
    candidates = {"0", "0.0.0.1"}
    for clause in versions:
        if clause.operator == "===":
            return False
        bound = Version(clause.version.removesuffix(".*"))
        if bound.is_prerelease or bound.is_postrelease:
            return False
        candidates.update((str(bound), f"{bound.public}.0.0.1"))
    return not any(are_met(versions, version) for version in candidates)


_UNKNOWN: Values = {
    "extra": "",
    "extras": frozenset(),
    "dependency_groups": frozenset(),
    "platform_release": "",
    "platform_version": "",
}
"""Values of the variables that a machine or a file may leave open."""


def applies(marker: str, values: Values) -> bool:
    """Return whether an environment marker applies; an empty one does. Raises ValueError if it is
    none, or if its comparison has no answer, as `os_name ~= 'x'`: pip ends there too."""
    if not marker:
        return True
    _check(marker, "environment marker")
    try:
        return Marker(marker).evaluate({**_UNKNOWN, **values})
    except (ValueError, UndefinedComparison, UndefinedEnvironmentName):
        raise ValueError(f"`{marker}` is not an environment marker") from None
