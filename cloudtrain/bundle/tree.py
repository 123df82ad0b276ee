"""Reads a source folder once and returns its bundle: the files, the hash that names the bundle, and a method to write
the archive."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cloudtrain.bundle.entries import Entry, Ignored, content_hash, escape_path
from cloudtrain.bundle.hashing import Digest, hash_files
from cloudtrain.bundle.ignore import IGNORE_FILE, ignore_line
from cloudtrain.bundle.links import BrokenLink, Links
from cloudtrain.bundle.sizes import LIMIT, largest_files, size_hint
from cloudtrain.bundle.walk import PAUSES, Moved, Walk, has_moved, read_until_settled, walk
from cloudtrain.core.plan import Bundle
from cloudtrain.core.units import format_size
from cloudtrain.errors import JobError, Problem
from cloudtrain.system.paths import why_missing

CEILING = 10 * LIMIT
"""Size in bytes from which a folder is refused without being hashed, because reading it would take minutes."""

_OURS = ("cloudtrain", "cloudtrain.py")


@dataclass(frozen=True)
class Tree:
    """The content of a bundle: a snapshot of the source folder, taken when it was read."""

    root: Path
    entries: tuple[Entry, ...]
    """Sorted by the bytes of their paths. They include the runtime and other added files."""
    ignored: tuple[Ignored, ...]
    identity: Bundle
    added: Mapping[str, Path] = field(default_factory=dict, hash=False)
    """cloudtrain's own files: maps the path in the archive to the path on disk."""
    included: Mapping[str, str] = field(default_factory=dict, hash=False)
    """The user's files from outside of `root`: maps the path in the archive to the path on disk."""

    @property
    def sha256(self) -> str:
        """Hash of the content, not of the compressed bytes. The hash names the archive."""
        return self.identity.sha256

    def location(self, entry: Entry) -> str:
        """Return the path of the entry's file on disk."""
        return os.fspath(self.added.get(entry.path) or self.included.get(entry.path) or self.root / entry.path)

    def write(self, path: Path) -> None:
        """Write the archive, a tar.gz. The same content and compression library give the same bytes.

        Atomic: `path` either holds the whole archive or does not exist. A missing folder is created.

        Raises:
            SourceChanged: a file has changed since the tree was read.
        """
        from cloudtrain.bundle.archive import write_archive

        write_archive(((entry, self.location(entry)) for entry in self.entries), path)


def scan(
    source_dir: Path,
    *,
    extra: Mapping[str, Path] | None = None,
    declared: Mapping[str, str] | None = None,
    beside: Mapping[str, str] | None = None,
    alone: bool = False,
    ceiling: int = CEILING,
) -> Tree:
    """Read the user's folder: find the files that are not ignored, and hash them. Nothing is written.

    If another program removes or replaces a file between the listing and the reading, such as an editor's temporary
    file, the folder is read again.

    Args:
        source_dir: the folder with the user's code.
        extra: files to add to those of `source_dir` and of cloudtrain's runtime; maps paths in the archive to paths on
            disk.
        declared: paths below the folder that the job uses as data and not as code, each with a description.
        beside: files and folders to add from outside the folder; maps names at the root of the bundle to paths on disk.
        alone: use only the files of `beside`, and read nothing of `source_dir`.
        ceiling: size in bytes above which the folder is refused before its files are read.

    Raises:
        JobError: the folder does not exist, or contains something that a bundle cannot hold; every problem is listed.
    """
    try:
        return read_until_settled(lambda: _scan(source_dir, extra or {}, declared, beside, alone, ceiling))
    except Moved as moved:
        raise _always_moved(moved.path) from None


def _scan(
    source_dir: Path,
    extra: Mapping[str, Path],
    declared: Mapping[str, str] | None,
    beside: Mapping[str, str] | None,
    alone: bool,
    ceiling: int,
) -> Tree:
    """Read the user's folder once; see `scan`.

    Raises:
        Moved: a path was removed or replaced between the listing and the reading.
    """
    _check_folder(source_dir)
    root = os.path.abspath(source_dir)  # noqa: PTH100 - Path.absolute() keeps `..`
    found = walk(root, declared, beside=beside, alone=alone)
    _check_ceiling(found, ceiling)
    added = {path: Path(os.path.realpath(file)) for path, file in {**runtime_files(), **extra}.items()}
    _check_names(found, extra)
    links = _link_entries(root, found)
    entries = [*_file_entries(found, added), *links]
    if found.problems:
        raise JobError(found.problems)
    entries.sort(key=lambda entry: os.fsencode(entry.path))
    size = sum(entry.size for entry in entries)
    identity = Bundle(content_hash(entries), size, len(entries))
    included = {file.path: file.place for file in found.files if file.path.split("/", 1)[0] in found.included}
    return Tree(Path(root), tuple(entries), tuple(sorted(found.ignored)), identity, added, included)


