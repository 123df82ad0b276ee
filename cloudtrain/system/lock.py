"""A lock that a process holds exactly until it ends, so that other processes can see its end, even after a crash."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from cloudtrain.system.private import make_private_folder, open_private

_PAUSE = 0.01
"""Seconds between two attempts to take a lock."""


class ProcessLock:
    """An exclusive `flock` on a file. Programs that the process starts do not inherit the lock. The kernel releases the
    lock when the process dies."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor

    @classmethod
    def take(cls, path: Path, *, patience: float = 0.0) -> ProcessLock | None:
        """Take the lock and return it. Return None if a living process holds it, and still holds it after `patience`
        seconds. `is_held` holds the lock for a moment too, so pass `patience` if a false None does harm."""
        make_private_folder(path.parent)
        deadline = time.monotonic() + patience
        while True:
            descriptor = open_private(path, os.O_RDWR | os.O_CREAT)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                if time.monotonic() >= deadline:
                    return None
                time.sleep(_PAUSE)
                continue
            if _is_at(path, descriptor):
                return cls(path, descriptor)
            os.close(descriptor)  # the file was removed between the two calls, so no other process can find this lock

    def release(self, *, remove: bool = False) -> None:
        """Release the lock. With `remove`, delete the file before the release, because afterwards another process could
        hold a lock on it."""
        if remove:
            self._path.unlink(missing_ok=True)
        os.close(self._descriptor)


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def is_held(path: Path) -> bool:
    """Return whether a living process holds the lock on the file. Writes nothing. If the file is missing, return
    False."""
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
