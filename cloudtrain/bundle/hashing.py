"""Reading every file once: its hash, its true size and the secrets in it."""

from __future__ import annotations

import codecs
import hashlib
import os
from collections.abc import Sequence
from typing import NamedTuple

from cloudtrain.bundle.entries import Secret
from cloudtrain.bundle.secrets.suspects import LARGEST, suspects

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
    secrets: tuple[Secret, ...] = ()


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


def hash_files(places: Sequence[str], sizes: Sequence[int], paths: Sequence[str | None]) -> list[Digest | OSError]:
    """One digest per place, in order; an error stands where a file could not be read.

    Hashing and reading let other threads run, so several files are read at a time.

    Args:
        sizes: what to expect.
        paths: of the files in the bundle; None for one that is not searched for secrets.
    """
    if sum(sizes) <= _INLINE:
        return list(map(_digest, places, sizes, paths))
    from concurrent.futures import ThreadPoolExecutor

    def digests(start: int) -> list[Digest | OSError]:
        window = slice(start, start + _BATCH)
        return list(map(_digest, places[window], sizes[window], paths[window]))

    with ThreadPoolExecutor(workers()) as pool:
        return [digest for batch in pool.map(digests, range(0, len(places), _BATCH)) for digest in batch]


def _digest(place: str, expected: int, path: str | None) -> Digest | OSError:
    try:
        descriptor = open_regular(place)
    except OSError as error:
        return error
    try:
        wanted = min(expected + 1, PIECE)
        piece = os.read(descriptor, wanted)
        digest, size, pieces = hashlib.sha256(piece), len(piece), [piece]
        while len(piece) == wanted:
            wanted = PIECE
            piece = os.read(descriptor, wanted)
            digest.update(piece)
            size += len(piece)
            if path is not None and size <= LARGEST:
                pieces.append(piece)
    except OSError as error:
        return error
    finally:
        os.close(descriptor)
    secrets = () if path is None else _secrets(b"".join(pieces) if len(pieces) > 1 else pieces[0], path)
    return Digest(digest.hexdigest(), size, secrets)


def _secrets(content: bytes, path: str) -> tuple[Secret, ...]:
    """The secrets in a file; its rules are loaded with the first file that needs them."""
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):  # what Windows writes
        content = content.decode("utf-16", "replace").encode("utf-8", "replace")
    spans = suspects(content, path)
    if not spans:
        return ()
    from cloudtrain.bundle.secrets.search import secrets_in

    return secrets_in(content, spans, path)
