"""What a script wrote into its working folder, beside the code: `out/last.pt` of one that knows nothing of folders.

Its working folder is that of the code, so the files that are newer than the unpacked code are the script's. The change
time of a file counts, which no program can set, against that of a file that was made when the code was there.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from cloudtrain.launch.specification import LaunchSpecification

NAME = "work"
"""Under which it is downloaded."""

_NOT_RESULTS = frozenset(("__pycache__", ".ipynb_checkpoints", ".mypy_cache", ".pytest_cache", ".ruff_cache"))


def working_files(spec: LaunchSpecification, unpacked: Path) -> dict[str, Path]:
    """The files that are new or changed, by their names below the working folder. Where emulated hosts have one each,
    the last one counts. `unpacked` is the file that was made when the code was there; empty without it."""
    code = spec.code
    folders = [folder for folder in (code.directory, *(code.copies or ())) if folder is not None]
    try:
        since = unpacked.stat().st_ctime_ns
    except FileNotFoundError:  # nothing was unpacked yet, or by an earlier version
        return {}
    places = {str(place) for found in spec.downloads().values() for place in found}
    return {name: file for folder in folders for name, file in _newer(folder, since, places)}


def _newer(root: str, since: int, places: Iterable[str]) -> Iterator[tuple[str, Path]]:
    """Folders that are places of their own are left out, and links to folders, behind which anything may be."""
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
