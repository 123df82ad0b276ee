"""Archives (`.tar.gz`) of training code: list, write and unpack them."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path


def files_of(archive: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the path and content of each plain file in a `.tar.gz` archive. Absolute paths and
    paths that begin with `..` are left out.

    Raises:
        tarfile.TarError, OSError, EOFError, ValueError: the archive is damaged.
    """
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:
        for member in tar:
            name = os.path.normpath(member.name)
            is_outside = name.startswith("..") or os.path.isabs(name)
            if member.isfile() and not is_outside:
                stream = tar.extractfile(member)
                assert stream is not None, "a plain file has content"
                yield name, stream.read()


def archive_of(files: Mapping[str, bytes]) -> bytes:
    """Return a `.tar.gz` archive of `files`, which maps paths to contents."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        for name, content in sorted(files.items()):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return archive.getvalue()


def unpack(archive: bytes, folder: Path) -> None:
    """Write the plain files of an archive into a folder."""
    for name, content in files_of(archive):
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
