"""Prepare data once on every instance. The first process to arrive prepares the data while the others wait.

    folder = runtime.prepared(Path("/tmp/tokens"), lambda aside: tokenise(text, aside))

The other processes wait for a file lock. If the first process is killed, the operating system releases the lock, and
the next process prepares the data. The folder gets its final name when its content is complete.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from .atomic import sync_folder

TYPE_CHECKING = False  # as typing.TYPE_CHECKING, without importing typing
if TYPE_CHECKING:
    from collections.abc import Callable


def prepared(folder: str | Path, make: Callable[[Path], object]) -> Path:
    """Return `folder`. If it does not exist, `make(aside)` fills the temporary folder `aside`, which is then renamed to
    `folder`. No process group is needed.
    """
    import fcntl

    folder = Path(folder)
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f".{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            aside = folder.with_name(f".{folder.name}.making")
            shutil.rmtree(aside, ignore_errors=True)  # of a process that was killed
            aside.mkdir()
            make(aside)
            aside.rename(folder)
            sync_folder(folder.parent)
    return folder
