"""Folders of files that are either complete or absent. Files are written to a temporary folder, synced and renamed;
length and digest verify them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast

MANIFEST = "checkpoint.json"

ASIDE = ".writing-"
"""Prefix of the name of a folder that is not whole yet."""


BLOCK = 16 << 20
"""Bytes of the blocks in which large checkpoints are hashed, so that a reader can check only the part that it needs."""


class BlockHash:
    """Hashes a file block by block as its bytes are added in order."""

    def __init__(self) -> None:
        self.size = 0
        self._digests: list[str] = []
        self._hash = hashlib.sha256()

    def update(self, data: Any) -> None:
        """Add the next bytes."""
        view = memoryview(data).cast("B")
        while view.nbytes:
            piece = view[: BLOCK - self.size % BLOCK]
            self._hash.update(piece)
            self.size += piece.nbytes
            if self.size % BLOCK == 0:
                self._digests.append(self._hash.hexdigest())
                self._hash = hashlib.sha256()
            view = view[piece.nbytes :]

    @property
    def entry(self) -> dict[str, Any]:
        """Return the file's entry for the manifest. Call it after all bytes were added."""
        rest = [self._hash.hexdigest()] if self.size % BLOCK else []
        return {"size": self.size, "block": BLOCK, "sha256": [*self._digests, *rest]}


class HashingFile:
    """A binary file that computes length and digest of the data while writing it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self.size = 0

    def write(self, data: Any) -> int:
        """Write all of `data` (any bytes-like object)."""
        view = memoryview(data)
        self._hash.update(view)
        self.size += view.nbytes
        return self._file.write(view)

    def flush(self) -> None:
        """Hand buffered data to the operating system."""
        self._file.flush()

    @property
    def entry(self) -> dict[str, Any]:
        """Return the file's entry in the manifest."""
        return {"size": self.size, "sha256": self._hash.hexdigest()}


def write_hashed(path: Path, write: Callable[[BinaryIO], None]) -> dict[str, Any]:
    """Let `write` fill a new file, sync it to disk, and return its entry in the manifest."""
    with path.open("wb") as file:
        hashing = HashingFile(file)
        write(cast(BinaryIO, hashing))
        file.flush()
        os.fsync(file.fileno())
    return hashing.entry


def write_file(path: Path, data: bytes) -> None:
    """Replace a file. At any moment it holds either all of `data` or its earlier content."""
    aside = path.with_name(f".{path.name}.writing")
    write_hashed(aside, lambda file: cast(None, file.write(data)))
    aside.replace(path)
    sync_folder(path.parent)


def publish(aside: Path, final: Path, manifest: Mapping[str, Any]) -> None:
    """Write the manifest into the temporary folder `aside` and rename the folder to `final`."""
    text = json.dumps(manifest, indent=1, sort_keys=True) + "\n"
    write_hashed(aside / MANIFEST, lambda file: cast(None, file.write(text.encode())))
    sync_folder(aside)
    aside.rename(final)
    sync_folder(final.parent)


def file_names(folder: Path) -> list[str]:
    """Return every file under `folder`, in the same order on all ranks."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def entries(folder: Path, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Sync the files `names` under `folder` to disk. Return a map from name to length and digest."""
    found = {}
    for name in names:
        path = folder / name
        with path.open("rb") as file:
            os.fsync(file.fileno())
        hashed = BlockHash()
        with path.open("rb") as file:
            while piece := file.read(1 << 20):
                hashed.update(piece)
        found[name] = hashed.entry
    return found


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Return the manifest; None if it is damaged or a file in it is missing or has another length."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text("utf-8"))
        files = manifest["files"]
        whole = all((folder / name).stat().st_size == entry["size"] for name, entry in files.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return cast(dict[str, Any], manifest) if whole else None


def is_whole(folder: Path, reader: int = 0, readers: int = 1) -> bool:
    """Return whether every file has the length and the digests of the manifest. With several readers, each one checks
    all lengths, but only the digests of its share of the files.
    """
    manifest = read_manifest(folder)
    if manifest is None:
        return False
    try:
        files = share_of(manifest["files"], reader, readers)
        return all(_has_digests(folder / name, entry) for name, entry in files.items())
    except (OSError, KeyError, TypeError, ValueError):
        return False


def _has_digests(path: Path, entry: Mapping[str, Any]) -> bool:
    block, digests = blocks_of(entry)
    with path.open("rb") as file:
        return all(_digest_of_next(file, block) == digest for digest in digests)


def blocks_of(entry: Mapping[str, Any]) -> tuple[int, list[str]]:
    """Return the length of a file's blocks and their digests, from its entry in a manifest. A small file is one block.

    Raises:
        ValueError: the entry has another form than this module writes.
    """
    size, digests = entry["size"], entry["sha256"]
    if isinstance(digests, str):
        return max(1, size), [digests]
    block = entry["block"]
    if not (isinstance(block, int) and block > 0 and len(digests) == -(-size // block)):
        raise ValueError("the number of digests does not match the file's length")
    return block, digests


def share_of(files: Mapping[str, Any], reader: int, readers: int) -> dict[str, Any]:
    """Return one reader's share of the files. The largest files are assigned first, each to the reader with the fewest
    bytes so far.
    """
    loads = [0] * readers
    shares: list[dict[str, Any]] = [{} for _ in range(readers)]
    for name in sorted(files, key=lambda name: (-files[name]["size"], name)):
        least = loads.index(min(loads))
        loads[least] += files[name]["size"]
        shares[least][name] = files[name]
    return shares[reader]


def _digest_of_next(file: BinaryIO, length: int) -> str:
    hashed = hashlib.sha256()
    while length and (piece := file.read(min(length, 1 << 20))):
        hashed.update(piece)
        length -= len(piece)
    return hashed.hexdigest()


def sync_folder(folder: Path) -> None:
    """Make renames in a folder durable by syncing it. Mounted object stores refuse the sync; the refusal is ignored."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
