"""The bundle's archive: a reproducible tar, compressed in blocks by several threads."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from cloudtrain.bundle.entries import Entry, escape_path
from cloudtrain.bundle.gzip_blocks import gzip_stream
from cloudtrain.bundle.hashing import PIECE, open_regular
from cloudtrain.bundle.ignore import IGNORE_FILE, ignore_line
from cloudtrain.errors import CloudtrainError

MTIME = 315532800
"""1980-01-01 UTC, the earliest time that zip supports, because a wheel may be built from the unpacked files."""

_BLOCK = 512
_RECORD = 20 * _BLOCK


class SourceChanged(CloudtrainError):
    """A file changed after its bundle was hashed and before the bundle was written.

    Attributes:
        path: the file's path in the bundle.
        may_plan_again: whether no request of this job has left this machine, so that another plan can be sent.
    """

    exit_code = 2
    code = "CT963"

    def __init__(self, path: str) -> None:
        super().__init__(
            f"`{escape_path(path)}` changed while its bundle was being made; nothing was written",
            hint="run the command again when no program is writing to `source_dir`, "
            f"or if the job does not need the file, add the line `{ignore_line(path)}` to `{IGNORE_FILE}`",
        )
        self.path = path
        self.may_plan_again = False


def write_archive(sources: Iterable[tuple[Entry, str]], path: Path) -> None:
    """Write a tar.gz of `sources`, which pairs each entry with its path on disk. Atomic: a partial archive never
    appears at `path`.

    Raises:
        SourceChanged: a file's content no longer matches its entry.
    """
    from tempfile import mkstemp

    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(descriptor, "wb") as file:
            for piece in gzip_stream(_tar(sources)):
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Sync the folder to disk, so that a new file in it survives a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _tar(sources: Iterable[tuple[Entry, str]]) -> Iterator[bytes]:
    """Yield the bytes of the tar, in pieces of any size."""
    length = 0
    for entry, place in sources:
        header = _header(entry)
        padding = -entry.size % _BLOCK
        yield header
        if entry.target is None:
            yield from _content(entry, place)
        yield bytes(padding)
        length += len(header) + entry.size + padding
    end = 2 * _BLOCK
    yield bytes(end + -(length + end) % _RECORD)


def _header(entry: Entry) -> bytes:
    """Return the entry's tar header in GNU format, which supports names of any bytes and any length, and which every
    tar program reads."""
    import tarfile

    info = tarfile.TarInfo(entry.path)
    info.size = entry.size
    info.mtime = MTIME
    info.mode = 0o755 if entry.executable else 0o644
    if entry.target is not None:
        info.type, info.linkname, info.mode = tarfile.SYMTYPE, entry.target, 0o777
    return info.tobuf(tarfile.GNU_FORMAT, sys.getfilesystemencoding(), "surrogateescape")


def _content(entry: Entry, place: str) -> Iterator[bytes]:
    """Yield the file's bytes, and check that they match the entry."""
    digest, left = hashlib.sha256(), entry.size
    try:
        descriptor = open_regular(place)
    except OSError:
        raise SourceChanged(entry.path) from None
    try:
        while left >= 0:
            piece = os.read(descriptor, min(left + 1, PIECE))
            if not piece:
                break
            left -= len(piece)
            digest.update(piece)
            yield piece
    finally:
        os.close(descriptor)
    if left != 0 or digest.hexdigest() != entry.sha256:
        raise SourceChanged(entry.path)
