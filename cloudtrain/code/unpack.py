"""Unpacks a bundle's archive into a folder. Uses only the standard library, and is quick to import.

An archive in a cache may be truncated by a full disk, or written by another user. A bundle is named
by the hash of its content, so the caller passes the expected hash, and an archive with other
content is refused. It may contain only what a bundle can: regular files, and links that stay
inside. tarfile's extraction filters are not used, because older patch versions of Python 3.10 and
3.11 lack them.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import sys
import tarfile
import zlib
from pathlib import Path

from cloudtrain.code.content import hash_lines, line_of
from cloudtrain.system.staging import Staging, Unsafe, safe_name, safe_target

_COPY = 1 << 20
_DAMAGE = (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError)
"""The exceptions that reading a broken archive raises."""


class DamagedBundle(Exception):
    """The archive is damaged, or is not the requested bundle."""


def unpack(archive: Path, destination: Path, sha256: str) -> None:
    """Unpack a bundle into `destination`, which must be empty or not exist. After an error, nothing
    is unpacked.

    Raises:
        DamagedBundle: the archive cannot be read, contains something that a bundle cannot hold, or
            has another hash.
        UsageError: `destination` is not empty.
    """
    with Staging(destination.parent, odd_names=True) as staging:
        _read(archive, sha256, staging)
        try:
            staging.become(destination)
        except Unsafe as error:
            raise _damage_error(archive, str(error)) from None
        except OSError:
            from cloudtrain.errors import UsageError

            raise UsageError(
                f"`{destination}` exists already and is not an empty folder",
                hint="name a folder that does not exist yet",
                code="CT910",
            ) from None


def verify(archive: Path, sha256: str) -> None:
    """Check an archive without unpacking it: it must be complete, and its content must have the
    hash `sha256`.

    Raises:
        DamagedBundle: the archive is damaged or has another hash.
    """
    _read(archive, sha256, None)


def _read(archive: Path, sha256: str, staging: Staging | None) -> None:
    """Read a whole archive, and unpack it if there is a `staging`. Raises DamagedBundle."""
    try:
        with gzip.open(archive) as stream:
            with tarfile.open(
                fileobj=stream, mode="r|", encoding=sys.getfilesystemencoding()
            ) as tar:
                lines = [_take(tar, member, staging) for member in tar]
            while stream.read(_COPY):  # to the end, where the checksum is
                pass
    except _DAMAGE as error:
        raise _damage_error(archive, f"it cannot be read: {error}") from None
    except Unsafe as error:
        raise _damage_error(archive, str(error)) from None
    if hash_lines(lines) != sha256:
        raise _damage_error(archive, "its content does not match its name")


def _take(tar: tarfile.TarFile, member: tarfile.TarInfo, staging: Staging | None) -> bytes:
    """Read a member, and unpack it if there is a `staging`. Return its line of the content's
    hash."""
    if safe_name(member.name, odd=True) != member.name:
        raise Unsafe(member.name, "is not a normalized path")
    if member.issym():
        if safe_target(member.name, member.linkname) != member.linkname:
            raise Unsafe(member.name, "is a link whose target is not a normalized path")
        if staging is not None:
            staging.link(member.name, member.linkname)
        return line_of(member.name, target=member.linkname)

    if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
        raise Unsafe(member.name, "is neither a file nor a link")
    executable = bool(member.mode & 0o100)
    descriptor = None
    if staging is not None:
        descriptor = staging.create(member.name, 0o755 if executable else 0o644)
    try:
        sha256 = _copy(tar, member, descriptor)
    finally:
        if descriptor is not None:
            os.close(descriptor)
    return line_of(member.name, sha256, executable)


def _copy(tar: tarfile.TarFile, member: tarfile.TarInfo, descriptor: int | None) -> str:
    """Return the hex digest of a member's bytes. If `descriptor` is given, also write the bytes to
    it."""
    source = tar.extractfile(member)
    assert source is not None, "a regular file has content"
    digest = hashlib.sha256()
    left = member.size
    while left > 0:
        piece = source.read(min(left, _COPY))
        if not piece:
            raise EOFError(f"`{member.name}` is truncated")
        left -= len(piece)
        digest.update(piece)
        if descriptor is not None:
            view = memoryview(piece)
            while view:  # the system may write only a part of it
                view = view[os.write(descriptor, view) :]
    return digest.hexdigest()


def _damage_error(archive: Path, reason: str) -> DamagedBundle:
    return DamagedBundle(f"the bundle `{archive}` is damaged: {reason}")
