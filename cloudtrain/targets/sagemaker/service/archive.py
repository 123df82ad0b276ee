"""What the service packed (`model.tar.gz`, `output.tar.gz`), unpacked without leaving the folder.

Whoever can write to the bucket decides what is in the archive, so nothing in it is trusted. Names and links are judged
by `cloudtrain.system.staging`; devices and pipes are refused here, and of a damaged or hostile archive nothing appears.
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
"""From a name in the archive to the name on disk; None leaves it out."""


def extract(archive: Path, destination: Path, rename: Rename) -> list[Path]:
    """Unpack what `rename` wants into `destination`, which is made; the paths written, in the archive's order.

    All of it appears, or nothing; a file of the same name is replaced.

    Raises:
        TargetError: the archive is damaged, or holds what must not be unpacked.
        OSError: the disk is full, say.
    """
    with landing(destination) as staging:
        stage(archive, staging, rename)
        return staging.move()


def stage(archive: Path, staging: Staging, rename: Rename) -> None:
    """Write what `rename` wants of an archive where it is moved from.

    Raises:
        TargetError: the archive is damaged, or holds what must not be unpacked.
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
    """The names of everything in the archive but folders, without a leading `./`.

    Raises:
        TargetError: the archive is damaged, or a name in it leads outside.
    """
    with _open(archive) as tar, _about(archive):
        return [safe_name(member.name) for member in tar if not member.isdir()]


@contextmanager
def _open(archive: Path) -> Iterator[tarfile.TarFile]:
    """The archive, to be read.

    Raises:
        TargetError: it is damaged. What the system refuses has a number, and is none of the archive's faults.
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
    """A regular file, or a hard link to one, which becomes a copy."""
    try:
        source = tar.extractfile(member)
    except (KeyError, RecursionError):  # no such member; links that lead to each other, which tarfile follows for ever
        source = None
    if source is None:
        raise Unsafe(member.name, "is a link to nothing")
    with source, place.open("wb") as file:
        shutil.copyfileobj(source, file, _COPY)
    place.chmod(0o755 if member.mode & 0o100 else 0o644)


def _refusal(archive: Path, what: str) -> TargetError:
    return TargetError(
        f"the archive `{archive.name}` {what}; nothing of it was unpacked", hint="look at it by hand", code="CT964"
    )
