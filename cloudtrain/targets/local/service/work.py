"""Files that a script wrote into its working folder, beside the code: `out/last.pt`, for example.

The working folder is the code folder, so files newer than the unpacked code are the script's. A file's change time,
which programs cannot set, is compared with that of a file made right after unpacking.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from cloudtrain.launch.specification import LaunchSpecification

NAME = "work"
"""The name under which these files are downloaded."""

_NOT_RESULTS = frozenset(("__pycache__", ".ipynb_checkpoints", ".mypy_cache", ".pytest_cache", ".ruff_cache"))


def working_files(spec: LaunchSpecification, unpacked: Path) -> dict[str, Path]:
    """Return new and changed files by their names below the working folder. Where each emulated host has such a folder,
    the last one counts. `unpacked` is the file that was made right after unpacking; without it the result is empty."""
    code = spec.code
    folders = [folder for folder in (code.directory, *(code.copies or ())) if folder is not None]
    try:
        since = unpacked.stat().st_ctime_ns
    except FileNotFoundError:  # nothing was unpacked yet, or by an earlier version
        return {}
    places = {str(place) for found in spec.downloads().values() for place in found}
    return {name: file for folder in folders for name, file in _newer(folder, since, places)}


def _newer(root: str, since: int, places: Iterable[str]) -> Iterator[tuple[str, Path]]:
    """Yield the newer files. Folders that are places themselves are skipped, and so are links to folders, which can
    lead anywhere."""
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in _NOT_RESULTS and f"{folder}/{name}" not in places)
        for name in sorted(names):
            file = Path(folder, name)
            try:
                is_new = file.lstat().st_ctime_ns > since and stat.S_ISREG(file.stat().st_mode)
            except OSError:  # removed meanwhile, or a link to nowhere
                continue
            if is_new:
                yield file.relative_to(root).as_posix(), file
