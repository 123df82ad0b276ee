"""Sharded checkpoints with torch.distributed.checkpoint. Checksums are computed while files are
written; reading the files runs no code.

    # Every rank. Returns its files, with checksums, for the manifest.
    written = write_shards(state, folder)

    # Every rank. Reads into the tensors of `state`, and checks what is read.
    read_shards(state, folder)

torch writes metadata and plain values as pickles, and a forged pickle can run code when torch reads
it. `read_shards` accepts only types that `write_shards` writes.
"""

from __future__ import annotations

import io
import os
import pickle
import re
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from .atomic import (
    CheckedFile,
    Entry,
    Files,
    blocks_of,
    checksum,
    original_error,
    read_manifest,
    save_error,
)
from .errors import OTHER_MODEL_HINT, SetupError
from .process_group import any_rank, instance_group

METADATA = ".metadata"

_DCP = "torch.distributed.checkpoint"
_ALLOWED = frozenset(
    {
        f"{_DCP}.metadata.BytesStorageMetadata",
        f"{_DCP}.metadata.ChunkStorageMetadata",
        f"{_DCP}.metadata.Metadata",
        f"{_DCP}.metadata.MetadataIndex",
        f"{_DCP}.metadata.StorageMeta",
        f"{_DCP}.metadata.TensorProperties",
        f"{_DCP}.metadata.TensorStorageMetadata",
        f"{_DCP}.metadata._MEM_FORMAT_ENCODING",
        f"{_DCP}.filesystem._StorageInfo",
        "torch.Size",
        "torch.serialization._get_layout",
        "pathlib.PosixPath",
        "pathlib.Path",
        "pathlib.PurePosixPath",
        "pathlib._local.PosixPath",
        "pathlib._local.Path",
        "pathlib._local.PurePosixPath",
        "collections.OrderedDict",
    }
)
"""The types in torch's metadata, beside numbers, texts and torch's data types (2.6 to 2.13)."""


_OTHER_MODEL = re.compile("Size mismatch between saved|Missing key in checkpoint")
"""How torch says that a tensor has another shape or is not there (2.6 to 2.13)."""

_WORTH_A_THREAD = 1 << 20
"""Bytes from which on it pays to compute the checksum in another thread."""

_SYNCED_AT_ONCE = 128 << 20
"""Bytes after which the written data is synced, so that the disk works while more is computed."""


class CheckedStream(CheckedFile):
    """An output file. While large blocks are written, a second thread computes their checksums and
    a third syncs the file. No data is copied or read again."""

    def __init__(self, file: Any) -> None:
        super().__init__(file)
        self._beside = ThreadPoolExecutor(1)
        self._disk = ThreadPoolExecutor(1)
        self._syncing: Future[None] = Future()
        """The newest sync. The system reports an error of the disk to one sync only, so a later
        sync of the same file would succeed; hence its result is asked for."""
        self._syncing.set_result(None)
        self._synced = 0

    def _write(self, view: memoryview) -> None:
        if view.nbytes < _WORTH_A_THREAD:
            super()._write(view)
        else:
            checking = self._beside.submit(self.checksums.update, view)
            try:
                self._file.write(view)
            finally:
                checking.result()  # from here on the memory is the caller's again
        unsynced = self.checksums.size - self._synced
        if unsynced > _SYNCED_AT_ONCE and self._syncing.done():
            self._syncing.result()
            self._file.flush()
            self._syncing = self._disk.submit(os.fsync, self._file.fileno())
            self._synced = self.checksums.size

    def tell(self) -> int:
        """Return the number of bytes written."""
        return self.checksums.size

    def finish(self) -> Entry:
        """Finish writing. Return the file's length and checksums."""
        self._beside.shutdown()
        self._disk.shutdown()
        self._syncing.result()
        return self.checksums.entry

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def write_shards(state: dict[str, Any], folder: Path, *, group: Any = None) -> dict[str, Entry]:
    """Write this rank's part of `state` into `folder`. Every rank must call it. The ranks
    communicate through `group`.

    Returns a mapping from name to length and checksums for the files that this rank has written.
    """
    import torch.distributed.checkpoint
    from torch.distributed.checkpoint import filesystem

    entries: dict[str, Entry] = {}

    class Hashing(filesystem.FileSystem):
        @contextmanager
        def create_stream(self, path: Any, mode: str) -> Iterator[Any]:
            if "w" not in mode:
                with super().create_stream(path, mode) as stream:
                    yield stream
                return
            with Path(path).open("wb") as file:
                checked = CheckedStream(file)
                try:
                    with original_error(checked):
                        yield checked
                finally:
                    entries[Path(path).name] = checked.finish()

        def rename(self, path: Any, new_path: Any) -> None:
            super().rename(path, new_path)
            if Path(path).name in entries:
                entries[Path(new_path).name] = entries.pop(Path(path).name)

    writer = filesystem.FileSystemWriter(folder, sync_files=True)
    writer.fs = Hashing()
    dcp: Any = torch.distributed.checkpoint  # what it exports, it does not export explicitly
    try:
        with _without_crc():
            dcp.save(state, storage_writer=writer, process_group=group)
    except dcp.api.CheckpointException as error:
        for failure, _ in error.failures.values():  # the same on every rank
            if isinstance(failure, OSError):
                raise save_error(folder, failure, on_every_rank=True) from None
        raise
    return entries


