"""Reads a source folder once and returns its bundle: the files, the hash that names the bundle, and
a method to write the archive."""

from __future__ import annotations

import codecs
import hashlib
import os
import struct
import sys
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import mkstemp
from typing import TYPE_CHECKING, Any, NamedTuple

from cloudtrain.code.files import (
    BrokenLink,
    Entry,
    Ignored,
    Links,
    Secret,
    content_hash,
    escape_path,
)
from cloudtrain.code.ignore import IGNORE_FILE, ignore_line
from cloudtrain.code.suspects import searched_sizes, suspects
from cloudtrain.code.walk import (
    MOVED,
    PAUSES,
    Moved,
    SourceFile,
    Walk,
    read_until_settled,
    source_error,
    walk,
)
from cloudtrain.documents.document import decode_python
from cloudtrain.errors import CloudtrainError, JobError
from cloudtrain.job.model import format_size
from cloudtrain.plans.plan import Bundle
from cloudtrain.runtime.atomic import sync_folder
from cloudtrain.system.files import why_missing

if TYPE_CHECKING:
    from concurrent.futures import Future

# Every file is read once, for its hash, its true size and the secrets in it.

PIECE = 1 << 20
"""Number of bytes read at a time."""

_INLINE = 4 << 20
"""Total size in bytes up to which starting threads costs more time than it saves."""
_BATCH = 32
"""Files per task. Starting a task takes about as long as hashing one small file."""


class Digest(NamedTuple):
    """The hash, true size and secrets of a file, as found by reading it."""

    sha256: str
    size: int
    secrets: tuple[Secret, ...] = ()


def open_regular(path: str) -> int:
    """Open a file for reading and return its descriptor. A link is refused, even if it replaced a
    file after the folder was listed.

    Raises:
        OSError: the file cannot be opened.
    """
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)


def workers() -> int:
    """Return the number of threads that hash or compress: one for each processor that this process
    may use, at most 8."""
    usable = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        usable = len(os.sched_getaffinity(0))
    return min(usable, 8)


def hash_files(files: Sequence[SourceFile]) -> list[Digest | OSError]:
    """Return one digest per file, in order, or the error if the file could not be read.

    Hashing and reading release the interpreter lock, so several files are read at a time.
    """
    paths = [file.path if file.is_searched else None for file in files]
    sizes = [file.size for file in files]
    searched = searched_sizes(paths, sizes)
    if sum(sizes) <= _INLINE:
        return list(map(_digest, files, searched))
    from concurrent.futures import ThreadPoolExecutor

    def digests(start: int) -> list[Digest | OSError]:
        window = slice(start, start + _BATCH)
        return list(map(_digest, files[window], searched[window]))

    found: list[Digest | OSError] = []
    with ThreadPoolExecutor(workers()) as pool:
        for batch in pool.map(digests, range(0, len(files), _BATCH)):
            found += batch
    return found


def _digest(file: SourceFile, searched: int) -> Digest | OSError:
    """Read a file once, and return its digest, or the error. Its first `searched` bytes are
    searched for secrets."""
    digest = hashlib.sha256()
    pieces: list[bytes] = []
    size = 0
    # A short piece is the last. So one byte more than expected spares a second read.
    amount = min(file.size + 1, PIECE)
    try:
        descriptor = open_regular(file.place)
        try:
            while True:
                piece = os.read(descriptor, amount)
                digest.update(piece)
                if size < searched:
                    pieces.append(piece)
                size += len(piece)
                if len(piece) < amount:
                    break
                amount = PIECE
        finally:
            os.close(descriptor)
    except OSError as error:
        return error

    secrets: tuple[Secret, ...] = ()
    if searched:
        secrets = _secrets(b"".join(pieces)[:searched], file.path)
    return Digest(digest.hexdigest(), size, secrets)


def _secrets(content: bytes, path: str) -> tuple[Secret, ...]:
    """Return the secrets in a file's content. Most files need no rules, which are slow to load."""
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):  # as Windows writes it
        content = content.decode("utf-16", "replace").encode("utf-8", "replace")
    spans = suspects(content, path)
    if not spans:
        return ()
    from cloudtrain.code.secrets import secrets_in

    return secrets_in(content, spans, path)


