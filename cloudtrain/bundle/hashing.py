"""Reading every file once: its hash, its true size and what its first bytes look like."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from itertools import repeat
from typing import NamedTuple

from cloudtrain.bundle.secret_names import HEAD, LARGEST, secret_content

PIECE = 1 << 20
"""Bytes read at once."""

_INLINE = 4 << 20
"""Up to so many bytes, starting threads costs more than it saves."""
_BATCH = 32
"""Files per task: a task costs about what hashing one small file costs."""


class Digest(NamedTuple):
    """What reading a file gave."""

    sha256: str
    size: int
    secret: str | None


def open_regular(path: str) -> int:
    """A file descriptor for reading. A link, also one that took the place of a file since the walk, is refused.

    Raises:
        OSError: it cannot be opened.
    """
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)


def workers() -> int:
    """Processors that this process may use, at most 8: beyond that the disk or the main thread is the limit."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(usable, 8)


def hash_files(paths: Sequence[str], sizes: Sequence[int]) -> list[Digest | OSError]:
    """One digest per path, in order; an error stands where a file could not be read. `sizes` are what to expect.

    Hashing and reading let other threads run, so several files are read at a time.
    """
    if sum(sizes) <= _INLINE:
        return list(map(_digest, paths, sizes))
    from concurrent.futures import ThreadPoolExecutor

    starts = range(0, len(paths), _BATCH)
    with ThreadPoolExecutor(workers()) as pool:
        batches = pool.map(_digest_batch, repeat(paths), repeat(sizes), starts)
        return [digest for batch in batches for digest in batch]


def _digest_batch(paths: Sequence[str], sizes: Sequence[int], start: int) -> list[Digest | OSError]:
    window = slice(start, start + _BATCH)
    return list(map(_digest, paths[window], sizes[window]))


def _digest(path: str, expected: int) -> Digest | OSError:
    try:
        descriptor = open_regular(path)
    except OSError as error:
        return error
    try:
        wanted = min(expected + 1, PIECE)
        piece = head = os.read(descriptor, wanted)
        digest, size = hashlib.sha256(piece), len(piece)
        while len(piece) == wanted:
            wanted = PIECE
            piece = os.read(descriptor, wanted)
            digest.update(piece)
            size += len(piece)
    except OSError as error:
        return error
    finally:
        os.close(descriptor)
    secret = secret_content(head[:HEAD]) if size <= LARGEST else None
    return Digest(digest.hexdigest(), size, secret)
