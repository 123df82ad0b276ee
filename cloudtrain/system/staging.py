"""Safe transfer of untrusted files into a folder. Either all files appear in the folder, or none,
and nothing is written outside of it.

The names in archives and buckets come from others and are not trusted. Everything is first written
into a scratch folder that only this process uses. In this folder, each name can be used only once,
links are made last, and no name leads outside. Then the files are moved to their final paths.
Existing links in these paths are never followed, even if an earlier download made them. This module
uses only the standard library, because a supervisor unpacks archives with it.
"""

# Paths are strings here, because there may be a hundred thousand files.
from __future__ import annotations

import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from threading import Lock

TYPE_CHECKING = False  # like typing.TYPE_CHECKING, without importing typing
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

_LONGEST_NAME = 255
"""Maximum length of one name in bytes on common file systems."""

_CONTROLS = "".join(map(chr, (*range(0x20), *range(0x7F, 0xA0))))
"""The control characters of Unicode."""


class Unsafe(Exception):
    """A name or a link that must not be written. `reason` completes a sentence that begins with the
    name."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"`{_shown(name)}` {reason}")


def _shown(name: str) -> str:
    if name.isprintable():
        return name
    return repr(name)[1:-1]


def safe_name(name: str, *, odd: bool = False) -> str:
    """Return the normalized name of a file below a folder (`./a//b` is `a/b`). An `odd` name may
    contain control characters and `..\\`, because it is the name of a user's own file.

    Raises:
        Unsafe: the name leads outside, is not a file name, or contains characters that no terminal
            can show.
    """
    parts = _parts_of(name)
    steps = name if odd else name.replace("\\", "/")  # as Windows reads it
    if steps.startswith("/") or ".." in steps.split("/"):
        raise Unsafe(name, "would be written outside of the folder")
    if not parts:
        raise Unsafe(name, "is not a valid file name")

    controls = "\0" if odd else _CONTROLS
    if any(letter in controls for letter in name):
        raise Unsafe(name, "has a control character in its name")
    try:
        longest = max(len(os.fsencode(part)) for part in parts)
    except UnicodeEncodeError:
        raise Unsafe(name, "has a name that is not text") from None
    if longest > _LONGEST_NAME:
        raise Unsafe(name, "has a name that is too long")
    return "/".join(parts)


def _parts_of(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def safe_target(name: str, target: str) -> str:
    """Return a link's target in normalized form if it is safe: relative, and inside the folder.
    `..` is allowed only at the start of the target: later, it could follow another link and lead
    outside. `name` is what `safe_name` returns.

    Raises:
        Unsafe: the target is outside.
    """
    parts = _parts_of(target)
    ups = 0
    while parts[ups : ups + 1] == [".."]:
        ups += 1
    is_absolute = target.startswith("/")
    is_outside = ".." in parts[ups:] or ups > name.count("/")
    if not target or is_absolute or "\0" in target or is_outside:
        raise Unsafe(name, f"is a link to `{_shown(target)}`, which leads outside")
    return "/".join(parts) or "."


class Staging:
    """A scratch folder for files that are moved to `folder` together. Several threads can use it.

    At the end of the `with` block, the scratch folder is removed with all files that were not
    moved. `folder` is also removed if this class created it and it is still empty.
    """

    def __init__(self, folder: Path, *, odd_names: bool = False) -> None:
        """Create the scratch folder inside `folder`, and `folder` itself if it is missing. With
        `odd_names`, names may contain control characters, because they are names of the user's own
        files.

        Raises:
            OSError: a folder cannot be made.
        """
        self._new_folders = _missing(folder)
        os.makedirs(folder, exist_ok=True)
        self.folder = folder
        self._odd = odd_names
        self._scratch = tempfile.mkdtemp(dir=folder, prefix=".cloudtrain-")
        self._new = f"{self._scratch}/new"
        self._old = f"{self._scratch}/old"
        os.mkdir(self._new)
        os.mkdir(self._old)
        self._lock = Lock()
        self._names: dict[str, None] = {}  # in the order in which they were added
        self._folders = {""}
        self._links: dict[str, str] = {}

    def __enter__(self) -> Staging:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with suppress(FileNotFoundError):
            shutil.rmtree(self._scratch)
        with suppress(OSError):  # a folder is not empty
            for folder in self._new_folders:
                os.rmdir(folder)

    def create(self, name: str, mode: int = 0o644) -> int:
        """Create a file in the scratch folder, and return a descriptor for writing it.

        Raises:
            Unsafe: the name is not safe, or another file or folder has the same name. On a
                case-insensitive file system, names that differ only in case count as equal.
        """
        name = safe_name(name, odd=self._odd)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with self._lock:
            self._make_folders(name)
            self._take(name)
            try:
                return os.open(f"{self._new}/{name}", flags, mode)
            except (FileExistsError, IsADirectoryError):
                raise Unsafe(name, "stands where another file does") from None

    def place(self, name: str) -> Path:
        """Create an empty file in the scratch folder, and return the path to write to.

        Raises:
            Unsafe: the name is not safe, or another file or folder has the same name.
        """
        os.close(self.create(name))
        return Path(self._new, safe_name(name, odd=self._odd))

    def drop(self, name: str) -> None:
        """Remove a file from the scratch folder, because its source turned out not to exist."""
        with self._lock:
            name = safe_name(name, odd=self._odd)
            os.unlink(f"{self._new}/{name}")
            del self._names[name]

    def link(self, name: str, target: str) -> None:
        """Record a link, which `make_links` will create.

        Raises:
            Unsafe: the name is not safe, or the link leads outside.
        """
        name = safe_name(name, odd=self._odd)
        with self._lock:
            self._take(name)
            self._links[name] = safe_target(name, target)

    def make_links(self) -> None:
        """Create the recorded links. Call this after all files are written, so that no file is
        written through a link.

        Raises:
            Unsafe: a link is below another link, or has the path of a file.
        """
        for name, target in self._links.items():
            above = name.rpartition("/")[0]
            while above:
                if above in self._links:
                    raise Unsafe(name, "is below a link")
                above = above.rpartition("/")[0]
            self._make_folders(name)
            try:
                os.symlink(target, f"{self._new}/{name}")
            except FileExistsError:
                raise Unsafe(name, "stands where another file does") from None
        self._links.clear()

    def scratch(self, name: str) -> Path:
        """Return a path in the scratch folder for a temporary file, such as an archive, that stays
        there."""
        return Path(self._scratch, name)

    def become(self, destination: Path) -> None:
        """Rename the folder with the new files to `destination`, which must be empty or not exist.

        Raises:
            Unsafe: a link is below another link, or has the path of a file.
            OSError: `destination` is not an empty folder.
        """
        self.make_links()
        os.chmod(self._new, 0o755)
        os.rename(self._new, destination)

    def move(self) -> list[Path]:
        """Move the files into the folder, in the order in which they were added. Existing files
        with the same names are replaced.

        Raises:
            Unsafe: an existing link or folder has the path of a file. Nothing is moved.
            OSError: a file cannot be moved. Files that were already moved are moved back.
        """
        self.make_links()
        journal: list[tuple[str, str | None]] = []
        new_folders: list[str] = []
        existing_folders = {""}

        root = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._check_destinations(root)
            for number, name in enumerate(self._names):
                folder, _, last = name.rpartition("/")
                _make_way(root, folder, existing_folders, new_folders)
                parent = _open_folder(root, folder)
                try:
                    # an existing file is kept until all files are moved
                    old = f"{self._old}/{number}"
                    backup = None
                    with suppress(FileNotFoundError):
                        os.rename(last, old, src_dir_fd=parent)
                        backup = old
                    journal.append((name, backup))
                    os.rename(f"{self._new}/{name}", last, dst_dir_fd=parent)
                finally:
                    os.close(parent)
        except BaseException:
            self._take_back(root, journal, new_folders)
            raise
        finally:
            os.close(root)
        return list(map(self.folder.joinpath, self._names))

    def _take(self, name: str) -> None:
        """Reserve a name for a file or link. Raises Unsafe if it is used already."""
        if name in self._names or name in self._folders:
            raise Unsafe(name, "stands where another file does")
        self._names[name] = None

    def _make_folders(self, name: str) -> None:
        """Make the folders above a name in the scratch folder. Raises Unsafe if one of them cannot
        be a folder."""
        folder = name.rpartition("/")[0]
        if folder in self._folders:
            return
        self._make_folders(folder)

        try:
            os.mkdir(f"{self._new}/{folder}")
        except (FileExistsError, NotADirectoryError):
            raise Unsafe(
                name, "is below a file, or a folder whose name differs only in case"
            ) from None
        if folder in self._names:
            raise Unsafe(name, "is below a link")
        self._folders.add(folder)

    def _check_destinations(self, root: int) -> None:
        """Before the first file is moved, check that every file can be placed in the folder."""
        folders: set[str] = set()
        for name in self._names:
            parts = name.split("/")
            for depth in range(1, len(parts) + 1):
                place = "/".join(parts[:depth])
                if place in folders:
                    continue

                try:
                    mode = os.stat(place, dir_fd=root, follow_symlinks=False).st_mode
                except FileNotFoundError:
                    break  # nothing is below it either

                if depth == len(parts):
                    if stat.S_ISDIR(mode):
                        raise Unsafe(name, "cannot be written, because a folder has this name")
                elif not stat.S_ISDIR(mode):
                    what = "a link, which may lead outside" if stat.S_ISLNK(mode) else "a file"
                    raise Unsafe(name, f"cannot be written: `{place}` is {what}")
                else:
                    folders.add(place)

    def _take_back(
        self, root: int, journal: Sequence[tuple[str, str | None]], new_folders: Sequence[str]
    ) -> None:
        """Undo the moves in `journal`, and remove the folders in `new_folders`. Steps that fail are
        skipped."""
        for name, backup in reversed(journal):
            folder, _, last = name.rpartition("/")
            with suppress(OSError):
                parent = _open_folder(root, folder)
                try:
                    if backup is not None:
                        os.rename(backup, last, dst_dir_fd=parent)
                    else:
                        os.unlink(last, dir_fd=parent)
                finally:
                    os.close(parent)

        for folder in reversed(new_folders):
            with suppress(OSError):
                os.rmdir(folder, dir_fd=root)


def _missing(folder: Path) -> list[str]:
    """Return the folder and its parents that do not exist, the innermost first."""
    folders = []
    place = os.path.abspath(folder)
    while not os.path.lexists(place):
        folders.append(place)
        place = os.path.dirname(place)
    return folders


def _open_folder(root: int, folder: str) -> int:
    """Open a folder below the folder `root`, and return its descriptor. No link in the path is
    followed."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.dup(root)
    for part in folder.split("/") if folder else ():
        try:
            inner = os.open(part, flags, dir_fd=descriptor)
        finally:
            os.close(descriptor)
        descriptor = inner
    return descriptor


def _make_way(root: int, folder: str, existing_folders: set[str], new_folders: list[str]) -> None:
    """Create a folder below the folder `root`, and its missing parents. `existing_folders` lists
    folders that exist already. New folders are added to `existing_folders` and `new_folders`."""
    if folder in existing_folders:
        return
    above, _, last = folder.rpartition("/")
    _make_way(root, above, existing_folders, new_folders)

    parent = _open_folder(root, above)
    try:
        os.mkdir(last, dir_fd=parent)
        new_folders.append(folder)
    except FileExistsError:
        pass
    finally:
        os.close(parent)
    existing_folders.add(folder)
