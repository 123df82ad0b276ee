"""Find which requirements in a file an interpreter lacks, without network access.

cloudtrain asks the interpreter once for the installed versions of all requirements. For its own interpreter it does
this in the current process, for any other in a subprocess. A requirement that this module cannot read (a URL without a
name, an unusual marker, a version that is not numeric) counts as installed.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from cloudtrain.targets.local.rules import interpreter

_PATIENCE = 10.0
"""Seconds to wait for the answer of another interpreter."""

_DEEPEST = 8
"""Maximum depth of requirements files that include others."""

_NAME = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^\]]*\])?\s*(.*)")
_CLAUSE = re.compile(r"(===|==|!=|>=|<=|~=|>|<)\s*([^\s,;]+)")
_VERSION = re.compile(r"v?([0-9]+(?:\.[0-9]+)*)(\.\*)?(.*)")
_COMPARISON = re.compile(r"([a-z_]+)\s*(==|!=|>=|<=|>|<)\s*['\"]([^'\"]*)['\"]")


class Requirement(NamedTuple):
    """A line of a requirements file, such as `numpy >=1.26,<3 ; python_version < '3.13'`."""

    name: str
    versions: str
    marker: str

    def __str__(self) -> str:
        return f"{self.name}{self.versions}"


class Missing(NamedTuple):
    """A requirement that is not met. `installed` is the installed version; None if the package is not installed."""

    requirement: Requirement
    installed: str | None


def requirements_in(file: str, read: Callable[[str], str | None], deepest: int = _DEEPEST) -> Iterator[Requirement]:
    """Yield the requirements of `file` and of the files that it includes, nested up to `deepest` levels. `read`
    returns a file's text, or None if the file cannot be read."""
    text = read(file)
    for line in (text or "").replace("\\\n", " ").splitlines():
        line = re.sub(r"(^|\s)#.*", "", line).strip()
        option = re.match(r"(?:-r|--requirement)[\s=]*(\S+)", line)
        if option is not None:
            if deepest:
                yield from requirements_in(os.path.normpath(Path(file).parent / option[1]), read, deepest - 1)
            continue
        wanted, _, marker = re.sub(r"\s--?\w.*", "", line).partition(";")
        match = _NAME.fullmatch(wanted.strip())
        if match is None or (rest := match[2].strip().removeprefix("(").removesuffix(")"))[:1] not in (
            "",
            "@",
            *"=<>!~",
        ):
            continue  # an option, an address or a path
        yield Requirement(match[1], "" if rest.startswith("@") else rest.replace(" ", ""), marker.strip())


def missing_from(python: str, requirements: Iterable[Requirement]) -> list[Missing]:
    """Return the requirements that the interpreter `python` lacks or has in an unsuitable version. Return an empty list
    if the interpreter does not answer."""
    wanted = list(dict.fromkeys(requirements))
    answer = _ask(python, sorted({requirement.name for requirement in wanted})) if wanted else None
    if answer is None:
        return []
    versions, machine = answer
    return [
        Missing(requirement, versions[requirement.name])
        for requirement in wanted
        if _applies(requirement.marker, machine) and not _is_met(requirement.versions, versions[requirement.name])
    ]


def _ask(python: str, names: list[str]) -> tuple[dict[str, str | None], dict[str, str]] | None:
    if python == sys.executable:
        return interpreter.versions_of(names), interpreter.machine()
    try:
        # Not isolated, because the job also sees PYTHONPATH and the user's own packages.
        asked = subprocess.run(
            [python, interpreter.__file__, json.dumps(names)],
            stdin=subprocess.DEVNULL, capture_output=True, timeout=_PATIENCE, check=True,
        )  # fmt: skip
        versions, machine = json.loads(asked.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):  # no Python, or a broken one
        return None
    return versions, machine


def _applies(marker: str, machine: Mapping[str, str]) -> bool:
    """Return whether an environment marker applies; an empty marker does. Markers that combine `and` with `or`, or that
    this function cannot read, count as not applying."""
    joined = re.split(r"\s+(and|or)\s+", marker) if marker else []
    words = {*joined[1::2]}
    results = []
    for text in joined[::2]:
        match = _COMPARISON.fullmatch(text.strip())
        if match is None or match[1] not in machine or len(words) > 1:
            return False
        left, operator, right = machine[match[1]], match[2], match[3]
        if operator in ("==", "!="):
            results.append((left == right) == (operator == "=="))
        else:
            results.append(_is_met(operator + right, left))
    return any(results) if words == {"or"} else all(results)


def _is_met(versions: str, installed: str | None) -> bool:
    if installed is None:
        return False
    return all(_clause_is_met(match[1], match[2], installed) for match in _CLAUSE.finditer(versions))


def _clause_is_met(operator: str, wanted: str, installed: str) -> bool:
    """Return whether the installed version meets a clause such as `>=1.26`. Only release numbers
    are compared. If a suffix such as `rc1` would decide, the clause counts as met."""
    have, want = _VERSION.fullmatch(installed.partition("+")[0]), _VERSION.fullmatch(wanted.partition("+")[0])
    if operator == "===" or have is None or want is None:
        return True
    here, there = [int(part) for part in have[1].split(".")], [int(part) for part in want[1].split(".")]
    if want[2]:  # ==1.2.*
        return (here[: len(there)] == there) == (operator == "==")
    if operator == "~=":
        return here >= there and here[: len(there) - 1] == there[:-1]
    length = max(len(here), len(there))
    here, there = (part + [0] * (length - len(part)) for part in (here, there))
    if here == there and (have[3] or want[3]):
        return True
    order = (here > there) - (here < there)
    return order in {"==": (0,), "!=": (-1, 1), ">=": (0, 1), "<=": (-1, 0), ">": (1,), "<": (-1,)}[operator]