# Limits of size, and hints about the largest files.

LIMIT = 300 << 20
"""In bytes. Azure ML's documented limit for a job's snapshot of code; far more than code needs on
any target."""

NOTABLE = 50 << 20
"""In bytes. From this size on, a warning says that every changed bundle makes a submit slow."""


def largest_files(sizes: Mapping[str, int], count: int) -> list[str]:
    """Return the `count` largest files as `a/b.bin (1.5 GiB)`, the largest first. Files of equal
    size are sorted by name."""
    ranked = sorted(sizes, key=lambda path: (-sizes[path], path))
    return [f"{escape_path(path)} ({format_size(sizes[path])})" for path in ranked[:count]]


def size_hint(sizes: Mapping[str, int]) -> str:
    """Return a hint with a line for the ignore file. The line excludes the largest file or folder
    at the root. If one file makes up more than half of that folder, the line excludes only this
    file. `sizes` maps paths to bytes."""
    totals: Counter[str] = Counter()
    for path, size in sizes.items():
        top, slash, _ = path.partition("/")
        totals[top + slash] += size

    heavy, weight = totals.most_common(1)[0]
    largest = max(sizes, key=lambda path: (sizes[path], path))
    name = largest if sizes[largest] > weight / 2 else heavy
    line = ignore_line(name)
    return (
        f"leave out what the script does not import, for example with the line `{line}` in "
        f"`{IGNORE_FILE}` in `source_dir`; data goes into the job's `inputs`"
    )


# The snapshot of the source folder.

CEILING = 10 * LIMIT
"""Size in bytes from which a folder is refused without being hashed, because reading it would take
minutes."""

_OURS = ("cloudtrain", "cloudtrain.py")
"""Names at the root of a bundle that only cloudtrain's own package may have."""


def bundle_of(entries: Sequence[Entry]) -> Bundle:
    """Return the identity of a bundle with these entries, which must be sorted by path."""
    size = sum(entry.size for entry in entries)
    return Bundle(content_hash(entries), size, len(entries))


