"""Reads the names, versions and environment markers of packages, by the specifications of Python's
packaging (PEP 440, PEP 503 and PEP 508). A text that is not exactly one of them is refused.

It stands in for `packaging`, whose import takes as long as reading a lock of 100 packages.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from operator import eq, ge, gt, le, lt, ne
from typing import NamedTuple

NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"

VERSION = (
    r"(?=.{1,200}$)v?(?P<epoch>[0-9]+!)?(?P<release>[0-9]+(?:\.[0-9]+)*)"
    r"(?P<suffix>(?:[-_.]?(?:alpha|beta|preview|pre|rc|a|b|c)[-_.]?[0-9]*)?"
    r"(?:-[0-9]+|[-_.]?(?:post|rev|r)[-_.]?[0-9]*)?"
    r"(?:[-_.]?dev[-_.]?[0-9]*)?)"
    r"(?P<build>\+[a-z0-9]+(?:[-_.][a-z0-9]+)*)?"
)
"""A version as PEP 440 writes it, in lower case. Python reads no number of over 4,300 digits."""

_CLAUSE = re.compile(r"(===|==|!=|>=|<=|~=|>|<)[ \t]*([^\s,;'\"#]+)")
_REQUIREMENT = re.compile(
    rf"(?P<name>{NAME})[ \t]*"
    rf"(?:\[(?P<extras>[ \t]*(?:{NAME}(?:[ \t]*,[ \t]*{NAME})*)?[ \t]*)\])?[ \t]*"
    r"(?:@[ \t]*(?P<url>\S+)(?:[ \t]+|$)|(?P<versions>(?:[(=<>!~][^;@]*)?))(?:;(?P<marker>.*))?"
)

_COMPARE = {"==": eq, "!=": ne, ">=": ge, "<=": le, ">": gt, "<": lt}

Clause = tuple[str, str]
"""An operator and a version, such as `>=` and `1.26`."""


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
    clauses: tuple[Clause, ...] = ()
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
            return self.path if self.path.startswith("/") else f"./{self.path}"
        return f"{self.name}{self.versions}"

    @property
    def versions(self) -> str:
        return ",".join(map("".join, self.clauses))

    def is_met_by(self, version: str | None) -> bool:
        """Return whether a package of this version is enough; None if it is not installed."""
        return version is not None and are_met(self.clauses, version)

    @property
    def pin(self) -> str | None:
        """The version that the clauses leave no choice about."""
        for operator, version in self.clauses:
            if operator == "===" or (operator == "==" and "*" not in version):
                return version
        return None


def requirement_in(text: str) -> Requirement:
    """Read a requirement. Raises ValueError if it is none."""
    match = _REQUIREMENT.fullmatch(text.strip(" \t"))
    if match is None:
        raise ValueError("a name and versions are expected, such as `numpy>=1.26`")
    extras = frozenset(map(normal, re.findall(NAME, match["extras"] or "")))
    marker = match["marker"]
    if marker is not None:
        applies(marker or "?", None)
    clauses = clauses_in(match["versions"] or "")
    return Requirement(match["name"], clauses, extras, match["url"] or "", marker or "", text=text)


def normal(name: str) -> str:
    """Return the normalized name of a package: `Flash_Attn` becomes `flash-attn`."""
    return re.sub(r"[-_.]+", "-", name).lower()


def clauses_in(text: str) -> tuple[Clause, ...]:
    """Return the clauses of versions such as `>=1.26,<3`. Raises ValueError if one is none."""
    text = text.strip(" \t")
    if text.startswith("(") and text.endswith(")"):
        text = text[1:-1]
    clauses = []
    for part in text.split(","):
        match = _CLAUSE.fullmatch(part.strip(" \t"))
        if match is not None and _is_clause(match[1], match[2]):
            clauses.append((match[1], match[2]))
        elif part.strip(" \t"):
            raise ValueError(f"`{part}` is not a version with an operator, such as `>=1.26`")
    return tuple(clauses)


def _version_in(text: str) -> re.Match[str] | None:
    """Return the parts of a version, without a `.*` at its end."""
    return re.fullmatch(VERSION, text.removesuffix(".*").lower())


def _is_clause(operator: str, version: str) -> bool:
    """Return whether a version is one that the operator takes."""
    match = _version_in(version)
    if operator == "===" or match is None:
        return operator == "==="
    if operator in ("==", "!="):
        return version[-1] != "*" or not (match["suffix"] or match["build"])
    if match["build"] or version[-1] == "*":
        return False
    return operator != "~=" or "." in match["release"]


_SPELLINGS = {"alpha": "a", "beta": "b", "c": "rc", "pre": "rc", "preview": "rc"}


def canonical(clauses: Iterable[Clause]) -> frozenset[Clause]:
    """Return clauses in one spelling, in which `== 1.0.0RC-1` is `==1rc1`."""
    result = set()
    for operator, version in clauses:
        text = version.lower().removeprefix("v")
        text = re.sub(r"[-_.]?([a-z]+)[-_.]?", lambda match: _spelled(match[1]), text)
        if operator != "~=" and not text.endswith(".*"):
            text = re.sub(r"^((?:[0-9]+!)?[0-9.]*?[0-9])(?:\.0+)+(?![0-9]|\.[0-9])", r"\1", text)
        result.add((operator, text))
    return frozenset(result)


def _spelled(word: str) -> str:
    return _SPELLINGS.get(word, word)


def are_met(clauses: Iterable[Clause], version: str) -> bool:
    """Return whether a version meets every clause. Only release numbers are compared. If a suffix
    such as `rc1` would decide, the clause counts as met."""
    have = _version_in(version)
    return have is None or all(_is_met(clause, have) for clause in clauses)


def _is_met(clause: Clause, have: re.Match[str]) -> bool:
    operator, version = clause
    want = _version_in(version)
    if operator == "===" or want is None:
        return True
    installed = _numbers(have)
    wanted = _numbers(want)
    length = max(len(installed), len(wanted))
    installed += [0] * (length - len(installed))  # 1.2 is 1.2.0
    if version.endswith(".*"):
        return (installed[: len(wanted)] == wanted) == (operator == "==")
    if operator == "~=":
        series = wanted[:-1]
        return installed >= wanted and installed[: len(series)] == series
    wanted += [0] * (length - len(wanted))
    if installed == wanted and (have["suffix"] or want["suffix"]):
        return True
    return bool(_COMPARE[operator](installed, wanted))


def _numbers(version: re.Match[str]) -> list[int]:
    """Return the epoch and the release numbers of a version."""
    epoch = version["epoch"] or "0!"
    return [int(epoch[:-1]), *map(int, version["release"].split("."))]


def conflict_in(clauses: Collection[Clause]) -> bool:
    """Return whether no version meets all clauses: if one does, then so does a bound of theirs, or
    the next version after it."""
    candidates = {"0", "0.0.0.1"}
    for operator, version in clauses:
        if operator == "===":
            return False
        bound = version.removesuffix(".*").partition("+")[0]
        candidates.update((bound, f"{bound}.0.0.1"))
    return not any(are_met(clauses, version) for version in candidates)


# Environment markers.

Values = Mapping[str, "str | Collection[str]"]
"""The values of markers; those of `extra`, `extras` and `dependency_groups` are sets."""

_COMPARISON = (
    r"(?:(?P<variable>(?<![a-z_])[a-z_]+)|(?P<before>'[^']*'|\"[^\"]*\"))"
    r"\s*(?P<operator>===?|~=|!=|[<>]=?|\bnot\s+in\b|\bin\b)\s*"
    r"(?(variable)(?P<after>'[^']*'|\"[^\"]*\")|(?P<last>[a-z_]+))"
)
_VARIABLES = frozenset(
    (
        "os_name sys_platform platform_machine platform_python_implementation platform_release "
        "platform_system platform_version python_version python_full_version "
        "implementation_name implementation_version extra extras dependency_groups"
    ).split()
)
_OF_VERSIONS = frozenset(("python_version", "python_full_version", "implementation_version"))
_MIRRORED = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}
_SIGNS = {"and": "&", "or": "|", "(": "(", ")": ")", "\0": "F", "\1": "T"}

_LONGEST = 10_000
_DEEPEST = 100
"""The most characters and parentheses of a marker. uv writes some hundred, and ten."""


def applies(marker: str, values: Values | None) -> bool:
    """Return whether an environment marker applies; an empty one does. Without `values`, only its
    form counts. Raises ValueError if it is none."""
    if not marker:
        return True
    if len(marker) > _LONGEST or marker.count("(") > _DEEPEST:
        raise ValueError("the environment marker is too long")
    # Each comparison becomes a sign, and then the words between them are applied.
    signs = re.sub(_COMPARISON, lambda match: "\0\1"[_holds(match, values)], marker)
    words = re.findall(r"[()\0\1]|[^\s()\0\1]+", signs)
    text = "".join(_SIGNS.get(word, "?") for word in words)
    before = ""
    while text != before:
        before = text
        text = re.sub(r"\(([TF])\)", r"\1", text)
        text = re.sub(r"[TF]&[TF]", lambda match: "T" if match[0] == "T&T" else "F", text)
        text = re.sub(r"(?<!&)[TF]\|[TF](?!&)", lambda match: "FT"["T" in match[0]], text)
    if text not in ("T", "F"):
        raise ValueError(f"`{marker}` is not an environment marker")
    return text == "T"


def _holds(match: re.Match[str], values: Values | None) -> bool:
    """Return whether a comparison holds."""
    operator = " ".join(match["operator"].split())
    variable = match["variable"] or match["last"]
    text = (match["before"] or match["after"])[1:-1]
    if variable not in _VARIABLES:
        raise ValueError(f"`{variable}` is not a variable of environment markers")
    if values is None:
        return True
    value = values.get(variable, "")
    if match["before"]:
        operator = _MIRRORED.get(operator, operator)
    if not isinstance(value, str):  # `extra == 'x'` and `'x' in extras`
        return (text in value or normal(text) in value) == (operator in ("==", "in"))
    if operator.endswith("in"):
        is_in = text in value if match["before"] else value in text
        return is_in == (operator == "in")
    if variable in _OF_VERSIONS and _is_clause(operator, text):
        return are_met([(operator, text)], value)
    return bool(_COMPARE.get(operator, eq)(value, text))
