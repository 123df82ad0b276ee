"""The jobs that a script creates with an SDK, and the local folder of their code."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from cloudtrain.adoption.running import LEFT_OUT, outside_folders, run_script
from cloudtrain.core.adoption import Original
from cloudtrain.documents.archives import files_of
from cloudtrain.errors import UsageError
from cloudtrain.targets.registry import target_of

_DEEP = 3
"""Maximum depth below the script's folder in which the job's code is searched."""

_MOST_FOLDERS = 2000


def originals_of_script(
    script: Path, arguments: Sequence[str], *, python: str | None, time_limit: float
) -> list[Original]:
    """Run a script until its first call that creates jobs, and return these jobs.

    Raises:
        UsageError: the script creates no job.
    """
    captured = run_script(script, arguments, python=python, time_limit=time_limit)
    adopter = target_of(captured.target).adopter()
    assert adopter is not None, "the hook was the adopter's own"
    found, archive = adopter.captured(captured.record, captured.uploads)
    if not found:
        hint = "cloudtrain adopts training jobs"
        raise UsageError(f"the first job that `{script}` creates is not a training job", hint=hint, code="CT981")
    folder, failed = script.absolute().parent, captured.failed
    places = [*_folders(folder), *outside_folders(script)]
    source = _source_in(folder, places, archive) if archive is not None else None
    return [
        replace(
            original,
            kind=f"the request that {script.name} sends" + (f"; failed: {', '.join(failed)}" if failed else ""),
            folder=str(folder),
            source=source,
            code=archive if source is None else None,
        )
        for original in found
    ]


def _source_in(folder: Path, places: Sequence[Path], archive: bytes) -> str | None:
    """Return the path, relative to `folder`, from which the code in `archive` was packed: the first folder in `places`
    that has exactly the archive's files. If the archive has one file and the folder has more, return the path of that
    file in the folder. Return None if no folder has the archive's files."""
    try:
        files = dict(files_of(archive))
    except (tarfile.TarError, OSError, EOFError, ValueError):
        return None
    if not files:
        return None
    for place in places:
        if all(_is_file(place / name, content) for name, content in files.items()):
            if set(_names_below(place)) <= files.keys():
                return os.path.relpath(place, folder)
            if len(files) == 1:
                return os.path.relpath(place / next(iter(files)), folder)
    return None


def _folders(folder: Path) -> Iterator[Path]:
    """Yield the folder and its subfolders, the nearest first."""
    waiting = [(folder, 0)]
    for place, depth in waiting:
        yield place
        if depth < _DEEP and len(waiting) < _MOST_FOLDERS:
            with os.scandir(place) as entries:
                names = sorted(e.name for e in entries if e.is_dir(follow_symlinks=False) and e.name[0] != ".")
            waiting += [(place / name, depth + 1) for name in names]


def _is_file(path: Path, content: bytes) -> bool:
    try:
        return path.is_file() and path.stat().st_size == len(content) and path.read_bytes() == content
    except OSError:
        return False


def _names_below(folder: Path) -> Iterator[str]:
    """Yield the paths of the files below a folder, relative to it. Files that are not copied for the script's run,
    such as hidden files, are left out."""
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in LEFT_OUT]
        for name in names:
            if name.startswith(".") or name.endswith(".pyc"):
                continue
            yield os.path.normpath(os.path.relpath(os.path.join(place, name), folder))  # noqa: PTH118
