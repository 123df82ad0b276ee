"""Files from outside the source folder, listed in `.cloudtraininclude` at the folder's root.

Each line is the path of a file or folder, relative to the root. The item appears under its own name at the root of the
bundle, like an item of `dependencies` in the SageMaker SDK. Ignore rules, limits and the search for secrets apply as
usual.
"""

from __future__ import annotations

import codecs
import os
import stat
from collections.abc import Iterable
from typing import NamedTuple

from cloudtrain.bundle.entries import escape_path
from cloudtrain.bundle.ignore import INCLUDE_FILE
from cloudtrain.documents.reading import read_bytes
from cloudtrain.errors import Problem
from cloudtrain.system.paths import why_missing


class Included(NamedTuple):
    """A file or folder from outside the source folder, with the methods of an `os.DirEntry`. Links in `path`
    are already resolved."""

    path: str
    status: os.stat_result

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:  # noqa: ARG002
        return stat.S_ISDIR(self.status.st_mode)

    def is_symlink(self) -> bool:
        return False

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:  # noqa: ARG002
        return self.status


def includes(root: str, own: Iterable[str]) -> tuple[dict[str, Included], list[Problem]]:
    """Return the files and folders that the include file lists, by their names in the bundle, and the problems with
    invalid lines.

    Args:
        root: the source folder, which contains the include file.
        own: the names that the source folder itself has at its root. No listed item may have one of them.

    Raises:
        FileNotFoundError: the include file or a listed item was removed meanwhile.
    """
    try:
        content = read_bytes(f"{root}/{INCLUDE_FILE}")
    except OSError as error:
        if not os.path.lexists(f"{root}/{INCLUDE_FILE}"):  # removed since the folder was listed
            raise
        message = f"`{INCLUDE_FILE}` cannot be read: {error.strerror}"
        return {}, [_problem(message, "make it a plain file that you may read, or remove it")]
    found: dict[str, Included] = {}
    problems = []
    taken = dict.fromkeys(own, "`source_dir`")
    for line, text in enumerate(map(os.fsdecode, content.removeprefix(codecs.BOM_UTF8).split(b"\n")), 1):
        path = text.strip()
        if not path or path.startswith("#"):
            continue
        place = os.path.join(root, path)  # noqa: PTH118
        name = os.path.basename(os.path.normpath(place))  # noqa: PTH119 - `..` has the name of its folder
        fault = why_missing(place) or (None if name else "has no name for the bundle")
        if fault is not None:
            hint = "write the path of a file or folder, relative to `source_dir`, or remove the line"
            problems.append(_problem(f"`{escape_path(path)}` {fault}", hint, line))
        elif name in taken:
            message = f"the bundle would have `{escape_path(name)}` from {taken[name]} and from `{escape_path(path)}`"
            problems.append(_problem(message, "remove the line, or rename one of the two", line))
        else:
            real = os.path.realpath(place)
            found[name], taken[name] = Included(real, os.stat(real)), f"line {line}"  # noqa: PTH116
    return found, problems


def _problem(message: str, hint: str, line: int | None = None) -> Problem:
    if line is None:
        return Problem(("source_dir",), message, hint, code="CT055")
    return Problem(("source_dir",), message, hint, INCLUDE_FILE, line, 1, code="CT055")