@dataclass(frozen=True)
class Tree:
    """The content of a bundle: a snapshot of the source folder, taken when it was read."""

    root: Path
    entries: tuple[Entry, ...]
    """Sorted by the bytes of their paths. They include the runtime and other added files."""
    ignored: tuple[Ignored, ...]
    identity: Bundle
    own_files: Mapping[str, Path | bytes] = field(default_factory=dict, hash=False)
    """cloudtrain's own files: maps the path in the archive to the path on disk, or to a generated
    file's content."""
    included: Mapping[str, str] = field(default_factory=dict, hash=False)
    """The user's files from outside of `root`: maps the path in the archive to the path on disk."""

    @property
    def sha256(self) -> str:
        """Hash of the content, not of the compressed bytes. The hash names the archive."""
        return self.identity.sha256

    @property
    def user_files(self) -> list[Entry]:
        """The entries without cloudtrain's own files."""
        return [entry for entry in self.entries if entry.path not in self.own_files]

    def location(self, entry: Entry) -> str:
        """Return the path on disk; of a generated file the path that the user's file of this name
        would have."""
        path = entry.path
        own = self.own_files.get(path)
        if isinstance(own, Path):
            return os.fspath(own)
        return self.included.get(path) or os.fspath(self.root / path)

    @cached_property
    def by_path(self) -> Mapping[str, Entry]:
        """The entries by their paths in the archive."""
        return {entry.path: entry for entry in self.entries}

    def read_bytes(self, path: str) -> bytes | None:
        """Return the content of the file at a path in the archive; None if there is none, or if it
        cannot be read."""
        own = self.own_files.get(path)
        if isinstance(own, bytes):
            return own
        entry = self.by_path.get(path)
        if entry is None:
            return None
        try:
            return Path(self.location(entry)).read_bytes()
        except OSError:
            return None

    def read_text(self, path: str) -> str | None:
        """Return the text of a file without a byte order mark, as `read_bytes` finds it."""
        content = self.read_bytes(path)
        return None if content is None else content.decode("utf-8-sig", "replace")

    def read_python(self, path: str) -> str | None:
        """Return the Python source in a file, as `read_bytes` finds it. Raises SyntaxError if
        Python cannot decode it."""
        content = self.read_bytes(path)
        return None if content is None else decode_python(content)

    def write(self, path: Path) -> None:
        """Write the archive, a tar.gz. The same content and compression library give the same
        bytes.

        Atomic: `path` either holds the whole archive or does not exist. A missing folder is
        created.

        Raises:
            SourceChanged: a file has changed since the tree was read.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
        try:
            with os.fdopen(descriptor, "wb") as file:
                for piece in gzip_stream(_tar(self)):
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def scan(
    source_dir: Path,
    *,
    declared: Mapping[str, str] | None = None,
    beside: Mapping[str, str] | None = None,
    alone: bool = False,
) -> Tree:
    """Read the user's folder: find the files that are not ignored, and hash them. Nothing is
    written.

    If another program removes or replaces a file between the listing and the reading, such as an
    editor's temporary file, the folder is read again.

    Args:
        source_dir: the folder with the user's code.
        declared: paths below the folder that the job uses as data and not as code, each with a
            description.
        beside: files and folders to add from outside the folder; maps names at the root of the
            bundle to paths on disk.
        alone: use only the files of `beside`, and read nothing of `source_dir`.

    Raises:
        JobError: the folder does not exist, or contains something that a bundle cannot hold; every
            problem is listed.
    """

    def read() -> Tree:
        _check_folder(source_dir)
        # Path.absolute() keeps `..`.
        root = os.path.abspath(source_dir)
        result = walk(root, declared, beside=beside, alone=alone)
        _check_size(result)
        _check_names(result)

        # Files are opened without following links, and an installation may consist of links.
        own_files = {}
        for path, own in runtime_files().items():
            own_files[path] = own.resolve() if own.is_symlink() else own
        links = _link_entries(root, result)
        entries = [*_file_entries(result, own_files), *links]
        if result.problems:
            raise JobError(result.problems)

        entries.sort(key=lambda entry: os.fsencode(entry.path))
        identity = bundle_of(entries)
        included = {}
        for file in result.files:
            if _top(file.path) in result.included:
                included[file.path] = file.place
        ignored = tuple(sorted(result.ignored))
        return Tree(Path(root), tuple(entries), ignored, identity, own_files, included)

    try:
        return read_until_settled(read)
    except Moved as moved:
        raise _moved_error(str(moved)) from None


def _top(path: str) -> str:
    """Return the name of a path's first folder."""
    return path.split("/", 1)[0]


def runtime_files() -> dict[str, Path]:
    """Return the files of `cloudtrain.runtime`, which are added to every bundle so that scripts can
    import them. The keys are the paths in the bundle, the values are the paths on disk."""
    package = Path(__file__).parents[1]
    files = [package / "__init__.py", package / "version.py"]
    files += package.glob("runtime/**/*.py")
    return {f"cloudtrain/{file.relative_to(package).as_posix()}": file for file in files}


def _moved_error(path: str) -> JobError:
    """Return the error for a path that was moved at every attempt; an empty path is the source
    folder."""
    message = (
        f"`{escape_path(path) or 'source_dir'}` was removed or replaced while `source_dir` was "
        f"being read, {len(PAUSES) + 1} times in a row"
    )
    return source_error(message, _settle_hint(path), "CT963")


def _settle_hint(path: str) -> str:
    """Return what to do if another program changes the file or folder at the path."""
    hint = "run the command again when no program is writing to `source_dir`"
    if path:
        line = f"add the line `{ignore_line(path)}` to `{IGNORE_FILE}`"
        hint += f", or if the job does not need it, {line}"
    return hint


