"""What differs between an original and the job adopted from it: the fields of the requests, and the
files of the code."""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

from cloudtrain.code.data import MOST_FILES, files_below
from cloudtrain.code.files import escape_path
from cloudtrain.code.ignore import IGNORE_FILE, INCLUDE_FILE, ignore_line
from cloudtrain.code.secret_names import secret_name
from cloudtrain.code.walk import Walk, walk
from cloudtrain.documents.archives import unpack
from cloudtrain.errors import CloudtrainError, dotted, join_names
from cloudtrain.plans.comparison import ABSENT_TEXT, ValuePath, paths_that_differ
from cloudtrain.system.plugins import part
from cloudtrain.targets.adoption import Original
from cloudtrain.targets.contract import CodeLister
from cloudtrain.targets.registry import target_of


@dataclass(frozen=True)
class FieldDifference:
    """One field, or one set of code files, in which the adopted job differs from the original."""

    path: str
    original: Any
    adopted: Any
    reason: str


def differences_of(
    theirs: object,
    ours: object,
    reason_of: Callable[[ValuePath], str],
    lost: Mapping[str, str],
) -> list[FieldDifference]:
    """Return the fields in which two requests differ, and what no request can express."""
    differences = []
    for path, original, adopted in paths_that_differ(theirs, ours):
        reason = reason_of(path)
        differences.append(FieldDifference(shown_path(path), original, adopted, reason))
    for name, reason in lost.items():
        differences.append(FieldDifference(name, "", ABSENT_TEXT, reason))
    return differences


def shown_path(path: ValuePath) -> str:
    """Return a path as one name: `resources.gpu`."""
    return dotted(path) or "(the whole request)"


def code_differences(original: Original, build: str | None = None) -> list[FieldDifference]:
    """Return what differs between the code that the original sends and the bundle of the adopted
    job, and between the contents of `build`, the folder of the job's Dockerfile; nothing of a
    folder that is not on this machine."""
    differences: list[FieldDifference] = []
    try:
        if build is not None and os.path.isdir(build):
            differences += _differences("environment.build", _sent(original, build), walk(build))

        if original.code is not None:
            with TemporaryDirectory() as folder:
                unpack(original.code, Path(folder))
                names = [file.path for file in files_below(Path(folder))]
                differences += _differences("source_dir", names, walk(folder))
        elif original.source is not None:
            place = os.path.abspath(os.path.join(original.folder or ".", original.source))
            if os.path.isfile(place):
                folder, name = os.path.split(place)
                differences += _differences("source_dir", [name], walk(folder))
            elif os.path.isdir(place):
                differences += _differences("source_dir", _sent(original, place), walk(place))
    except (CloudtrainError, OSError, EOFError, ValueError) as error:
        why = f"the code cannot be compared: {escape_path(str(error))}"
        differences.append(FieldDifference("source_dir", "", ABSENT_TEXT, why))
    return differences


def _sent(original: Original, place: str) -> Iterator[str]:
    """Yield the paths below a folder of the files that the original's tool sends."""
    sent_files = part(target_of(original.target), CodeLister)
    if sent_files is not None:
        return islice(sent_files(original, Path(place)), MOST_FILES)
    return (file.path for file in islice(files_below(Path(place)), MOST_FILES))


def _differences(field: str, sent: Iterable[str], bundle: Walk) -> Iterator[FieldDifference]:
    """Compare the names of the files that the original sends with those of the bundle. cloudtrain's
    own files and Python's caches do not count."""
    theirs = {path for path in sent if not _is_ours(path)}
    ours = {file.path for file in bundle.files if not _is_ours(file.path)}
    others = theirs - ours - bundle.links.keys()
    missing = {path for path in others if _top(path, bundle.links) == path}
    if missing:
        ignored = {item.path for item in bundle.ignored}
        tops = sorted({_top(path, ignored) for path in missing})
        names = join_names([*map(escape_path, tops)])
        remedy = f"a line such as `!{ignore_line(tops[0])}` in `{IGNORE_FILE}` adds a file"
        if secret_name(tops[0]) is not None:
            remedy = "cloudtrain sends no file of secrets: name them in `environment.secrets`"
        reason = f"only the original sends {names}; {remedy}"
        count = f"files: {len(missing)}"
        yield FieldDifference(f"{field} (left out)", count, ABSENT_TEXT, reason)

    added = sorted(ours - theirs)
    if added:
        names = join_names([*map(escape_path, added)])
        line = f"a line such as `{ignore_line(added[0])}` in `{IGNORE_FILE}` leaves a file out"
        reason = f"only the adopted job sends {names}; {line}"
        count = f"files: {len(added)}"
        yield FieldDifference(f"{field} (added)", ABSENT_TEXT, count, reason)


def _is_ours(path: str) -> bool:
    return path in (IGNORE_FILE, INCLUDE_FILE) or "__pycache__" in path.split("/")


def _top(path: str, places: Container[str]) -> str:
    """Return the first folder above the path that is one of `places`; the path if there is none."""
    for parent in reversed(PurePosixPath(path).parents):
        if str(parent) in places:
            return f"{parent}/"
    return path
