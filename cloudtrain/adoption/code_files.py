"""Compares the files of a job's code: those that the original's tool sends, and those of the
bundle."""

from __future__ import annotations

import os
from collections.abc import Container, Iterable
from itertools import islice
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from cloudtrain.code.data import MOST_FILES
from cloudtrain.code.files import escape_path
from cloudtrain.code.ignore import IGNORE_FILE, INCLUDE_FILE, ignore_line
from cloudtrain.code.secret_names import secret_name
from cloudtrain.code.walk import Walk, walk
from cloudtrain.documents.archives import files_of, unpack
from cloudtrain.errors import CloudtrainError
from cloudtrain.plans.comparison import ABSENT_TEXT
from cloudtrain.targets.adoption import Adopter, Original

_NAMED = 5
"""The most files that a difference names."""


CodeDifference = tuple[str, str, str, str]
"""The name of the field, what the original and what the adopted job sends, and the reason."""


def code_differences(
    original: Original, adopter: Adopter, build: str | None = None
) -> list[CodeDifference]:
    """Return what differs between the code that the original sends and the bundle of the adopted
    job, and between the contents of `build`, the folder of the job's Dockerfile; nothing of a
    folder that is not on this machine."""
    differences = []
    try:
        if build is not None and os.path.isdir(build):
            sent = adopter.sent_files(original, Path(build))
            differences += _differences("environment.build", islice(sent, MOST_FILES), walk(build))

        place = os.path.abspath(os.path.join(original.folder or ".", original.source or "."))
        if original.code is not None:
            names = [name for name, _ in files_of(original.code)]
            with TemporaryDirectory() as folder:
                unpack(original.code, Path(folder))
                differences += _differences("source_dir", names, walk(folder))
        elif original.source is not None and os.path.isfile(place):
            bundle = walk(os.path.dirname(place))
            differences += _differences("source_dir", [os.path.basename(place)], bundle)
        elif original.source is not None and os.path.isdir(place):
            sent = adopter.sent_files(original, Path(place))
            differences += _differences("source_dir", islice(sent, MOST_FILES), walk(place))
    except (CloudtrainError, OSError, EOFError, ValueError) as error:
        why = f"the code cannot be compared: {escape_path(str(error))}"
        differences.append(("source_dir", "", ABSENT_TEXT, why))
    return differences


def _differences(field: str, sent: Iterable[str], bundle: Walk) -> list[CodeDifference]:
    """Compare the names of the files that the original sends with those of the bundle. cloudtrain's
    own files and Python's caches do not count."""
    theirs = {path for path in sent if not _is_ours(path)}
    ours = {file.path for file in bundle.files if not _is_ours(file.path)}
    differences = []

    others = theirs - ours - bundle.links.keys()
    missing = {path for path in others if _top(path, bundle.links) == path}
    if missing:
        ignored = {item.path for item in bundle.ignored}
        tops = {_top(path, ignored) for path in missing}
        reason = f"only the original sends {_named(tops)}; {_remedy(min(tops))}"
        differences.append((f"{field} (left out)", f"files: {len(missing)}", ABSENT_TEXT, reason))

    added = ours - theirs
    if added:
        line = f"a line such as `{ignore_line(min(added))}` in `{IGNORE_FILE}` leaves a file out"
        reason = f"only the adopted job sends {_named(added)}; {line}"
        differences.append((f"{field} (added)", ABSENT_TEXT, f"files: {len(added)}", reason))
    return differences


def _is_ours(path: str) -> bool:
    return path in (IGNORE_FILE, INCLUDE_FILE) or "__pycache__" in path.split("/")


def _top(path: str, places: Container[str]) -> str:
    """Return the first folder above the path that is one of `places`; the path if there is none."""
    for parent in reversed(PurePosixPath(path).parents):
        if str(parent) in places:
            return f"{parent}/"
    return path


def _named(paths: Iterable[str]) -> str:
    """Return the first paths, and how many more there are."""
    names = [f"`{escape_path(name)}`" for name in sorted(paths)]
    if len(names) > _NAMED:
        names[_NAMED:] = [f"{len(names) - _NAMED} more"]
    return ", ".join(names)


def _remedy(path: str) -> str:
    if secret_name(path) is not None:
        return "cloudtrain sends no file of secrets: name them in `environment.secrets`"
    return f"a line such as `!{ignore_line(path)}` in `{IGNORE_FILE}` adds a file"
