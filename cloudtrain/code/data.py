"""Local data that a job reads on its target: one file or all files of a folder, and the hash that names the data.

Code goes into a bundle (`tree.py`). Data is sent unchanged: ignore files do not apply, and a link becomes a copy of its
target. The findings about both stand here too.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from cloudtrain.code.files import Entry, content_hash, escape_path
from cloudtrain.code.ignore import IGNORE_FILE, ignore_line
from cloudtrain.code.secret_names import credentials_in
from cloudtrain.code.tree import LIMIT, NOTABLE, Digest, Tree, hash_files, largest_files, size_hint
from cloudtrain.code.walk import PAUSES
from cloudtrain.errors import CloudtrainError
from cloudtrain.job.model import format_size
from cloudtrain.plans.plan import Finding, Level
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
        """Whether the file still has the size and modification time that it had when the folder was listed."""
        status = self.place.stat()
        return (status.st_size, status.st_mtime_ns) == (self.size, self.mtime)


class LocalData(NamedTuple):
    """The files of local data, sorted by the bytes of their paths, with their hash and their total size in bytes."""

    files: tuple[DataFile, ...]
    sha256: str
    size: int


def read_data(place: str) -> LocalData:
    """Return the files of a folder, or a single file, with their hash. Unchanged files are not read again. If another
    program removes a file between the listing and the reading, the folder is read again.

    Raises:
        UnreadableData: the data does not exist, is too large, or cannot be read.
    """
    for pause in (*PAUSES, None):
        try:
            return _hashed(_files_of(place), os.path.isfile(place))  # noqa: PTH113
        except OSError as error:
            file = error.filename or place
            if pause is None or os.path.lexists(file):
                message = f"`{escape_path(str(file))}` cannot be read: {error.strerror}"
                hint = "name a folder or file that you have permission to read"
                raise UnreadableData(message, hint=hint) from None
            time.sleep(pause)
    raise AssertionError("not reached: the last attempt returns or raises")


def _files_of(place: str) -> tuple[DataFile, ...]:
    root = Path(place)
    if is_root(place):
        message = f"`{escape_path(place)}` is the root of this machine's file system"
        raise UnreadableData(message, hint="name the folder that holds the data")
    if root.is_dir():
        files = tuple(islice(_below(root), MOST_FILES + 1))
    elif root.is_file():
        files = (_file(root.name, root),)
    else:
        message = f"there is no folder or file `{escape_path(place)}`"
        raise UnreadableData(message, hint="write the path relative to the job file's folder, for example `./data`")
    if not files:
        message, hint = f"the folder `{escape_path(place)}` holds no file", "name the folder that holds the data"
        raise UnreadableData(message, hint=hint)
    if len(files) > MOST_FILES:
        message = f"`{escape_path(place)}` holds more than {MOST_FILES:,} files"
        hint = "pack the files into an archive, or upload them yourself and name their storage path in the job"
        raise UnreadableData(message, hint=hint)
    return tuple(sorted(files, key=lambda file: os.fsencode(file.path)))


def _below(folder: Path, prefix: str = "", above: tuple[Path, ...] = ()) -> Iterator[DataFile]:
    """Yield every file below a folder: first the files in the folder, then those in its subfolders. Links to
    folders are followed, except links to a folder that contains them."""
    here = folder.resolve()
    if here in above:
        return
    with os.scandir(folder) as listing:
        entries = sorted(listing, key=lambda entry: entry.name)
    folders = {entry.name for entry in entries if entry.is_dir()}
    for entry in entries:
        if entry.name not in folders:
            yield _file(prefix + entry.name, Path(entry.path))
    for name in sorted(folders):
        yield from _below(folder / name, f"{prefix}{name}/", (*above, here))


def _file(path: str, place: Path) -> DataFile:
    status = place.stat()
    if not stat.S_ISREG(status.st_mode):
        hint = "remove it, or name another folder"
        raise UnreadableData(f"`{escape_path(str(place))}` is not a plain file", hint=hint)
    return DataFile(path, place, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=16)
def _hashed(files: tuple[DataFile, ...], alone: bool) -> LocalData:
    """Return the files with their hash. `alone` says that the data is a single file, whose hash differs from the hash
    of a folder with only this file."""
    places, sizes = [os.path.realpath(file.place) for file in files], [file.size for file in files]
    entries = []
    for file, digest in zip(files, hash_files(places, sizes, [None] * len(files)), strict=True):
        if not isinstance(digest, Digest):
            raise digest
        entries.append(Entry(file.path, digest.size, alone, digest.sha256))
    return LocalData(files, content_hash(entries), sum(sizes))


# Findings about a bundle: secrets, size, and file names that the target does not support.

_LISTED = 10
_MOST_PLACES = 40
_BY_NAME = ", by its name"

_Place = tuple[str, str, str]
"""The path, the position and the finding: `a.py`, `a.py:3`, `github-pat`."""


def secret_findings(tree: Tree) -> list[Finding]:
    """Return the findings about secrets, judged by content and file name: the error `CT301` for certain secrets, and
    the warning `CT304` for possible ones.

    There is at most one finding per code; its details list every position. The secrets themselves are never shown.
    """
    certain: list[_Place] = []
    uncertain: list[_Place] = []
    credentials = credentials_in([entry.path for entry in tree.entries])
    for entry in tree.entries:
        if entry.path not in credentials and not entry.secrets:
            continue
        name = escape_path(entry.path)
        is_certain = any(secret.certain for secret in entry.secrets)
        if entry.path in credentials and not is_certain:
            uncertain.append((entry.path, name, f"{credentials[entry.path]}{_BY_NAME}"))
        for secret in entry.secrets:
            places = certain if secret.certain else uncertain
            places.append((entry.path, f"{name}:{secret.line}", secret.rule))
    findings = []
    if certain:
        findings.append(_secret("CT301", Level.ERROR, "the bundle contains a secret", certain))
    if uncertain:
        findings.append(_secret("CT304", Level.WARNING, "the bundle may contain a secret", uncertain))
    return findings


def _secret(code: str, level: Level, message: str, places: list[_Place]) -> Finding:
    path, place, what = places[0]
    others = len({path for path, _, _ in places}) - 1
    more = f", and {others} more file{'s' if others > 1 else ''}" if others else ""
    details = [f"{place}: {what}" for _, place, what in places[:_MOST_PLACES]]
    if len(places) > _MOST_PLACES:
        details.append(f"and {len(places) - _MOST_PLACES} more")
    is_by_name = any(what.endswith(_BY_NAME) for _, _, what in places)
    accept = f"accept it with `--ignore {code}`" if is_by_name else "write `gitleaks:allow` into a comment in that line"
    return Finding(
        code,
        level,
        f"{message} ({what}): `{place}`{more}",
        f"add the line `{ignore_line(path)}` to `{IGNORE_FILE}` in `source_dir`, and let the script read "
        f"secrets from the service's secret store; if it is not a secret, {accept}",
        ("source_dir",),
        details=tuple(details),
    )


def size_findings(tree: Tree) -> list[Finding]:
    """Return the error `CT302` if the bundle has more than 300 MiB, or the warning `CT303` if it has at least 50
    MiB. Sizes are before compression."""
    size = tree.identity.size
    if size <= LIMIT and size < NOTABLE:
        return []
    sizes = {entry.path: entry.size for entry in tree.entries}
    own = {path: size for path, size in sizes.items() if path not in tree.own_files} or sizes
    too_large = size > LIMIT
    count = f"{tree.identity.file_count} files"
    return [
        Finding(
            "CT302" if too_large else "CT303",
            Level.ERROR if too_large else Level.WARNING,
            f"the bundle holds {format_size(size)} in {count}"
            + (f"; the limit is {format_size(LIMIT)}" if too_large else ", all sent again after every change"),
            size_hint(own),
            ("source_dir",),
            details=tuple(largest_files(own, _LISTED)),
        )
    ]


_LONGEST_PATH = 3800
"""In bytes. Linux allows 4,096, and the path of the folder into which a bundle is unpacked needs some of them."""


def name_findings(tree: Tree, target: str, refuse: Callable[[str], str | None]) -> list[Finding]:
    """Return the error `CT306` if the target does not support the names of some files. `refuse` takes a path and
    returns why the target does not support it, such as `whose path is too long`; None if the target supports it."""
    faults = {entry.path: what for entry in tree.entries if (what := refuse(entry.path)) is not None}
    if not faults:
        return []
    first, others = next(iter(faults)), len(faults) - 1
    more = f", and {others} more file{'s' if others > 1 else ''}" if others else ""
    details = [f"{_cut(escape_path(path))}: {what}" for path, what in faults.items()]
    return [
        Finding(
            "CT306",
            Level.ERROR,
            f"`{target}` does not support `{_cut(escape_path(first))}`, {faults[first]}{more}",
            f"rename it, or add the line `{_cut(ignore_line(first))}` to `{IGNORE_FILE}` in `source_dir`",
            ("source_dir",),
            details=tuple(details[:_MOST_PLACES]),
        )
    ]


def refuse_archive_path(path: str) -> str | None:
    """Return why an archive that contains this path could not be unpacked; None if it could."""
    return "whose path is too long" if len(os.fsencode(path)) > _LONGEST_PATH else None


def _cut(name: str) -> str:
    return name if len(name) <= 200 else f"{name[:120]}...{name[-60:]}"
