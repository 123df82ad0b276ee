"""What may go from the state folder at any time: archives that no submit uses, and removals that were cut off."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from cloudtrain.store.store import read_store
from cloudtrain.system.disk import LEFT_OVER, remove_folder

ARCHIVE_AGE = 24 * 3600.0
"""Seconds after which the archive of a submit's code is certainly no longer being sent."""


def clean(state_dir: Path) -> None:
    """Remove archives of code that no submit has asked for in a day, and finish removals that were cut off.

    Raises:
        OSError: a folder cannot be removed.
    """
    for folder in _folders(state_dir / "bundles"):
        if folder.stat().st_mtime < time.time() - ARCHIVE_AGE:
            remove_folder(folder)
    with read_store(state_dir) as store:
        for folder in _folders(state_dir / "runs"):
            if folder.name.endswith(LEFT_OVER) or (store is not None and store.was_removed(folder.name)):
                remove_folder(folder.with_name(folder.name.removesuffix(LEFT_OVER)))


def _folders(parent: Path) -> Iterator[Path]:
    with suppress(FileNotFoundError):
        yield from [folder for folder in parent.iterdir() if folder.is_dir()]
