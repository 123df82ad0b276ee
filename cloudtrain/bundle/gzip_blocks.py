"""One gzip stream, compressed block by block in several threads.

Every block ends on a byte boundary and does not refer to earlier blocks, so the blocks can be concatenated. The result
is a single ordinary gzip member. It does not depend on the number of threads.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from cloudtrain.bundle.hashing import workers

if TYPE_CHECKING:
    from concurrent.futures import Future

BLOCK = 1 << 20
"""Bytes per block. Smaller blocks compress worse, and larger ones need more memory; 1 MiB is a good compromise."""

_HEADER = b"\x1f\x8b\x08\x00" + bytes(4) + b"\x00\xff"
"""Header fields: deflate, no name, no time, no level, no operating system."""
_LAST_BLOCK = b"\x03\x00"


def gzip_stream(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the gzip stream of all pieces. Only a few blocks are in memory at a time."""
    from concurrent.futures import ThreadPoolExecutor

    library, level = _library()
    threads = workers()
    checksum = length = 0
    yield _HEADER
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[bytes]] = deque()
        for block in _blocks(pieces):
            checksum = library.crc32(block, checksum)
            length += len(block)
            waiting.append(pool.submit(_deflate, library.compressobj, level, block))
            if len(waiting) > 2 * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    yield _LAST_BLOCK + struct.pack("<II", checksum, length & 0xFFFFFFFF)


def _library() -> tuple[Any, int]:
    """Return the compression library and its level: isal at level 2, which is faster than zlib's fastest level and
    compresses better (docs/bundle.md).

    On platforms without an isal wheel, return zlib, which is slower.
    """
    try:
        from isal import isal_zlib
    except ImportError:
        import zlib

        return zlib, 1
    return isal_zlib, 2


def _deflate(compressobj: Callable[[int, int, int], Any], level: int, block: bytes) -> bytes:
    raw, sync_flush, deflated = -15, 2, 8  # the constants are equal in zlib and isal
    stream = compressobj(level, deflated, raw)
    head: bytes = stream.compress(block)
    tail: bytes = stream.flush(sync_flush)
    return head + tail


def _blocks(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the bytes of `pieces` in blocks of equal size; the last block may be shorter."""
    gathered: list[bytes] = []
    size = 0
    for piece in pieces:
        while size + len(piece) >= BLOCK:
            cut = BLOCK - size
            yield b"".join((*gathered, piece[:cut]))
            piece, gathered, size = piece[cut:], [], 0
        gathered.append(piece)
        size += len(piece)
    if size:
        yield b"".join(gathered)