def _check_folder(source_dir: Path) -> None:
    """Raise JobError if the source folder does not exist or is not a folder."""
    place = os.fspath(source_dir)
    name = escape_path(place)
    # A Path raises where the name is too long.
    if os.path.isdir(place):
        return

    missing = why_missing(place)
    if missing is None:
        folder = escape_path(os.fspath(source_dir.parent))
        raise source_error(
            f"`{name}` is a file, not a folder",
            f"name the folder that contains the file: `source_dir: {folder}`",
        )
    raise source_error(
        f"the folder `{name}` {missing}",
        "name the folder with your code, relative to the job file, or write `.` for the job "
        "file's own folder",
    )


def _check_size(result: Walk) -> None:
    """Raise JobError if the listed files are far too large for a bundle."""
    sizes = {file.path: file.size for file in result.files}
    size = sum(sizes.values())
    if size > CEILING:
        listing = ", ".join(largest_files(sizes, 3))
        message = (
            f"`source_dir` holds {format_size(size)}, too much for a bundle of code; the "
            f"largest: {listing}"
        )
        raise source_error(message, size_hint(sizes), "CT053")


def _check_names(result: Walk) -> None:
    """Refuse files and links at the place of cloudtrain's own package."""
    names = {_top(file.path) for file in result.files}
    names.update(map(_top, result.links))
    for name in _OURS:
        if name in names:
            result.refuse(
                name,
                f"`{name}` in `source_dir` has the name of cloudtrain's own package, which is "
                "added to every bundle",
                remedy="give it another name",
            )


def _file_entries(result: Walk, own_files: Mapping[str, Path]) -> list[Entry]:
    """Return the entries of all files, hashed and searched for secrets. A file that cannot be read
    becomes a problem of `result`."""
    files = [*result.files]
    for path, own in own_files.items():
        files.append(SourceFile(path, own.stat().st_size, False, os.fspath(own), False))

    entries = []
    for file, digest in zip(files, hash_files(files), strict=True):
        path = file.path
        if isinstance(digest, Digest):
            sha256, size, secrets = digest
            entries.append(Entry(path, size, file.executable, sha256, None, secrets))
        elif digest.errno in MOVED:
            raise Moved(path)
        else:
            message = f"`{escape_path(path)}` cannot be read: {digest.strerror}"
            result.refuse(path, message, remedy="make it readable for you")
    return entries


def _link_entries(root: str, result: Walk) -> list[Entry]:
    """Return the entries of all links. A link that a bundle cannot contain becomes a problem of
    `result`."""
    if not result.links:
        return []
    roots = {root, os.path.realpath(root)}
    links = Links(roots, [file.path for file in result.files], result.links)
    entries = []
    for path, link_target in sorted(result.links.items()):
        try:
            entries.append(Entry(path, target=links.canonical(path)))
        except BrokenLink as reason:
            aim = f"`{escape_path(link_target)}`, which {escape_path(str(reason))}"
            message = f"the link `{escape_path(path)}` points to {aim}"
            result.refuse(path, message, remedy="put a copy of the file in its place")
    return entries


# One gzip stream, compressed block by block in several threads.
#
# Every block ends on a byte boundary and does not refer to earlier blocks, so the blocks can be
# concatenated. The result is a single ordinary gzip member. It does not depend on the number of
# threads.

BLOCK = 1 << 20
"""Bytes per block. Smaller blocks compress worse, and larger ones need more memory; 1 MiB is a good
compromise."""

_HEADER = b"\x1f\x8b\x08\x00" + bytes(4) + b"\x00\xff"
"""Header fields: deflate, no name, no time, no level, no operating system."""
_LAST_BLOCK = b"\x03\x00"


