"""Read a checkpoint's bytes once on each instance, check them block by block before use, and pass them to every process
of the instance that needs them.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from .atomic import blocks_of, checksum
from .process_group import instance_group

_AHEAD = 4
"""Blocks that are read and checked while an earlier one is used."""


class TornError(Exception):
    """A file differs from its entry in the manifest."""


class Block(NamedTuple):
    """A block of a file, identified by the file's name and the block's number. Sorting puts the blocks of a file into
    their order on disk.
    """

    name: str
    number: int


def read_blocks(
    folder: Path, files: Mapping[str, Mapping[str, Any]], wanted: Iterable[Block]
) -> Iterator[tuple[Block, memoryview | None]]:
    """Yield each wanted block with its bytes, in sorted order. The bytes are None if their checksum differs from the
    one in `files`, the manifest's entries.

    The processes of an instance divide the reading among themselves. Each of them must call this function and take all
    blocks that it yields; otherwise, other processes wait for blocks that never come.
    """
    group = instance_group()
    users: dict[Block, list[int]] = defaultdict(list)
    for process, blocks in enumerate(group.gather(sorted(set(wanted)))):
        for block in blocks:
            users[Block(*block)].append(process)
    reader_of = _share_out(users)
    mine = [block for block in sorted(users) if group.local_rank in users[block]]
    to_read = deque(block for block in mine if reader_of[block] == group.local_rank)
    reading: deque[Future[bytearray]] = deque()
    with ThreadPoolExecutor(2) as pool:
        for block in mine:
            if reader_of[block] == group.local_rank:
                while to_read and len(reading) < _AHEAD:
                    reading.append(pool.submit(_read, folder, files, to_read.popleft()))
                data = reading.popleft().result()
                group.send(data, [user for user in users[block] if user != group.local_rank])
            else:
                data = bytearray(_length_of(files, block) + 1)
                group.receive(data, reader_of[block])
            yield block, memoryview(data)[:-1] if data[-1] else None


def _share_out(users: Mapping[Block, list[int]]) -> dict[Block, int]:
    """Return a map from each block to the process that reads it: of the processes that need the block, the one with the
    fewest blocks so far. `users` maps each block to the processes that need it.
    """
    loads: dict[int, int] = defaultdict(int)
    reader_of = {}
    for block in sorted(users, key=lambda block: (len(users[block]), block)):
        reader = min(users[block], key=lambda user: (loads[user], user))
        loads[reader] += 1
        reader_of[block] = reader
    return reader_of


def _length_of(files: Mapping[str, Mapping[str, Any]], block: Block) -> int:
    length = blocks_of(files[block.name]).length
    return int(min(length, files[block.name]["size"] - block.number * length))


def _read(folder: Path, files: Mapping[str, Mapping[str, Any]], block: Block) -> bytearray:
    """Return the block's bytes and one more byte: 1 if the block has the right checksum, else 0. The additional byte
    tells the processes that receive the block whether it is damaged.
    """
    length, kind, checksums = blocks_of(files[block.name])
    data = bytearray(_length_of(files, block) + 1)
    view = memoryview(data)[:-1]
    try:
        with (folder / block.name).open("rb", buffering=0) as file:
            file.seek(block.number * length)
            found = 0
            while count := file.readinto(view[found:]):
                found += count
    except OSError:
        return data
    data[-1] = checksum(kind, [view]) == checksums[block.number]
    return data
