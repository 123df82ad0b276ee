"""Folders of runs: how large they are, and removing them."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

LEFT_OVER = ".removed"
"""The end of the name of a folder that is being removed; none of a run ends so."""


def folder_size(folder: Path) -> int:
    """Return the bytes of all files below a folder, links not followed; what cannot be read counts nothing."""
    total, waiting = 0, [os.fspath(folder)]
    while waiting:
        with suppress(OSError), os.scandir(waiting.pop()) as items:
            for item in items:
                with suppress(OSError):
                    if item.is_dir(follow_symlinks=False):
                        waiting.append(item.path)
                    else:
                        total += item.stat(follow_symlinks=False).st_size
    return total


def remove_folder(folder: Path) -> None:
    """Remove a folder and all in it. From the first moment nothing has its name, whatever interrupts this.

    Raises:
        OSError: it cannot be removed.
    """
    gone = folder.with_name(folder.name + LEFT_OVER)
    if gone.exists():
        shutil.rmtree(gone)
    with suppress(FileNotFoundError):
        folder.rename(gone)
        shutil.rmtree(gone)