def gzip_stream(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the gzip stream of all pieces. Only a few blocks are in memory at a time."""
    from concurrent.futures import ThreadPoolExecutor

    library, level = _library()
    threads = workers()
    checksum = 0
    length = 0
    yield _HEADER
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[bytes]] = deque()
        for block in _blocks(pieces):
            checksum = library.crc32(block, checksum)
            length += len(block)
            waiting.append(pool.submit(_deflate, library, level, block))
            if len(waiting) > 2 * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    yield _LAST_BLOCK + struct.pack("<II", checksum, length & 0xFFFFFFFF)


def _library() -> tuple[Any, int]:
    """Return the compression library and its level: isal at level 2, which is faster than zlib's
    fastest level and compresses better (docs/guides/bundle.md); on platforms without an isal wheel,
    zlib."""
    try:
        from isal import isal_zlib
    except ImportError:
        import zlib

        return zlib, 1
    return isal_zlib, 2


def _deflate(library: Any, level: int, block: bytes) -> bytes:
    """Return a block as part of a deflate stream. The end of the last block is not in it."""
    stream = library.compressobj(level, library.DEFLATED, -library.MAX_WBITS)
    head: bytes = stream.compress(block)
    tail: bytes = stream.flush(library.Z_SYNC_FLUSH)
    return head + tail


def _blocks(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the bytes of all pieces in blocks of equal size; the last may be shorter."""
    parts: list[bytes] = []
    size = 0
    for piece in pieces:
        rest = piece
        while size + len(rest) >= BLOCK:
            cut = BLOCK - size
            yield b"".join((*parts, rest[:cut]))
            rest = rest[cut:]
            parts = []
            size = 0
        parts.append(rest)
        size += len(rest)
    if size:
        yield b"".join(parts)


# The bundle's archive: a reproducible tar, compressed in blocks by several threads.

MTIME = 315532800
"""1980-01-01 UTC, the earliest time that zip supports, because a wheel may be built from the
unpacked files."""

_TAR_BLOCK = 512
_RECORD = 20 * _TAR_BLOCK


class SourceChanged(CloudtrainError):
    """A file changed after its bundle was hashed and before the bundle was written.

    Attributes:
        path: the file's path in the bundle.
        may_plan_again: whether no request of this job has left this machine, so that another plan
            can be sent.
    """

    exit_code = 2
    code = "CT963"

    def __init__(self, path: str) -> None:
        super().__init__(
            f"`{escape_path(path)}` changed while its bundle was being made; nothing was written",
            hint=_settle_hint(path),
        )
        self.path = path
        self.may_plan_again = False


def _tar(tree: Tree) -> Iterator[bytes]:
    """Yield the tar of a bundle. Raises SourceChanged if a file's content no longer matches its
    entry."""
    length = 0
    for entry in tree.entries:
        header = _header(entry)
        padding = -entry.size % _TAR_BLOCK
        yield header
        own = tree.own_files.get(entry.path)
        if isinstance(own, bytes):
            yield own
        elif entry.target is None:
            yield from _content(entry, tree.location(entry))
        yield bytes(padding)
        length += len(header) + entry.size + padding
    # A tar ends with two empty blocks, and fills its last record.
    end = 2 * _TAR_BLOCK
    padding = -(length + end) % _RECORD
    yield bytes(end + padding)


def _header(entry: Entry) -> bytes:
    """Return the entry's tar header in GNU format, which supports names of any bytes and any
    length, and which every tar program reads."""
    import tarfile

    info = tarfile.TarInfo(entry.path)
    info.size = entry.size
    info.mtime = MTIME
    info.mode = 0o755 if entry.executable else 0o644
    if entry.target is not None:
        info.type = tarfile.SYMTYPE
        info.linkname = entry.target
        info.mode = 0o777
    return info.tobuf(tarfile.GNU_FORMAT, sys.getfilesystemencoding(), "surrogateescape")


def _content(entry: Entry, place: str) -> Iterator[bytes]:
    """Yield the bytes of a file. Raises SourceChanged if they are not those that were hashed."""
    try:
        descriptor = open_regular(place)
    except OSError:
        raise SourceChanged(entry.path) from None

    digest = hashlib.sha256()
    left = entry.size
    try:
        while left >= 0:  # reads one byte more, to see that there is none
            piece = os.read(descriptor, min(left + 1, PIECE))
            if not piece:
                break
            left -= len(piece)
            digest.update(piece)
            yield piece
    finally:
        os.close(descriptor)
    if left != 0 or digest.hexdigest() != entry.sha256:
        raise SourceChanged(entry.path)
