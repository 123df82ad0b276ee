"""Reads conda files, which a service builds minutes after a job was accepted.

https://docs.conda.io/projects/conda/en/stable/user-guide/tasks/manage-environments.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from cloudtrain.documents.document import Content, Unreadable, ValuePath, read_document
from cloudtrain.errors import JobError, Problem
from cloudtrain.job.pip_file import PipFile
from cloudtrain.job.requirements import shown

FIELD = ("environment", "conda_file")

_KEYS = frozenset(("name", "channels", "dependencies", "prefix", "variables", "platforms"))

_PACKAGE = re.compile(
    r"(?:[\w./:-]+::)?[A-Za-z0-9_][\w.-]*(?:\[[^\]]*\])?"
    r"(?:[ \t]*(?:[=<>!~]=?=?[ \t]*|[ \t])[\w.*+!][\w.*+!|,=<>~ \t]*)?",
    re.ASCII,
)
"""A package of conda, such as `conda-forge::numpy=1.26.*=py312_0` or `numpy >=1.26,<3`."""


def check_conda(file: str, text: str) -> None:
    """Raise JobError with all that conda cannot read in a file."""
    try:
        content = read_document(text, "yaml")
    except Unreadable as error:
        place = f"line {error.problem.line} of `{file}`" if error.problem.line else f"`{file}`"
        message = f"{place}: {error.problem.message}"
        raise JobError([Problem(FIELD, message, error.problem.hint, code="CT056")]) from None

    problems = []
    for path, message, hint in _faults(content.data):
        line = _line_of(content, path)
        problems.append(Problem(FIELD, f"line {line} of `{file}` {message}", hint, code="CT056"))
    if problems:
        raise JobError(problems)


def _line_of(content: Content, path: ValuePath) -> int:
    place = content.positions.of(path)
    return place.line if place else 1


def _faults(data: object) -> Iterator[tuple[ValuePath, str, str]]:
    """Yield the path of each value that conda cannot read, with a message and a hint."""
    packages = data.get("dependencies") if isinstance(data, dict) else None
    if not isinstance(data, dict) or not isinstance(packages, list):
        yield (), "has no list `dependencies`", "write for example `dependencies: [python=3.12]`"
        return
    for key in data:
        if key not in _KEYS:
            hint = f"conda reads {', '.join(f'`{name}`' for name in sorted(_KEYS))}"
            yield (key,), f"has a key that conda does not read: `{shown(key)}`", hint
    for index, item in enumerate(packages):
        path = ("dependencies", index)
        if isinstance(item, dict) and [*item] == ["pip"] and isinstance(item["pip"], list):
            yield from _faults_of_pip(item["pip"])
        elif not isinstance(item, str) or _PACKAGE.fullmatch(item) is None:
            hint = "write for example `numpy=1.26`, or `pip: [numpy]` for packages of pip"
            yield path, f"is not a package of conda: `{shown(str(item))}`", hint


def _faults_of_pip(items: list[object]) -> Iterator[tuple[ValuePath, str, str]]:
    """Yield what pip cannot read of its list, or cannot install, because no file comes with it."""
    for item in items:
        wanted = PipFile("pip", {"pip": str(item)}.get)
        faults = [problem.message.partition(" of `pip` ")[2] for problem in wanted.problems]
        faults += [f"names `{line.path}`" for line in wanted.lines if line.path]
        for fault in faults:
            hint = "name packages, addresses and options: no other file is sent to the build"
            yield ("dependencies",), f"has an item of `pip` that {fault}", hint