@contextmanager
def _without_crc() -> Iterator[None]:
    """Switch off torch's CRC of written data. torch does not check this CRC when reading; the
    blocks' checksums replace it."""
    from torch import serialization

    before = getattr(serialization, "get_crc32_options", bool)()
    change = getattr(serialization, "set_crc32_options", bool)
    change(False)
    try:
        yield
    finally:
        change(before)


def read_shards(state: dict[str, Any], folder: Path) -> None:
    """Read the tensors of `state` in place, and replace its other values. Every rank must call it.

    Each block that any process of an instance needs is read once on this instance, and its checksum
    is compared before use.

    Raises:
        TornError: a block differs from the manifest, on any rank. Some tensors may already have
            been changed.
        SetupError: the checkpoint is of another model; or it holds data that `write_shards` never
            writes, so another program must have written or changed it.
    """
    import torch
    import torch.distributed.checkpoint
    from torch.distributed.checkpoint import default_planner, filesystem

    files = _files_of(folder)
    if any_rank(METADATA not in files):
        raise TornError(folder)
    metadata = _read_metadata(folder, files)

    class ShardReader(filesystem.FileSystemReader):
        def read_metadata(self, *_args: Any, **_kwargs: Any) -> Any:
            return metadata

        def read_data(self, plan: Any, planner: Any) -> Any:
            # torch's own hints leave it open
            future = torch.futures.Future()  # type: ignore[var-annotated]
            _read_items(folder, files, metadata, plan, planner)
            future.set_result(None)
            return future

    class Planner(default_planner.DefaultLoadPlanner):
        def load_bytes(self, read_item: Any, value: Any) -> None:
            try:
                plain = torch.load(value, weights_only=True)
            except pickle.UnpicklingError:
                raise _forgery_error(
                    folder, f"`{read_item.dest_index.fqn}` is not plain data"
                ) from None
            clean = io.BytesIO()
            # what torch now reads without care is what was just read with care
            torch.save(plain, clean)
            clean.seek(0)
            super().load_bytes(read_item, clean)

    dcp: Any = torch.distributed.checkpoint
    try:
        dcp.load(state, storage_reader=ShardReader(folder), planner=Planner())
    except dcp.api.CheckpointException as error:
        causes = [failure for failure, _ in error.failures.values()]
        own_error = _error_in(causes, folder)
        if own_error is None:
            raise
        raise own_error from None


def _error_in(causes: Sequence[BaseException], folder: Path) -> Exception | None:
    """Return the error to raise for the errors that torch gathered on all ranks; None if none of
    them has a reason that is known. That the checkpoint is of another model explains most, a
    forged one explains more than a torn one."""
    found: list[Exception] = []
    for cause in causes:
        if _OTHER_MODEL.match(str(cause)):
            return SetupError(
                f"the checkpoint `{folder}` is of another model: {cause}", hint=OTHER_MODEL_HINT
            )
        if isinstance(cause, (SetupError, TornError)):
            found.append(cause)
    return min(found, key=lambda cause: isinstance(cause, TornError), default=None)


