"""Size and removal of run folders."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

LEFT_OVER = ".removed"
"""Suffix of the name of a folder that is being removed. No run's folder has it."""


def folder_size(folder: Path) -> int:
    """Return the size in bytes of all files below a folder. Links are not followed; unreadable files count as 0."""
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
    """Remove a folder with its content. The folder is renamed first, so its name can be used again even if the
    removal is interrupted.

    Raises:
        OSError: the folder cannot be removed.
    """
    gone = folder.with_name(folder.name + LEFT_OVER)
    if gone.exists():
        shutil.rmtree(gone)
    with suppress(FileNotFoundError):
        folder.rename(gone)
        shutil.rmtree(gone)
