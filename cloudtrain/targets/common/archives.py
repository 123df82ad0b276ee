"""Archives of bundles in a folder: `bundles/<hash of the content>/sourcedir.tar.gz`.

When an archive is complete, its size, modification time and inode are written to a file beside it. A later submit only
compares these values, and writes the archive again if they differ. The archive's content is verified only when it is
unpacked (`cloudtrain.bundle.unpack`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from cloudtrain.system.private import make_private_folder, open_private
from cloudtrain.targets.base import BundleWriter


def put_archive(archive: Path, bundle: BundleWriter) -> bool:
    """Write the bundle's archive. Return False if it already exists unchanged.

    Raises:
        OSError: the archive cannot be written.
        SourceChanged: a source file changed after cloudtrain had read it.
    """
    note = archive.with_name(f"{archive.name}.whole")
    if _stamp(archive) is not None and _stamp(archive) == _read(note):
        os.utime(archive.parent)  # `prune` removes archives that no submit has used for a day
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
    """Unpack an archive below `scratch` and yield the folder; yield nothing if the archive is missing or damaged."""
    from cloudtrain.bundle.unpack import DamagedBundle, unpack

    folder = scratch / "code"
    with suppress(DamagedBundle, FileNotFoundError):
        unpack(archive, folder, sha256)
        yield folder


def _stamp(archive: Path) -> str | None:
    """Return the archive's size, modification time and inode as a text; None if the archive does not exist."""
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
