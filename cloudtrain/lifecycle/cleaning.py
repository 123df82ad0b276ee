"""Cleanup of the state folder: unused archives and environments, and interrupted removals."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from cloudtrain.lifecycle.schema import read_store
from cloudtrain.plans.states import RunState
from cloudtrain.system.files import LEFT_OVER, remove_folder

ARCHIVE_AGE = 24 * 3600.0
"""Seconds after which the archive of a submit's code is certainly no longer being sent, and an incomplete environment
is no longer being built."""

ENVIRONMENT_AGE = 14 * ARCHIVE_AGE
"""Seconds after which an environment that no submit has requested is removed."""


def clean(state_dir: Path) -> None:
    """Remove archives of code that no submit has used for a day and environments that no submit has used for two weeks,
    and finish interrupted removals.

    Raises:
        OSError: a folder cannot be removed.
    """
    for folder in _folders(state_dir / "bundles"):
        if folder.stat().st_mtime < time.time() - ARCHIVE_AGE:
            remove_folder(folder)
    with read_store(state_dir) as store:
        going = [state for state in RunState if not state.is_final]
        are_used = store is not None and bool(store.newest(states=going, limit=1))
        _clean_environments(state_dir / "environments", are_used=are_used)
        for folder in _folders(state_dir / "runs"):
            if folder.name.endswith(LEFT_OVER) or (store is not None and store.was_removed(folder.name)):
                remove_folder(folder.with_name(folder.name.removesuffix(LEFT_OVER)))


def _clean_environments(parent: Path, *, are_used: bool) -> None:
    """Remove the remains of interrupted builds, and broken links. Also remove environments that no submit has used for
    two weeks. If `are_used`, unfinished runs may use these environments, so they are kept."""
    links = [item for item in parent.glob("*") if item.is_symlink()]
    linked = {link.resolve().parent for link in links}
    for folder in _folders(parent):
        if folder.is_symlink():
            continue
        age = time.time() - folder.stat().st_mtime
        if age > ENVIRONMENT_AGE and not are_used if folder.resolve() in linked else age > ARCHIVE_AGE:
            remove_folder(folder)
    for link in links:
        if not link.exists():
            for leftover in (link, *(link.with_name(f"{link.name}.{ending}") for ending in ("log", "lock"))):
                leftover.unlink(missing_ok=True)


def _folders(parent: Path) -> Iterator[Path]:
    with suppress(FileNotFoundError):
        yield from [folder for folder in parent.iterdir() if folder.is_dir()]