def _files_of(folder: Path) -> Files:
    try:
        files: Files = (read_manifest(folder) or {})["files"]
        for entry in files.values():
            blocks_of(entry)
    except (KeyError, TypeError, ValueError):
        return {}
    return files


def _read_metadata(folder: Path, files: Files) -> Any:
    blocks = _blocks_at(folder, files, METADATA, 0, files[METADATA]["size"])
    parts = [data for _, data in read_blocks(folder, files, blocks)]
    if any_rank(None in parts):
        raise TornError(folder)
    return parse_metadata(b"".join(filter(None, parts)), folder)


def _read_items(folder: Path, files: Files, metadata: Any, plan: Any, planner: Any) -> None:
    """Read the data that torch's `plan` requests for this rank, and pass it to `planner`. Each part
    is passed as soon as its last block has been read."""
    items: dict[_Place, list[Any]] = defaultdict(list)
    blocks: dict[_Place, list[Block]] = {}
    failure: Exception | None = None
    try:
        for item in plan.items:
            info = metadata.storage_data[item.storage_index]
            place = (info.relative_path, info.offset, info.length)
            items[place].append(item)
            blocks[place] = _blocks_at(folder, files, *place)
    except Exception as error:  # noqa: BLE001 - told when the other ranks have what they wait for
        failure = error

    waiting = deque(sorted(blocks))
    cache: dict[Block, memoryview] = {}
    for block, data in read_blocks(folder, files, chain.from_iterable(blocks.values())):
        if failure is not None:
            continue
        try:
            if data is None:
                raise TornError(folder)
            cache[block] = data
            while waiting and blocks[waiting[0]][-1] <= block:
                place = waiting.popleft()
                part = _cut(files, cache, blocks[place], place)
                _fill(planner, items[place], part, folder)
            for old in tuple(cache):
                if not waiting or old < blocks[waiting[0]][0]:
                    del cache[old]
        except Exception as error:  # noqa: BLE001
            failure = error
    if failure is not None:
        raise failure


def _cut(
    files: Files, cache: Mapping[Block, memoryview], blocks: list[Block], place: _Place
) -> memoryview:
    """Return the bytes at `place`, which lie in `blocks`."""
    name, offset, length = place
    views = [cache[block] for block in blocks]
    whole = views[0] if len(views) == 1 else memoryview(b"".join(views))
    start = offset - blocks[0].number * blocks_of(files[name]).length
    return whole[start : start + length]


