"""Compares the files of a job's code: those that the original's tool sends, and those of the
bundle."""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Iterator
from itertools import islice
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from cloudtrain.code.data import MOST_FILES, files_below
from cloudtrain.code.files import escape_path
from cloudtrain.code.ignore import IGNORE_FILE, INCLUDE_FILE, ignore_line
from cloudtrain.code.secret_names import secret_name
from cloudtrain.code.walk import Walk, walk
from cloudtrain.documents.archives import unpack
from cloudtrain.errors import CloudtrainError, join_names
from cloudtrain.plans.comparison import ABSENT_TEXT
from cloudtrain.system.plugins import part
from cloudtrain.targets.adoption import Original
from cloudtrain.targets.contract import CodeLister
from cloudtrain.targets.registry import target_of

_NAMED = 5
"""The most files that a difference names."""


CodeDifference = tuple[str, str, str, str]
"""The name of the field, what the original and what the adopted job sends, and the reason."""


def code_differences(original: Original, build: str | None = None) -> list[CodeDifference]:
    """Return what differs between the code that the original sends and the bundle of the adopted
    job, and between the contents of `build`, the folder of the job's Dockerfile; nothing of a
    folder that is not on this machine."""
    differences = []
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
        differences.append(("source_dir", "", ABSENT_TEXT, why))
    return differences


def _sent(original: Original, place: str) -> Iterator[str]:
    """Yield the paths below a folder of the files that the original's tool sends."""
    sent_files = part(target_of(original.target), CodeLister)
    if sent_files is not None:
        return islice(sent_files(original, Path(place)), MOST_FILES)
    return (file.path for file in islice(files_below(Path(place)), MOST_FILES))


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
        tops = sorted({_top(path, ignored) for path in missing})
        names = join_names([*map(escape_path, tops)], _NAMED)
        reason = f"only the original sends {names}; {_remedy(tops[0])}"
        differences.append((f"{field} (left out)", f"files: {len(missing)}", ABSENT_TEXT, reason))

    added = sorted(ours - theirs)
    if added:
        names = join_names([*map(escape_path, added)], _NAMED)
        line = f"a line such as `{ignore_line(added[0])}` in `{IGNORE_FILE}` leaves a file out"
        reason = f"only the adopted job sends {names}; {line}"
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


def _remedy(path: str) -> str:
    if secret_name(path) is not None:
        return "cloudtrain sends no file of secrets: name them in `environment.secrets`"
    return f"a line such as `!{ignore_line(path)}` in `{IGNORE_FILE}` adds a file"
