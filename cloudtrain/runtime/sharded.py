"""Checkpoints in parts with torch.distributed.checkpoint: hashed while they are written, and read without running code.

    written = write_shards(state, folder)          # every rank; what it wrote, with digests, for the manifest
    read_shards(state, folder)                     # every rank; into the tensors of `state`

torch writes metadata as a pickle, and numbers beside the tensors as pickles, and reads both such that a forged one runs
code. Here reading takes only what writing makes.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .errors import SetupError

METADATA = ".metadata"

_DCP = "torch.distributed.checkpoint"
_ALLOWED = frozenset(
    {(f"{_DCP}.metadata", name) for name in (
        "BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta", "TensorProperties",
        "TensorStorageMetadata", "_MEM_FORMAT_ENCODING",
    )}
    | {(f"{_DCP}.filesystem", "_StorageInfo"), ("torch", "Size"), ("torch.serialization", "_get_layout")}
    | {("pathlib", name) for name in ("PosixPath", "Path", "PurePosixPath")}
    | {("pathlib._local", name) for name in ("PosixPath", "Path", "PurePosixPath")}
    | {("collections", "OrderedDict")}
)  # fmt: skip
"""What torch's metadata consists of, beside numbers, texts and the data types of torch (2.6 to 2.13)."""


_WORTH_A_THREAD = 1 << 20
"""Bytes from which on hashing beside writing pays."""


_SYNCED_AT_ONCE = 128 << 20
"""Bytes after which the disk is given what was written so far, so that it works while more is computed."""


class HashedStream:
    """A file whose large blocks are hashed in another thread while they are written, and synced in a third: the slowest
    of these counts, not the sum, and nothing is copied or read again."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self._beside = ThreadPoolExecutor(1)
        self._disk = ThreadPoolExecutor(1)
        self._syncing: Future[None] | None = None
        self._synced = 0
        self.size = 0

    def write(self, data: Any) -> int:
        """Write all of it."""
        view = memoryview(data).cast("B")
        self.size += view.nbytes
        if view.nbytes < _WORTH_A_THREAD:
            self._hash.update(view)
            self._file.write(view)
        else:
            hashing = self._beside.submit(self._hash.update, view)
            self._file.write(view)
            hashing.result()  # from here on the memory is the caller's again
        if self.size - self._synced > _SYNCED_AT_ONCE and (self._syncing is None or self._syncing.done()):
            self._file.flush()
            self._syncing = self._disk.submit(os.fsync, self._file.fileno())
            self._synced = self.size
        return view.nbytes

    def tell(self) -> int:
        """How much was written."""
        return self.size

    def finish(self) -> dict[str, Any]:
        """Length and digest."""
        self._beside.shutdown()
        self._disk.shutdown()
        return {"size": self.size, "sha256": self._hash.hexdigest()}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def write_shards(state: dict[str, Any], folder: Path, *, group: Any = None) -> dict[str, dict[str, Any]]:
    """Write this rank's part of the state into the folder. Every rank must call it; `group` is whose messages it uses.

    Returns name to length and digest of the files that this rank has written.
    """
    import torch.distributed.checkpoint
    from torch.distributed.checkpoint import filesystem

    written: dict[str, dict[str, Any]] = {}

    class Hashing(filesystem.FileSystem):
        @contextmanager
        def create_stream(self, path: Any, mode: str) -> Iterator[Any]:
            if "w" not in mode:
                with super().create_stream(path, mode) as stream:
                    yield stream
                return
            with Path(path).open("wb") as file:
                hashed = HashedStream(file)
                try:
                    yield hashed
                finally:
                    written[Path(path).name] = hashed.finish()

        def rename(self, path: Any, new_path: Any) -> None:
            super().rename(path, new_path)
            if Path(path).name in written:
                written[Path(new_path).name] = written.pop(Path(path).name)

    writer = filesystem.FileSystemWriter(folder, sync_files=True)
    writer.fs = Hashing()
    dcp: Any = torch.distributed.checkpoint  # what it exports, it does not export explicitly
    with _without_crc():
        dcp.save(state, storage_writer=writer, process_group=group)
    return written


@contextmanager
def _without_crc() -> Iterator[None]:
    """torch computes a CRC of everything that it writes, and reads without looking at it; the digests are the check."""
    from torch import serialization

    before = getattr(serialization, "get_crc32_options", bool)()
    change = getattr(serialization, "set_crc32_options", None) if before else None
    if change is None:
        yield
        return
    change(False)
    try:
        yield
    finally:
        change(before)


def read_shards(state: dict[str, Any], folder: Path) -> None:
    """Fill the tensors of `state`, and replace its other values. Every rank must call it.

    Raises:
        SetupError: the checkpoint holds what `write_shards` does not write: it was made or changed by something else.
    """
    import torch
    import torch.distributed.checkpoint
    from torch.distributed.checkpoint import default_planner, filesystem

    class Reader(filesystem.FileSystemReader):
        def read_metadata(self, *_args: Any, **_named: Any) -> Any:
            return read_metadata(folder)

    class Planner(default_planner.DefaultLoadPlanner):
        def load_bytes(self, read_item: Any, value: Any) -> None:
            try:
                plain = torch.load(value, weights_only=True)
            except pickle.UnpicklingError:
                raise _forgery_error(folder, f"`{read_item.dest_index.fqn}` is no plain data") from None
            clean = io.BytesIO()
            torch.save(plain, clean)  # what torch now reads without care is what was just read with care
            clean.seek(0)
            super().load_bytes(read_item, clean)

    dcp: Any = torch.distributed.checkpoint
    read_metadata(folder)  # on every rank, so that all of them refuse in the same words
    try:
        dcp.load(state, storage_reader=Reader(folder), planner=Planner())
    except dcp.api.CheckpointException as error:
        for failure, _ in error.failures.values():
            if isinstance(failure, SetupError):
                raise failure from None
        raise


def read_metadata(folder: Path) -> Any:
    """What lies where, without running code.

    Raises:
        SetupError: it holds what no checkpoint of ours holds.
    """
    with (folder / METADATA).open("rb") as file:
        try:
            metadata = _Unpickler(file, folder).load()
        except (pickle.UnpicklingError, EOFError, AttributeError, IndexError, TypeError) as error:
            raise _forgery_error(folder, str(error)) from None
    for info in getattr(metadata, "storage_data", {}).values():
        if Path(info.relative_path).name != info.relative_path:
            raise _forgery_error(folder, f"it reads `{info.relative_path}`")
    if getattr(metadata, "storage_meta", None) is None:
        from torch.distributed.checkpoint.metadata import StorageMeta

        metadata.storage_meta = StorageMeta()
    return metadata


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: Any, folder: Path) -> None:
        super().__init__(file)
        self._folder = folder

    def find_class(self, module: str, name: str) -> Any:
        import torch

        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if (module, name) not in _ALLOWED:
            raise _forgery_error(self._folder, f"it names `{module}.{name}`")
        return super().find_class(module, name)


def _forgery_error(folder: Path, what: str) -> SetupError:
    return SetupError(
        f"the checkpoint `{folder}` holds what no checkpoint of this script holds: {what}",
        hint="do not load it: it may have been made to run code; remove it, and resume from another one",
    )