def _blocks_at(folder: Path, files: Files, name: str, offset: int, length: int) -> list[Block]:
    """Return the blocks that hold the `length` bytes at `offset` of the file `name`."""
    end = offset + length
    if name not in files or not 0 <= offset < end <= files[name]["size"]:
        raise _forgery_error(folder, f"it reads {length} bytes of `{name}` from {offset} on")
    size = blocks_of(files[name]).length
    numbers = range(offset // size, (end - 1) // size + 1)
    return [Block(name, number) for number in numbers]


def _fill(planner: Any, items: list[Any], data: memoryview, folder: Path) -> None:
    """Pass `data`, one stored part of the checkpoint, to torch's planner for all `items` that need
    it. The part is a value, or a tensor of which each item needs a piece."""
    import torch
    from torch.distributed._shard._utils import narrow_tensor_by_index
    from torch.distributed.checkpoint.planner import LoadItemType

    tensor = None
    for item in items:
        if item.type == LoadItemType.BYTE_IO:
            planner.load_bytes(item, io.BytesIO(data))
            continue
        if tensor is None:
            file = io.BytesIO(data)
            try:
                tensor = torch.load(file, map_location="cpu", weights_only=True)
            except pickle.UnpicklingError:
                raise _forgery_error(folder, f"`{item.dest_index.fqn}` is not a tensor") from None
        piece = narrow_tensor_by_index(tensor, item.storage_offsets, item.lengths)
        target = planner.resolve_tensor(item).detach()
        target.copy_(piece)
        planner.commit_tensor(item, target)


def parse_metadata(data: bytes, folder: Path) -> Any:
    """Parse the metadata, which locates each part of the checkpoint, without running code."""
    try:
        metadata = _Unpickler(io.BytesIO(data), folder).load()
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
        if f"{module}.{name}" not in _ALLOWED:
            raise _forgery_error(self._folder, f"it names `{module}.{name}`")
        return super().find_class(module, name)


def _forgery_error(folder: Path, what: str) -> SetupError:
    return SetupError(
        f"the checkpoint `{folder}` holds data that this script never saves: {what}",
        hint=(
            "remove this checkpoint: other tools could run code that it holds; the job resumes "
            "from an earlier one"
        ),
    )


# Read a checkpoint's bytes once on each instance, check them block by block before use, and pass
# them to every process of the instance that needs them.

_AHEAD = 4
"""Blocks that are read and checked while an earlier one is used."""


class TornError(Exception):
    """A file differs from its entry in the manifest."""


_Place = tuple[str, int, int]
"""A part of a file: the file's name, the part's offset and its length."""


class Block(NamedTuple):
    """A block of a file, identified by the file's name and the block's number. Sorting puts the
    blocks of a file into their order on disk."""

    name: str
    number: int


def read_blocks(
    folder: Path, files: Files, wanted_blocks: Iterable[Block]
) -> Iterator[tuple[Block, memoryview | None]]:
    """Yield each wanted block with its bytes, in sorted order. The bytes are None if their checksum
    differs from the one in `files`, the manifest's entries.

    The processes of an instance divide the reading among themselves. Each of them must call this
    function and take all blocks that it yields; otherwise, other processes wait for blocks that
    never come.
    """
    group = instance_group()
    own = group.local_rank
    mine = sorted(set(wanted_blocks))
    users: dict[Block, list[int]] = defaultdict(list)
    for process, blocks in enumerate(group.gather(mine)):
        for block in blocks:
            users[block].append(process)
    reader_of = _share_out(users)
    to_read = deque(block for block in mine if reader_of[block] == own)
    reading: deque[Future[bytearray]] = deque()
    with ThreadPoolExecutor(2) as pool:
        for block in mine:
            if reader_of[block] == own:
                while to_read and len(reading) < _AHEAD:
                    reading.append(pool.submit(_read_block, folder, files, to_read.popleft()))
                data = reading.popleft().result()
                users[block].remove(own)
                group.send(data, users[block])
            else:
                data = bytearray(_length_of(files, block) + 1)
                group.receive(data, reader_of[block])
            yield block, memoryview(data)[:-1] if data[-1] else None


def _share_out(users: Mapping[Block, list[int]]) -> dict[Block, int]:
    """Return a map from each block to the process that reads it: of the processes that need the
    block, the one with the fewest blocks so far. `users` maps each block to the processes that need
    it."""
    loads: Counter[int] = Counter()
    reader_of = {}
    for block in sorted(users, key=lambda block: (len(users[block]), block)):
        reader = min(users[block], key=loads.__getitem__)
        loads[reader] += 1
        reader_of[block] = reader
    return reader_of


def _length_of(files: Files, block: Block) -> int:
    length = blocks_of(files[block.name]).length
    rest = files[block.name]["size"] - block.number * length
    return int(min(length, rest))


def _read_block(folder: Path, files: Files, block: Block) -> bytearray:
    """Return the block's bytes and one more byte: 1 if the block has the right checksum, else 0.
    The additional byte tells the processes that receive the block whether it is damaged."""
    length, kind, checksums = blocks_of(files[block.name])
    data = bytearray(_length_of(files, block) + 1)
    view = memoryview(data)[:-1]
    try:
        with (folder / block.name).open("rb", buffering=0) as file:
            file.seek(block.number * length)
            position = 0
            while count := file.readinto(view[position:]):
                position += count
    except OSError:
        return data
    found = checksum(kind, [view])
    data[-1] = found == checksums[block.number]
    return data
