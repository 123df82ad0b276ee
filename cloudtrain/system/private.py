"""Folders and files that nobody else can look into, whatever the umask is.

The state folder holds what jobs are told: their variables, their arguments, their output, their code. It is closed to
other users (0700), and so is every file in it that cloudtrain writes (0600). What a script writes there has the modes
that its own umask gives; the folders above it are closed.
"""

# Paths are strings here: the supervisor of a run has to start in no time.
# ruff: noqa: PTH101, PTH102, PTH112, PTH116, PTH120, PTH208
from __future__ import annotations

import os
import stat
import sys

TYPE_CHECKING = False  # as typing.TYPE_CHECKING, without importing typing
if TYPE_CHECKING:
    from collections.abc import Collection

UMASK = 0o077
"""Under which whatever is made is private."""

_NO_LINKS = getattr(os, "O_NOFOLLOW", 0)


def make_private_folder(path: str | os.PathLike[str]) -> None:
    """Make a folder, and those above it that are missing, closed to other users. One that exists stays as it is.

    Raises:
        OSError: it cannot be made.
    """
    missing, place = [], os.fspath(path)
    while place and not os.path.isdir(place):
        missing.append(place)
        place = os.path.dirname(place)
    for folder in reversed(missing):
        try:
            os.mkdir(folder, 0o700)
        except FileExistsError:  # made by another process meanwhile
            if not os.path.isdir(folder):
                raise


def open_private(path: str | os.PathLike[str], flags: int) -> int:
    """Open a file that, if it is made, only its owner can read; never through a link. The descriptor.

    Raises:
        OSError: it cannot be opened.
    """
    return os.open(path, flags | os.O_CLOEXEC | _NO_LINKS, 0o600)


def make_state_folder(path: str | os.PathLike[str], *, ours: Collection[str]) -> None:
    """The state folder, made if need be and closed to other users. `ours` are the names of what cloudtrain keeps there.

    An open one is closed, and stderr says so, once: then it is closed. But a folder that holds other things too, or
    where everybody may put files, as /tmp, is not closed under its other users' feet.

    Raises:
        OSError: it cannot be made, belongs to another user, or is open and not only cloudtrain's.
    """
    make_private_folder(path)
    close_state_folder(path, ours=ours)


def close_state_folder(path: str | os.PathLike[str], *, ours: Collection[str]) -> None:
    """The same for one that exists."""
    status = os.stat(path)
    require_own(path, status)
    if not status.st_mode & UMASK or not hasattr(os, "getuid"):
        return
    shared = status.st_mode & stat.S_ISVTX
    names = set(os.listdir(path))
    if shared or (names and names.isdisjoint(ours)):
        raise PermissionError("other users can read it, and cloudtrain is not its only user")
    try:
        os.chmod(path, stat.S_IMODE(status.st_mode) & ~UMASK)
    except OSError:  # a file system that cannot be written, or that knows no modes
        return
    if not os.stat(path).st_mode & UMASK:
        sys.stderr.write(f"cloudtrain: closed `{os.fspath(path)}` to other users; it holds the variables of jobs\n")


def require_own(path: str | os.PathLike[str], status: os.stat_result | None = None) -> None:
    """Nothing, for a folder of yours.

    Raises:
        PermissionError: it belongs to another user, who would read and change whatever is put there.
    """
    owner = (status or os.stat(path)).st_uid
    if hasattr(os, "getuid") and owner != os.getuid():
        raise PermissionError(f"it belongs to another user ({owner})")


def close_file(path: str | os.PathLike[str]) -> None:
    """Make an existing file private, or an empty one that is.

    Raises:
        OSError: it cannot be made, or is another user's.
    """
    descriptor = open_private(path, os.O_RDWR | os.O_CREAT)
    try:
        if os.fstat(descriptor).st_mode & UMASK:
            os.fchmod(descriptor, 0o600)
    finally:
        os.close(descriptor)
