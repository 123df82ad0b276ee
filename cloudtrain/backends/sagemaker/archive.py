"""What the service packed (`model.tar.gz`, `output.tar.gz`), unpacked without leaving the folder.

Whoever can write to the bucket decides what is in the archive, so nothing in it is trusted: names with `..`, absolute
names, links that lead out, devices and anything below a link are refused, and then nothing of it appears.
"""

from __future__ import annotations

import os
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from cloudtrain.errors import TargetError

_COPY = 1 << 20


class _Entry(NamedTuple):
    """A file or a link of the archive: where it goes, and for a link where it points."""

    name: str
    link: str | None = None


Rename = Callable[[str], str | None]
"""From a name in the archive to the name on disk; None leaves it out."""


def extract(archive: Path, destination: Path, rename: Rename) -> list[Path]:
    """Unpack what `rename` wants into `destination`, which is made; the paths written, in the archive's order.

    All of it appears, or nothing; a file of the same name is replaced.

    Raises:
        TargetError: the archive is damaged, or holds what must not be unpacked.
        OSError: the disk is full, say.
    """
    destination.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=destination, prefix=".cloudtrain-"))
    try:
        entries = list(_unpacked(archive, scratch, rename))
        return [_placed(scratch, destination, entry) for entry in entries]
    finally:
        shutil.rmtree(scratch)


def names_in(archive: Path) -> list[str]:
    """The names of everything in the archive but folders, without a leading `./`."""
    with _opened(archive) as tar:
        return [_plain(member.name) for member in tar if not member.isdir()]


@contextmanager
def _opened(archive: Path) -> Iterator[tarfile.TarFile]:
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


def _unpacked(archive: Path, scratch: Path, rename: Rename) -> Iterator[_Entry]:
    """Files first and links last, so that nothing is written through a link."""
    links: list[_Entry] = []
    with _opened(archive) as tar:
        for member in tar:
            name = rename(_safe_name(archive, member))
            if member.isdir() or name is None:
                continue
            if member.issym():
                links.append(_Entry(name, _safe_link(archive, member, name)))
            else:
                _write(archive, tar, member, scratch / name)
                yield _Entry(name)
    for entry in links:
        if any((scratch / parent).is_symlink() for parent in Path(entry.name).parents):
            raise _refusal(archive, f"holds `{entry.name}` below a link")
        assert entry.link is not None
        with _free(archive, entry.name):
            (scratch / entry.name).parent.mkdir(parents=True, exist_ok=True)
            (scratch / entry.name).symlink_to(entry.link)
        yield entry


@contextmanager
def _free(archive: Path, name: str) -> Iterator[None]:
    """Around the making of a file: two entries of an archive may want the same place.

    Raises:
        TargetError: they do.
    """
    try:
        yield
    except (FileExistsError, IsADirectoryError, NotADirectoryError) as error:
        raise _refusal(archive, f"holds `{name}` where something else is") from error


def _write(archive: Path, tar: tarfile.TarFile, member: tarfile.TarInfo, place: Path) -> None:
    """A regular file, or a hard link to one, which becomes a copy."""
    if not (member.isreg() or member.islnk()):
        raise _refusal(archive, f"holds `{member.name}`, which is neither a file nor a link")
    try:
        source = tar.extractfile(member)
    except (KeyError, RecursionError):  # no such member; links that lead to each other, which tarfile follows for ever
        source = None
    if source is None:
        raise _refusal(archive, f"holds `{member.name}`, a link to nothing")
    with _free(archive, member.name):
        place.parent.mkdir(parents=True, exist_ok=True)
        with source, place.open("wb") as file:
            shutil.copyfileobj(source, file, _COPY)
    place.chmod(0o755 if member.mode & 0o100 else 0o644)


def _safe_name(archive: Path, member: tarfile.TarInfo) -> str:
    name = _plain(member.name)
    nameless = not name and not member.isdir()
    if nameless or member.name.startswith("/") or ".." in name.split("/"):
        raise _refusal(archive, f"holds the name `{member.name}`, which leaves the folder")
    return name


def _safe_link(archive: Path, member: tarfile.TarInfo, name: str) -> str:
    """A link that stays inside. `..` may stand only at its start, where it walks up folders that are really there."""
    parts = [part for part in member.linkname.split("/") if part not in ("", ".")]
    ups = next((index for index, part in enumerate(parts) if part != ".."), len(parts))
    if member.linkname.startswith("/") or ".." in parts[ups:] or ups > name.count("/"):
        raise _refusal(archive, f"holds the link `{member.name}` to `{member.linkname}`, which leaves the folder")
    return "/".join(parts) or "."


def _plain(name: str) -> str:
    return "/".join(part for part in name.split("/") if part not in ("", "."))


def _placed(scratch: Path, destination: Path, entry: _Entry) -> Path:
    target, elsewhere = destination / entry.name, "name another folder with `--to`"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.parent.resolve().is_relative_to(destination.resolve()):
            message = f"`{target.parent}` leads out of `{destination}`, so nothing is written there"
            raise TargetError(message, hint=elsewhere)
        os.replace(scratch / entry.name, target)  # noqa: PTH105 - of links too, never of what they point to
    except (OSError, RuntimeError) as error:  # something of that name is in the way; a loop of links is a RuntimeError
        raise TargetError(f"`{target}` cannot be written: {error}", hint=elsewhere) from error
    return target


def _refusal(archive: Path, what: str) -> TargetError:
    return TargetError(f"the archive `{archive.name}` {what}; nothing of it was unpacked", hint="look at it by hand")
