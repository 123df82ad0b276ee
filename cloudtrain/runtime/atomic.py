"""Folders that are either complete or absent. Their files are written to a temporary folder and
synced, and the folder is renamed. Lengths and checksums verify the files.

The checksum is CRC-32, which detects incomplete files, zeroed files and flipped bits in a quarter
of SHA-256's time. SHA-256 would not prevent forgery either, because whoever changes a file can also
change its checksum. Manifests of earlier versions contain SHA-256 checksums, which are still
checked.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import operator
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, SupportsIndex, cast

from .errors import SetupError

Entry = dict[str, Any]
"""A file in a manifest: its length and its checksums."""

Files = Mapping[str, Entry]
"""The files of a manifest, by their names."""

MANIFEST = "checkpoint.json"

ASIDE = ".writing-"
"""Prefix of the name of a folder that is not whole yet."""


BLOCK = 16 << 20
"""Bytes of one block. A large file has a checksum for each block, so that a reader checks only the
part that it needs."""


class BlockChecksums:
    """Computes a checksum for each block of a file as the file's bytes are added in order."""

    def __init__(self) -> None:
        self.size = 0
        self._checksums: list[str] = []
        self._crc = 0

    def update(self, data: Any) -> None:
        """Add the next bytes."""
        view = memoryview(data).cast("B")
        while view.nbytes:
            piece = view[: BLOCK - self.size % BLOCK]
            self._crc = zlib.crc32(piece, self._crc)
            self.size += piece.nbytes
            if self.size % BLOCK == 0:
                self._checksums.append(f"{self._crc:08x}")
                self._crc = 0
            view = view[piece.nbytes :]

    @property
    def entry(self) -> Entry:
        """Return the file's entry for the manifest: its length, and the checksum of each block. Use
        it after all bytes have been added."""
        checksums = list(self._checksums)
        if self.size % BLOCK:
            checksums.append(f"{self._crc:08x}")
        return {"size": self.size, "block": BLOCK, "crc32": checksums}


class CheckedFile:
    """A binary file that computes length and checksums of the data while writing it."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.checksums = BlockChecksums()
        self.failure: OSError | None = None

    def write(self, data: Any) -> int:
        """Write all of `data` (any bytes-like object). Return the number of bytes written."""
        view = memoryview(data).cast("B")
        try:
            self._write(view)
        except OSError as error:
            self.failure = error
            raise
        return view.nbytes

    def _write(self, view: memoryview) -> None:
        self.checksums.update(view)
        self._file.write(view)

    def flush(self) -> None:
        """Hand buffered data to the operating system."""
        self._file.flush()


@contextlib.contextmanager
def original_error(file: Any) -> Iterator[None]:
    """Raise the OSError that `file` met, such as a full disk. torch raises another error, which
    does not name it."""
    try:
        yield
    finally:
        if file.failure is not None:
            raise file.failure from None


def save_error(folder: Path, error: OSError, *, on_every_rank: bool = False) -> SetupError:
    """Return the error for a checkpoint that could not be written."""
    return SetupError(
        f"no checkpoint can be written to `{folder}`: {error.strerror or error}",
        hint=(
            "make room, or keep fewer checkpoints; if another run saves there, too, give each run "
            "a folder of its own; the job then resumes from the newest whole one"
        ),
        on_every_rank=on_every_rank,
    )


def write_checked(path: Path, write: Callable[[BinaryIO], None]) -> Entry:
    """Create the file `path`, fill it by calling `write`, and sync it to disk. Return its entry for
    the manifest."""
    with path.open("wb") as file:
        checked = CheckedFile(file)
        with original_error(checked):
            write(cast(BinaryIO, checked))
        file.flush()
        os.fsync(file.fileno())
    return checked.checksums.entry


def write_file(path: Path, data: bytes) -> None:
    """Replace a file. At any moment it holds either all of `data` or its earlier content."""
    aside = path.with_name(f".{path.name}.writing")
    _write_synced(aside, data)
    aside.replace(path)
    sync_folder(path.parent)


def _write_synced(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def publish(aside: Path, final: Path, manifest: Mapping[str, Any]) -> None:
    """Write the manifest into the temporary folder `aside` and rename the folder to `final`."""
    text = json.dumps(manifest, indent=1, sort_keys=True) + "\n"
    _write_synced(aside / MANIFEST, text.encode())
    sync_folder(aside)
    aside.rename(final)
    sync_folder(final.parent)


def file_names(folder: Path) -> list[str]:
    """Return the relative paths of all files under `folder`, sorted, so that all ranks have the
    same order."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return sorted(path.relative_to(folder).as_posix() for path in files)


