"""Bundles that are kept in a folder: `bundles/<hash of the content>/sourcedir.tar.gz`.

A submit does not read an existing archive. It reads the note beside the archive, which was written when the archive was
complete. If size, time or inode differ from the note, the archive is written again. The content is verified when the
archive is unpacked, because it is read then anyway (`cloudtrain.bundle.unpack`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from cloudtrain.system.private import make_private_folder, open_private
from cloudtrain.targets.base import BundleWriter


def put_archive(archive: Path, bundle: BundleWriter) -> bool:
    """Write the archive. Return False where it exists and is unchanged.

    Raises:
        OSError: the archive cannot be written.
        SourceChanged: a file changed since it was read.
    """
    note = archive.with_name(f"{archive.name}.whole")
    if _stamp(archive) is not None and _stamp(archive) == _read(note):
        os.utime(archive.parent)  # `prune` removes archives that no submit has asked for in a day
        return False
    make_private_folder(archive.parent)
    bundle.write(archive)
    stamp = _stamp(archive)
    temporary = note.with_name(f".{note.name}.{os.getpid()}")
    with os.fdopen(open_private(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "w", encoding="ascii") as file:
        file.write(stamp or "")
    temporary.replace(note)
    return True


def unpacked(archive: Path, sha256: str, scratch: Path) -> Iterator[Path]:
    """Yield a folder below `scratch` with the content of a bundle; nothing where the archive is missing or damaged."""
    from cloudtrain.bundle.unpack import DamagedBundle, unpack

    folder = scratch / "code"
    with suppress(DamagedBundle, FileNotFoundError):
        unpack(archive, folder, sha256)
        yield folder


def _stamp(archive: Path) -> str | None:
    """Return data that changes whenever the file changes; None where the file does not exist."""
    try:
        status = archive.stat(follow_symlinks=False)
    except OSError:
        return None
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ino}\n"


def _read(note: Path) -> str | None:
    try:
        return note.read_text("ascii")
    except (OSError, ValueError):
        return None
