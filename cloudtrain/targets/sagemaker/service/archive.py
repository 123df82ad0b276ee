"""Unpack the service's archives (`model.tar.gz`, `output.tar.gz`) safely, only inside the destination.

Anybody who can write to the bucket can change an archive, so cloudtrain trusts nothing in it.
`cloudtrain.system.staging` checks names and links. This module refuses devices and pipes, and writes nothing from a
damaged or hostile archive.
"""

from __future__ import annotations

import shutil
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cloudtrain.errors import TargetError
from cloudtrain.system.staging import Staging, Unsafe, safe_name, safe_target
from cloudtrain.targets.common.landing import landing

_COPY = 1 << 20

Rename = Callable[[str], str | None]
"""Turns a name in the archive into a name on disk, or into None to skip the member."""


def extract(archive: Path, destination: Path, rename: Rename) -> list[Path]:
    """Unpack the members that `rename` selects into `destination`, and return the written paths in the archive's order.

    Creates `destination`. Writes either all files or none, and replaces existing files. `rename` turns a member's name
    into its name on disk, or into None to skip the member.

    Raises:
        TargetError: the archive is damaged, or holds members that must not be unpacked.
        OSError: a file cannot be written, for example because the disk is full.
    """
    with landing(destination) as staging:
        stage(archive, staging, rename)
        return staging.move()


def stage(archive: Path, staging: Staging, rename: Rename) -> None:
    """Write the members that `rename` selects (see `extract`) into the staging folder.

    Raises:
        TargetError: the archive is damaged, or holds members that must not be unpacked.
    """
    with _open(archive) as tar, _about(archive):
        for member in tar:
            if member.isdir():
                continue
            plain = safe_name(member.name)
            name = rename(plain)
            if member.issym():
                safe_target(plain, member.linkname)
            elif not (member.isreg() or member.islnk()):
                raise Unsafe(member.name, "is neither a file nor a link")
            if name is None:
                continue
            if member.issym():
                staging.link(name, member.linkname)
            else:
                _write(tar, member, staging.place(name))
        staging.make_links()


def names_in(archive: Path) -> list[str]:
    """Return the names of all archive members except folders, without a leading `./`.

    Raises:
        TargetError: the archive is damaged, or a name in it points outside of the destination.
    """
    with _open(archive) as tar, _about(archive):
        return [safe_name(member.name) for member in tar if not member.isdir()]


@contextmanager
def _open(archive: Path) -> Iterator[tarfile.TarFile]:
    """Open the archive for reading.

    Raises:
        TargetError: the archive is damaged.
        OSError: the system reports an error, such as a full disk.
    """
    try:
        with tarfile.open(archive, "r:*") as tar:
            yield tar
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        if getattr(error, "errno", None) is not None:
            raise
        raise _refusal(archive, f"is damaged: {error}") from error


@contextmanager
def _about(archive: Path) -> Iterator[None]:
    try:
        yield
    except Unsafe as error:
        raise _refusal(archive, f"cannot be unpacked: {error}") from None


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, place: Path) -> None:
    """Write a regular file. A hard link becomes a copy of the file that it links to."""
    try:
        source = tar.extractfile(member)
    except (KeyError, RecursionError):  # a missing member; circular links, which tarfile follows forever
        source = None
    if source is None:
        raise Unsafe(member.name, "is a link to nothing")
    with source, place.open("wb") as file:
        shutil.copyfileobj(source, file, _COPY)
    place.chmod(0o755 if member.mode & 0o100 else 0o644)


def _refusal(archive: Path, what: str) -> TargetError:
    return TargetError(
        f"the archive `{archive.name}` {what}; no files were unpacked",
        hint="download the archive and inspect it",
        code="CT964",
    )
