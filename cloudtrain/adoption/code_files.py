"""Compares the files of a job's code: those that the original's tool sends, and those of the
bundle."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from cloudtrain.code.data import MOST_FILES
from cloudtrain.code.files import Ignored, escape_path
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


def code_differences(original: Original, adopter: Adopter) -> list[CodeDifference]:
    """Return what differs between the code that the original sends and the bundle of the adopted
    job; nothing if the code is not on this machine."""
    try:
        if original.code is not None:
            names = [name for name, _ in files_of(original.code)]
            with TemporaryDirectory() as folder:
                unpack(original.code, Path(folder))
                return _differences(names, walk(folder))

        if original.source is None:
            return []
        place = os.path.abspath(os.path.join(original.folder or ".", original.source))
        if os.path.isfile(place):
            return _differences([os.path.basename(place)], walk(os.path.dirname(place)))
        if os.path.isdir(place):
            sent = adopter.sent_files(original, Path(place))
            return _differences(islice(sent, MOST_FILES), walk(place))
    except CloudtrainError as error:
        why = error.message
    except (OSError, EOFError, ValueError) as error:
        why = escape_path(str(error))
    else:
        return []
    return [("source_dir", "", ABSENT_TEXT, f"the code cannot be compared: {why}")]


def _differences(sent: Iterable[str], bundle: Walk) -> list[CodeDifference]:
    """Compare the names of the files that the original sends with those of the bundle. cloudtrain's
    own files and Python's caches do not count."""
    theirs = {path for path in sent if not _is_ours(path)}
    ours = {file.path for file in bundle.files if not _is_ours(file.path)}
    differences = []

    missing = [path for path in theirs - ours if not _is_below(path, bundle.links)]
    if missing:
        names = _named(_left_out(missing, bundle.ignored))
        reason = f"only the original sends {names}; {_remedy(min(missing))}"
        differences.append(("source_dir (left out)", _counted(missing), ABSENT_TEXT, reason))

    added = ours - theirs
    if added:
        line = f"a line such as `{ignore_line(min(added))}` in `{IGNORE_FILE}` leaves a file out"
        reason = f"only the adopted job sends {_named(added)}; {line}"
        differences.append(("source_dir (added)", ABSENT_TEXT, _counted(added), reason))
    return differences


def _counted(paths: Collection[str]) -> str:
    return "1 file" if len(paths) == 1 else f"{len(paths)} files"


def _is_ours(path: str) -> bool:
    is_own = path in (IGNORE_FILE, INCLUDE_FILE)
    return is_own or "__pycache__" in path.split("/")


def _is_below(path: str, places: Iterable[str]) -> bool:
    return any(path == place or path.startswith(f"{place}/") for place in places)


def _left_out(missing: Iterable[str], ignored: Iterable[Ignored]) -> Iterator[str]:
    """Yield the missing files, with one name for all files of an ignored folder."""
    folders = {item.path for item in ignored}
    for path in missing:
        parts = path.split("/")
        heads = ["/".join(parts[:depth]) for depth in range(1, len(parts))]
        top = next((head for head in heads if head in folders), None)
        yield path if top is None else f"{top}/"


def _named(paths: Iterable[str]) -> str:
    """Return the first paths, and how many more there are."""
    names = sorted(set(paths))
    shown = ", ".join(f"`{escape_path(name)}`" for name in names[:_NAMED])
    more = len(names) - _NAMED
    return f"{shown} and {more} more" if more > 0 else shown


def _remedy(path: str) -> str:
    if secret_name(path) is not None:
        return "cloudtrain sends no file of secrets: name them in `environment.secrets`"
    if path.endswith("/"):
        return "a bundle holds no empty folders: let the script make them"
    return f"a line such as `!{ignore_line(path)}` in `{IGNORE_FILE}` adds a file"
