"""A quick check whether a run store exists, without importing the store's code. On a machine without a store, a plan
needs no more than this check.
"""

from __future__ import annotations

from pathlib import Path

from cloudtrain.errors import StoreError
from cloudtrain.store import FILE_NAME, KEPT
from cloudtrain.system.private import close_state_folder

HINT = "set CLOUDTRAIN_STATE_DIR to a folder of yours"


def has_store(folder: Path) -> bool:
    """Return whether the folder contains a run store. Removes other users' access to the folder if they have any.

    Raises:
        StoreError: the store is not a file, its folder is not a folder, or one of them cannot be read.
    """
    file = folder / FILE_NAME
    try:
        if folder.is_dir():
            close_state_folder(folder, ours=KEPT)
        if file.exists() and not file.is_file():
            raise StoreError(f"the run store `{file}` is not a file", hint=HINT, code="CT961")
        if folder.exists() and not folder.is_dir():
            raise StoreError(f"the state folder `{folder}` is not a folder", hint=HINT, code="CT961")
        return file.exists()
    except OSError as error:
        raise unusable(folder, error) from error


def unusable(folder: Path, error: Exception) -> StoreError:
    """Return the error for a run store that cannot be opened."""
    return StoreError(f"the run store in `{folder}` cannot be opened: {error}", hint=HINT, code="CT961")