def entries(folder: Path, names: Iterable[str]) -> dict[str, Entry]:
    """Sync the files `names` under `folder` to disk. Return a map from name to length and
    checksums."""
    files = {}
    for name in names:
        checksums = BlockChecksums()
        with (folder / name).open("rb") as file:
            os.fsync(file.fileno())
            while piece := file.read(1 << 20):
                checksums.update(piece)
        files[name] = checksums.entry
    return files


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Return the manifest in `folder`; None if it is missing or damaged, or if a file that it lists
    is missing or has another length."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text("utf-8"))
        for name, entry in manifest["files"].items():
            if (folder / name).stat().st_size != entry["size"]:
                return None
        return manifest
    return None


def is_whole(folder: Path, reader: int = 0, readers: int = 1) -> bool:
    """Return whether every file has the length and the checksums that the manifest states. With
    several `readers`, all lengths are checked, but checksums only for the files in the share of
    reader number `reader`."""
    manifest = read_manifest(folder)
    if manifest is None:
        return False
    with contextlib.suppress(OSError, KeyError, TypeError, ValueError):
        for name, entry in share_of(manifest["files"], reader, readers).items():
            block, kind, checksums = blocks_of(entry)
            with (folder / name).open("rb") as file:
                for expected in checksums:
                    if checksum(kind, _pieces_of(file, block)) != expected:
                        return False
        return True
    return False


class Blocks(NamedTuple):
    """How a file is divided into blocks, and the checksums of these blocks, from the file's entry
    in a manifest. A file with a single checksum is one block."""

    length: int
    """Bytes of each block; the last may be shorter."""
    kind: str
    """`crc32`, or `sha256` in manifests of earlier versions."""
    checksums: list[str]
    """The checksum of each block, in hexadecimal digits."""


def blocks_of(entry: Entry) -> Blocks:
    """Return a file's blocks and their checksums, from the file's entry in a manifest.

    Raises:
        ValueError: the entry does not have the form that this module writes.
    """
    kind = "crc32" if "crc32" in entry else "sha256"
    size = entry["size"]
    checksums = entry[kind]
    if isinstance(checksums, str):
        return Blocks(max(1, size), kind, [checksums])
    block = entry["block"]
    is_length = isinstance(block, int) and block > 0
    if not is_length or len(checksums) != -(-size // block):
        raise ValueError("the number of checksums does not match the file's length")
    return Blocks(block, kind, checksums)


def checksum(kind: str, pieces: Iterable[Any]) -> str:
    """Return one checksum of all `pieces` together, in hexadecimal digits. `kind` is `crc32` or
    `sha256`."""
    if kind == "sha256":
        hashed = hashlib.sha256()
        for piece in pieces:
            hashed.update(piece)
        return hashed.hexdigest()
    crc = 0
    for piece in pieces:
        crc = zlib.crc32(piece, crc)
    return f"{crc:08x}"


def share_of(files: Files, reader: int, readers: int) -> Files:
    """Return one reader's share of the files. The largest files are assigned first, each to the
    reader with the fewest bytes so far."""
    loads = [0] * readers
    share = {}
    for name in sorted(files, key=lambda name: (-files[name]["size"], name)):
        least = loads.index(min(loads))
        loads[least] += files[name]["size"]
        if least == reader:
            share[name] = files[name]
    return share


def _pieces_of(file: BinaryIO, length: int) -> Iterator[bytes]:
    while length and (piece := file.read(min(length, 1 << 20))):
        yield piece
        length -= len(piece)


def sync_folder(folder: Path) -> None:
    """Make renames in a folder durable by syncing it. Mounted object stores refuse the sync; the
    refusal is ignored."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


# Convert a training step from Python, numpy or TensorFlow to a plain number.


def whole_step(step: SupportsIndex) -> int:
    """Return the step as a Python integer, for file names and JSON."""
    with contextlib.suppress(TypeError):
        number = operator.index(step)
        if number >= 0:
            return number
    raise SetupError(
        f"the step `{step!r}` is not a whole number of at least 0",
        hint="pass the number of steps so far: 0, 1, 2",
    )


# Prepare data once on every instance. The first process to arrive prepares the data while the
# others wait.
#
#     folder = runtime.prepared(Path("/tmp/tokens"), lambda aside: tokenise(text, aside))
#
# The other processes wait for a file lock. If the first process is killed, the operating system
# releases the lock, and the next process prepares the data. The folder gets its final name when its
# content is complete.


def prepared(folder: str | Path, make: Callable[[Path], object]) -> Path:
    """Return `folder`. If it does not exist, `make(aside)` fills the temporary folder `aside`,
    which is then renamed to `folder`. No process group is needed."""
    import fcntl
    import shutil

    folder = Path(folder)
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f".{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            aside = folder.with_name(f".{folder.name}.making")
            shutil.rmtree(aside, ignore_errors=True)  # of a process that was killed
            aside.mkdir()
            make(aside)
            aside.rename(folder)
            sync_folder(folder.parent)
    return folder
