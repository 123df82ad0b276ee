"""A lock that lives exactly as long as its process: how one process sees that another one died, whatever killed it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from cloudtrain.system.private import make_private_folder, open_private


class ProcessLock:
    """An exclusive `flock` on a file. Children started by exec do not inherit it; the kernel frees it on death."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor

    @classmethod
    def take(cls, path: Path) -> ProcessLock | None:
        """The lock, or None when a living process holds it."""
        make_private_folder(path.parent)
        while True:
            descriptor = open_private(path, os.O_RDWR | os.O_CREAT)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                return None
            if _is_at(path, descriptor):
                return cls(path, descriptor)
            os.close(descriptor)  # removed between the two calls: a lock on a file that nobody else will find

    def release(self, *, remove: bool = False) -> None:
        """Let go. With `remove` the file goes first, so that nobody else can hold it at that moment."""
        if remove:
            self._path.unlink(missing_ok=True)
        os.close(self._descriptor)


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def is_held(path: Path) -> bool:
    """Whether a living process holds the lock. Writes nothing; a missing file is not held."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
