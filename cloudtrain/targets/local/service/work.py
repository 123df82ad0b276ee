"""The files that a script wrote into its working folder, such as `out/last.pt`.

The working folder is the code folder, so files newer than the unpacked code come from the script. This module compares
the change time of each file, which programs cannot set, with the change time of the file `unpacked`, which was created
after unpacking.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from cloudtrain.launch.specification import LaunchSpecification

NAME = "work"
"""The name of these files for `cloudtrain download`."""

_NOT_RESULTS = frozenset(("__pycache__", ".ipynb_checkpoints", ".mypy_cache", ".pytest_cache", ".ruff_cache"))


def working_files(spec: LaunchSpecification, unpacked: Path) -> dict[str, Path]:
    """Map the path of each new or changed file, relative to the working folder, to the file. If several emulated hosts
    have a file with the same path, the last host's file is used. Without the file `unpacked` the result is empty."""
    code = spec.code
    folders = [folder for folder in (code.directory, *(code.copies or ())) if folder is not None]
    try:
        since = unpacked.stat().st_ctime_ns
    except FileNotFoundError:  # nothing was unpacked yet, or by an earlier version
        return {}
    places = {str(place) for found in spec.downloads().values() for place in found}
    return {name: file for folder in folders for name, file in _newer(folder, since, places)}


def _newer(root: str, since: int, places: Iterable[str]) -> Iterator[tuple[str, Path]]:
    """Yield the files below `root` that changed after `since`. Skip the folders in `places`, and links to folders,
    which can lead out of `root`."""
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
