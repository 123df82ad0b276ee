"""Reads conda files, which a service builds minutes after a job was accepted.

https://docs.conda.io/projects/conda/en/stable/user-guide/tasks/manage-environments.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from cloudtrain.documents.document import Unreadable, read_document
from cloudtrain.errors import JobError, Problem, ValuePath
from cloudtrain.job.pip_file import PipFile
from cloudtrain.job.requirements import shown, unread

_KEYS: dict[object, type] = {
    "name": object,
    "channels": list,
    "dependencies": list,
    "prefix": str,
    "variables": dict,
    "platforms": list,
}
"""The keys, and what each holds."""

_CLAUSE = r"(?:(?:[=!<>~]=|[=<>])[ \t]*)?[\w!*+-]+(?:\.[\w*+-]+)*"

_PACKAGE = (
    r"(?:(?:[\w./-]|:(?!:))+::)?[A-Za-z0-9_][\w.-]*(?:\[[^\]=]+=[^\]]*\])?"
    rf"(?:(?:[ \t]+|(?=[=!<>~])){_CLAUSE}(?:[ \t]*[,|][ \t]*{_CLAUSE})*(?:[ \t=]+[\w.*+<>=-]+)?)?"
)
"""A package of conda, such as `conda-forge::numpy=1.26.*=py312_0` or `numpy >=1.26,<3`: a channel,
a name, versions and a build."""

_HINT = (
    "write `channels: [conda-forge]` and `dependencies: [python=3.12, pip: [numpy]]`; pip gets no "
    "other file of the code"
)


def check_conda(file: str, text: str) -> None:
    """Raise JobError with all that conda cannot read in a file."""
    try:
        content = read_document(text, "yaml")
    except Unreadable as error:
        line = error.problem.line or 1
        message = f"line {line} of `{file}`: {error.problem.message}"
        raise unread(message, error.problem.hint or _HINT, "conda_file") from None

    problems = []
    for path, message in _faults(content.data):
        place = content.positions.of(path)
        line = place.line if place else 1  # an empty file has no position
        message = f"line {line} of `{file}` {message}"
        problems.append(Problem(("environment", "conda_file"), message, _HINT, code="CT056"))
    if problems:
        raise JobError(problems)


def _faults(data: object) -> Iterator[tuple[ValuePath, str]]:
    """Yield the path and the fault of each value that conda cannot read."""
    if not isinstance(data, dict) or not isinstance(data.get("dependencies"), list):
        yield (), "has no list `dependencies`"
        return
    for key, value in data.items():
        if key not in _KEYS:
            yield (key,), f"has a key that conda does not read: `{shown(str(key))}`"
        elif value is not None and not isinstance(value, _KEYS[key]):
            yield (key,), f"has a `{key}` of another type than conda reads"

    words: dict[ValuePath, object] = {("name",): data.get("name") or "none"}
    channels = data.get("channels")
    for index, channel in enumerate(channels if isinstance(channels, list) else ()):
        words["channels", index] = channel
    for path, word in words.items():
        if not isinstance(word, str) or re.fullmatch("[!-~]+", word) is None:
            yield path, f"is not one word: `{shown(str(word))}`"

    for index, item in enumerate(data["dependencies"]):
        path = ("dependencies", index)
        if isinstance(item, dict) and isinstance(item.get("pip"), list) and len(item) == 1:
            for number, wanted in enumerate(item["pip"]):
                if not _is_for_pip(wanted):
                    yield (*path, "pip", number), f"is nothing for pip: `{shown(str(wanted))}`"
        elif not isinstance(item, str) or re.fullmatch(_PACKAGE, item, re.ASCII) is None:
            yield path, f"is not a package of conda: `{shown(str(item))}`"


def _is_for_pip(wanted: object) -> bool:
    """Return whether an item of the list `pip` is one line that names no other file."""
    if not isinstance(wanted, str) or len(wanted.splitlines()) != 1:
        return False
    found = PipFile("pip", {"pip": wanted}.get)
    return not found.problems and not found.folders and not any(line.path for line in found.lines)
