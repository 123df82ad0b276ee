"""Reading of files that the user named. Only plain files of limited size are read, because a pipe might never end."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

from cloudtrain.documents.document import Place, Unreadable
from cloudtrain.documents.limits import MAX_BYTES

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFBLK: "a block device",
    stat.S_IFCHR: "a character device",
}


class NoPlainFile(OSError):
    """The path is not a plain file, or the file is too large. `strerror` holds the reason."""


Accept = Callable[[Path, os.stat_result], None]
"""A function that gets an open file's path and status, and raises if the file must not be read."""


def read_bytes(path: str | Path, most: int = MAX_BYTES, accept: Accept | None = None) -> bytes:
    """Return the content of a plain file of at most `most` bytes. Pipes and devices are refused, because reading them
    could block.

    `accept` is called with the path and the status of the opened file, and raises if the file must not be read.

    Raises:
        OSError: the file cannot be read; `strerror` holds the reason.
    """
    _check(os.stat(path), path, most)  # noqa: PTH116 - most paths are plain strings
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        _check(status, path, most)  # another file may have the name by now
        if accept is not None:
            accept(Path(path), status)
        content = file.read(most + 1)
    if content is None:
        raise NoPlainFile(None, "reading it has to wait", str(path))
    if len(content) > most:  # a file in /proc reports that it is empty
        raise _too_large(path, most)
    return content


def read_text(path: str | Path, accept: Accept | None = None) -> str:
    """Return the text of a plain file, without a byte order mark. `read_bytes` describes `accept`.

    Raises:
        OSError: the file cannot be read; `strerror` holds the reason.
        Unreadable: the file is not UTF-8.
    """
    content = read_bytes(path, accept=accept)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start].decode("utf-8-sig", "replace")
        place = Place(before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1)
        message = f"the file is not UTF-8 text: byte 0x{content[error.start]:02x}"
        raise Unreadable(message, "save it as UTF-8", place, code="CT001") from None


def _check(status: os.stat_result, path: str | Path, most: int) -> None:
    kind = stat.S_IFMT(status.st_mode)
    if kind != stat.S_IFREG:
        raise NoPlainFile(None, f"it is {_KINDS.get(kind, 'something else')}, not a plain file", str(path))
    if status.st_size > most:
        raise _too_large(path, most)


def _too_large(path: str | Path, most: int) -> NoPlainFile:
    return NoPlainFile(None, f"it is larger than {most >> 20} MiB", str(path))