def runtime_files() -> dict[str, Path]:
    """Return the files of `cloudtrain.runtime`, which are added to every bundle so that scripts can import them. The
    keys are the paths in the bundle, the values are the paths on disk."""
    import cloudtrain

    package = Path(cloudtrain.__file__).parent
    files = [package / "__init__.py", *(package / "runtime").rglob("*.py")]
    return {f"cloudtrain/{file.relative_to(package).as_posix()}": file for file in files}


def _always_moved(path: str) -> JobError:
    """Return the error for a folder in which a path was removed or replaced during every attempt to read it."""
    name, hint = "`source_dir`", "run the command again when no program is writing to `source_dir`"
    if path:
        name = f"`{escape_path(path)}`"
        hint += f", or if the job does not need it, add the line `{ignore_line(path)}` to `{IGNORE_FILE}`"
    message = f"{name} was removed or replaced while `source_dir` was being read, {len(PAUSES) + 1} times in a row"
    return _problem(message, hint, "CT963")


def _problem(message: str, hint: str, code: str = "CT050") -> JobError:
    return JobError([Problem(("source_dir",), message, hint, code=code)])


def _check_folder(source_dir: Path) -> None:
    place = os.fspath(source_dir)
    name, missing = escape_path(place), why_missing(place)
    if os.path.isdir(place):  # noqa: PTH112 - a Path raises where the name is too long
        return
    if missing is None:
        hint = f"name the folder that contains the file: `source_dir: {escape_path(os.fspath(source_dir.parent))}`"
        raise _problem(f"`{name}` is a file, not a folder", hint)
    hint = "name the folder with your code, relative to the job file, or write `.` for the job file's own folder"
    raise _problem(f"the folder `{name}` {missing}", hint)


def _check_ceiling(found: Walk, ceiling: int) -> None:
    size = sum(file.size for file in found.files)
    if size > ceiling:
        sizes = {file.path: file.size for file in found.files}
        listing = ", ".join(largest_files(sizes, 3))
        message = f"`source_dir` holds {format_size(size)}, too much for a bundle of code; the largest: {listing}"
        raise _problem(message, size_hint(sizes), "CT053")


def _check_names(found: Walk, extra: Mapping[str, Path]) -> None:
    paths = [*(file.path for file in found.files), *found.links]
    for name in sorted({path.split("/", 1)[0] for path in paths} & set(_OURS)):
        message = f"`{name}` in `source_dir` has the name of cloudtrain's own package, which is added to every bundle"
        found.refuse(name, message, remedy="give it another name")
    for path in sorted(set(paths) & set(extra)):
        message = f"`{escape_path(path)}` in `source_dir` has the name of a file that is added to the bundle"
        found.refuse(path, message, remedy="give it another name")


def _file_entries(found: Walk, added: Mapping[str, Path]) -> list[Entry]:
    paths = [*(file.path for file in found.files), *added]
    places = [*(file.place for file in found.files), *map(os.fspath, added.values())]
    sizes = [*(file.size for file in found.files), *(file.stat().st_size for file in added.values())]
    executable = [*(file.executable for file in found.files), *(False for _ in added)]
    entries = []
    searched = [*(file.path for file in found.files), *(None for _ in added)]
    for path, bit, digest in zip(paths, executable, hash_files(places, sizes, searched), strict=True):
        if isinstance(digest, Digest):
            entries.append(Entry(path, digest.size, bit, digest.sha256, None, digest.secrets))
        elif has_moved(digest):
            raise Moved(path)
        else:
            message = f"`{escape_path(path)}` cannot be read: {digest.strerror}"
            found.refuse(path, message, remedy="make it readable for you")
    return entries


def _link_entries(root: str, found: Walk) -> list[Entry]:
    if not found.links:
        return []
    links = Links({root, os.path.realpath(root)}, [file.path for file in found.files], found.links)
    entries = []
    for path in sorted(found.links):
        try:
            entries.append(Entry(path, target=links.canonical(path)))
        except BrokenLink as reason:
            target = escape_path(found.links[path])
            message = f"the link `{escape_path(path)}` points to `{target}`, which {escape_path(str(reason))}"
            found.refuse(path, message, remedy="put a copy of the file in its place")
    return entries
