"""The other side: an archive becomes a folder again. Standard library only, and quick to import.

Only what a bundle can hold is accepted, whoever wrote the archive: regular files, and links that stay inside. Names
with `..`, absolute names, devices and hard links are refused. Files come first and links last, so nothing is
ever written through a link. This does not lean on tarfile's extraction filters, which older
patch versions of Python 3.10 and 3.11 lack.
"""

from __future__ import annotations

import gzip
import os
import shutil
import sys
import tarfile
import tempfile
import zlib
from pathlib import Path

_COPY = 1 << 20
_DAMAGE = (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, FileExistsError, NotADirectoryError)
"""What reading a broken archive raises; the last two where one name stands in it twice, or below a file."""


def unpack(archive: Path, destination: Path) -> None:
    """Unpack a bundle into `destination`, which must not exist or be empty. All of it appears, or nothing.

    Raises:
        UsageError: the archive is damaged, holds what a bundle cannot hold, or `destination` is not empty.
    """
    destination.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=destination.parent, prefix=f".{destination.name}."))
    try:
        temporary.chmod(0o755)
        with gzip.open(archive) as stream:
            with tarfile.open(fileobj=stream, mode="r|", encoding=sys.getfilesystemencoding()) as tar:
                _extract(tar, str(temporary), archive)
            while stream.read(_COPY):  # to the end, where the checksum is
                pass
        _move(temporary, destination)
    except _DAMAGE as error:
        raise _refusal(archive, f"is damaged: {error}") from None
    finally:
        if temporary.exists():
            shutil.rmtree(temporary)


def _extract(tar: tarfile.TarFile, root: str, archive: Path) -> None:
    links: list[tuple[str, str]] = []
    made = {root}
    for member in tar:
        parts = member.name.split("/")
        if member.name.startswith("/") or not {"", ".", ".."}.isdisjoint(parts):
            raise _refusal(archive, f"holds the name `{member.name}`, which may leave the folder")
        place = f"{root}/{member.name}"
        folder = os.path.dirname(place)  # noqa: PTH120 - plain strings: thousands of files
        if folder not in made:
            os.makedirs(folder, exist_ok=True)  # noqa: PTH103
            made.add(folder)
        if member.issym() and _stays(member.linkname, len(parts) - 1):
            links.append((member.linkname, place))
        elif member.type in (tarfile.REGTYPE, tarfile.AREGTYPE):
            _write(tar, member, place)
        else:
            raise _refusal(archive, f"holds `{member.name}`, which is no regular file and no link inside the folder")
    for target, place in links:
        os.symlink(target, place)  # noqa: PTH211


def _stays(target: str, depth: int) -> bool:
    """Whether a link so deep in the tree points inside it. `..` may stand only at the start.

    Further on, `..` could leave through another link; at the start, it walks up folders that are really there.
    """
    parts = target.split("/")
    ups = next((index for index, part in enumerate(parts) if part != ".."), len(parts))
    return bool(target) and not target.startswith("/") and ups <= depth and ".." not in parts[ups:]


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, place: str) -> None:
    source = tar.extractfile(member)
    assert source is not None, "a regular file has content"
    mode = 0o755 if member.mode & 0o100 else 0o644
    descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as file:
        shutil.copyfileobj(source, file, _COPY)


def _move(temporary: Path, destination: Path) -> None:
    try:
        temporary.rename(destination)
    except OSError:
        from cloudtrain.errors import UsageError

        message = f"`{destination}` is there already and is not an empty folder"
        raise UsageError(message, hint="name a folder that does not exist") from None


def _refusal(archive: Path, reason: str) -> Exception:
    from cloudtrain.errors import UsageError

    return UsageError(f"the archive `{archive}` {reason}", hint="remove the file and submit the job again")
