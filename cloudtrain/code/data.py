"""Local data that a job reads on its target: one file or all files of a folder, and the hash that
names the data.

Code goes into a bundle (`tree.py`). Data is sent unchanged: ignore files do not apply, and a link
becomes a copy of its target.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from cloudtrain.code.files import Entry, content_hash, escape_path
from cloudtrain.code.tree import Digest, hash_files
from cloudtrain.code.walk import PAUSES, SourceFile
from cloudtrain.errors import CloudtrainError
from cloudtrain.system.files import is_root

MOST_FILES = 200_000


class UnreadableData(CloudtrainError):
    """The job names local data that cannot be sent."""

    exit_code = 2
    code = "CT986"


class DataFile(NamedTuple):
    """A data file, with its size and modification time when the folder was listed."""

    path: str
    """The path below the folder, with slashes; for a single file its name."""
    place: Path
    size: int
    mtime: int
    """Time of the last modification, in nanoseconds."""

    @property
    def is_as_it_was(self) -> bool:
        """Whether the file still has the size and modification time that it had when the folder was
        listed."""
        status = self.place.stat()
        return (status.st_size, status.st_mtime_ns) == (self.size, self.mtime)


class LocalData(NamedTuple):
    """The files of local data, sorted by the bytes of their paths, with their hash and their total
    size in bytes. `linked` are the paths of those whose content is outside of the folder."""

    files: tuple[DataFile, ...]
    sha256: str
    size: int
    linked: tuple[str, ...] = ()


def read_data(place: str) -> LocalData:
    """Return the files of a folder, or a single file, with their hash. Unchanged files are not read
    again. If another program removes a file between the listing and the reading, the folder is read
    again.

    Raises:
        UnreadableData: the data does not exist, is too large, or cannot be read.
    """
    for pause in (*PAUSES, None):  # None for the last attempt
        try:
            return _hashed(_files_of(place), os.path.realpath(place), os.path.isfile(place))
        except OSError as error:
            file = error.filename or place
            # A file that is gone was removed after the listing. Any other error will stay.
            if pause is None or os.path.lexists(file):
                message = f"`{escape_path(str(file))}` cannot be read: {error.strerror}"
                raise UnreadableData(
                    message, hint="name a folder or file that you have permission to read"
                ) from None
            time.sleep(pause)
    raise AssertionError("not reached: the last attempt returns or raises")


def _files_of(place: str) -> tuple[DataFile, ...]:
    """Return the files of a folder, or a single file, sorted by the bytes of their paths."""
    root = Path(place)
    shown = f"`{escape_path(place)}`"
    if is_root(place):
        raise UnreadableData(
            f"{shown} is the root of this machine's file system",
            hint="name the folder that holds the data",
        )

    if root.is_dir():
        files = list(islice(files_below(root), MOST_FILES + 1))
    elif root.is_file():
        files = [_data_file(root.name, root)]
    else:
        raise UnreadableData(
            f"there is no folder or file {shown}",
            hint="write the path relative to the job file's folder, for example `./data`",
        )

    if not files:
        raise UnreadableData(
            f"the folder {shown} holds no file", hint="name the folder that holds the data"
        )
    if len(files) > MOST_FILES:
        raise UnreadableData(
            f"{shown} holds more than {MOST_FILES:,} files",
            hint="pack the files into an archive, or upload them yourself and name their storage "
            "path in the job",
        )

    files.sort(key=lambda file: os.fsencode(file.path))
    return tuple(files)


def files_below(folder: Path, prefix: str = "", above: tuple[Path, ...] = ()) -> Iterator[DataFile]:
    """Yield every file below a folder: first the files in the folder, then those in its subfolders.
    Links to folders are followed, except links to a folder that contains them.

    `prefix` is put before each path. `above` holds the real paths of the folders that the search
    came through.
    """
    real = folder.resolve()
    if real in above:
        return

    with os.scandir(folder) as listing:
        entries = sorted(listing, key=lambda entry: entry.name)

    folders = {entry.name for entry in entries if entry.is_dir()}
    for entry in entries:
        if entry.name not in folders:
            yield _data_file(prefix + entry.name, Path(entry.path))

    above = (*above, real)
    for name in sorted(folders):
        yield from files_below(folder / name, f"{prefix}{name}/", above)


def _data_file(path: str, place: Path) -> DataFile:
    """Return the file at a place on disk as it is now. Raises UnreadableData for a device or a
    socket."""
    status = place.stat()
    if not stat.S_ISREG(status.st_mode):
        raise UnreadableData(
            f"`{escape_path(str(place))}` is not a plain file",
            hint="remove it, or name another folder",
        )
    return DataFile(path, place, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=16)
def _hashed(files: tuple[DataFile, ...], root: str, alone: bool) -> LocalData:
    """Return the files of the folder `root` with their hash. `alone` says that the data is a single
    file, whose hash differs from the hash of a folder with only this file."""
    sources = []
    for file in files:
        real = os.path.realpath(file.place)
        # The mark of an executable file makes the hash of a single file differ.
        sources.append(SourceFile(file.path, file.size, alone, real, False))

    entries = []
    linked = []
    for source, digest in zip(sources, hash_files(sources), strict=True):
        if not isinstance(digest, Digest):
            raise digest
        if not alone and not source.place.startswith(f"{root}/"):
            linked.append(source.path)
        entries.append(Entry(source.path, digest.size, alone, digest.sha256))
    size = sum(file.size for file in files)
    return LocalData(files, content_hash(entries), size, tuple(linked))
