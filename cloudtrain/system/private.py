"""Folders and files that other users cannot read, whatever the umask.

The state folder holds the variables, arguments, output and code of jobs. The folder is closed to
other users (0700), and so is every file that cloudtrain writes in it (0600). Files that a script
writes there get their modes from the script's umask, but the folders above them stay closed.
"""

# Paths are strings here, because the supervisor of a run has to start quickly.
from __future__ import annotations

import errno
import os
import stat
import sys
from _thread import get_native_id  # threading's, without importing threading
from contextlib import contextmanager, suppress

TYPE_CHECKING = False  # like typing.TYPE_CHECKING, without importing typing
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    StrPath = str | os.PathLike[str]

UMASK = 0o077
"""The umask under which everything that is created is private."""


def make_private_folder(path: StrPath) -> None:
    """Make a folder and its missing parents, closed to other users. An existing folder stays
    unchanged.

    Raises:
        OSError: the folder cannot be made.
    """
    missing = []
    place = os.fspath(path)
    while place and not os.path.isdir(place):
        missing.append(place)
        place = os.path.dirname(place)

    for folder in reversed(missing):
        try:
            os.mkdir(folder, 0o700)
        except FileExistsError:  # another process made it meanwhile
            if not os.path.isdir(folder):
                raise


def open_private(path: StrPath, flags: int) -> int:
    """Open a file and return its descriptor. A new file is readable only by its owner. Links are
    not followed.

    Raises:
        OSError: the file cannot be opened.
    """
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def write_once(path: StrPath, content: bytes, *, sync: bool = False) -> bool:
    """Write a private file atomically. Return False, and write nothing, if the file exists. With
    `sync`, the content is on the disk before the file gets its name.

    Raises:
        OSError: the file cannot be written.
    """
    try:
        with _written_beside(path, content, sync=sync) as temporary:
            os.link(temporary, path)  # fails where the file exists, unlike a rename
    except FileExistsError:
        return False
    return True


def replace_private(path: StrPath, content: bytes, *, sync: bool = False) -> None:
    """Write a private file atomically, in place of the one that exists, as `write_once` does."""
    with _written_beside(path, content, sync=sync) as temporary:
        os.replace(temporary, path)


@contextmanager
def _written_beside(path: StrPath, content: bytes, *, sync: bool) -> Iterator[str]:
    """Yield the path of a private file beside `path` with the content. It is removed afterwards,
    unless the caller has moved it."""
    temporary = f"{os.fspath(path)}.{os.getpid()}.{get_native_id()}"
    try:
        descriptor = open_private(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        yield temporary
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary)


def make_state_folder(path: StrPath, *, ours: Collection[str]) -> None:
    """Make the state folder, or check an existing state folder, and close it to other users. `ours`
    are the names of cloudtrain's own items.

    If other users could read the folder until now, a message on stderr says that it was closed. Two
    sorts of folders are not closed, because other users may need them: folders with files but none
    of `ours`, and folders with the sticky bit, such as /tmp.

    Raises:
        OSError: the folder cannot be made or belongs to another user, or other users can read it
            and it is of one of these sorts.
    """
    make_private_folder(path)
    close_state_folder(path, ours=ours)


def close_state_folder(path: StrPath, *, ours: Collection[str]) -> None:
    """Check an existing state folder, and close it to other users, as `make_state_folder` does.
    `ours` are the names of cloudtrain's own items."""
    status = os.stat(path)
    require_own(path, status)
    if not status.st_mode & UMASK:
        return

    shared = status.st_mode & stat.S_ISVTX
    names = set(os.listdir(path))
    if shared or (names and names.isdisjoint(ours)):
        raise PermissionError(
            "other users can read the folder, and it has files that are not cloudtrain's"
        )

    try:
        os.chmod(path, stat.S_IMODE(status.st_mode) & ~UMASK)
    except OSError:  # a read-only file system, or one without modes
        return
    if not os.stat(path).st_mode & UMASK:
        sys.stderr.write(
            f"cloudtrain: closed `{os.fspath(path)}` to other users; it holds the variables of "
            "jobs\n"
        )


def require_own(path: StrPath, status: os.stat_result | None = None) -> None:
    """Check that a folder belongs to you.

    Raises:
        PermissionError: the folder belongs to another user, who could read and change its content.
    """
    owner = (status or os.stat(path)).st_uid
    if owner != os.getuid():
        raise PermissionError(f"the folder belongs to another user ({owner})")


def close_file(path: StrPath) -> None:
    """Make an existing file private, or create an empty private file. Links are not followed.

    An existing file is not opened. If a process closes any descriptor of a file, it loses all its
    POSIX locks on the file, and SQLite holds such locks on an open database.

    Raises:
        OSError: the file cannot be made, is a link, or belongs to another user.
    """
    try:
        descriptor = open_private(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        os.close(descriptor)
    except FileExistsError:
        mode = os.lstat(path).st_mode
        if stat.S_ISLNK(mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), os.fspath(path)) from None
        if mode & UMASK:
            os.chmod(path, 0o600)
