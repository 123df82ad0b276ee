"""Reads every file once to get its hash, its true size and the secrets in it."""

from __future__ import annotations

import codecs
import hashlib
import os
from collections.abc import Sequence
from typing import NamedTuple

from cloudtrain.bundle.entries import Secret
from cloudtrain.bundle.secrets.suspects import LARGEST, suspects

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
    """Open a file for reading and return its descriptor. A link is refused, even if it replaced a file after the folder
    was listed.

    Raises:
        OSError: the file cannot be opened.
    """
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)


def workers() -> int:
    """Return the number of threads that hash or compress: one for each processor that this process may use, at most
    8."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(usable, 8)


def hash_files(places: Sequence[str], sizes: Sequence[int], paths: Sequence[str | None]) -> list[Digest | OSError]:
    """Return one digest per file, in order, or the error if the file could not be read.

    Hashing and reading release the interpreter lock, so several files are read at a time.

    Args:
        places: the paths of the files on disk.
        sizes: the expected sizes.
        paths: the paths of the files in the bundle; None for a file that is not searched for secrets.
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
    """Return the secrets in a file. The rules are loaded when the first file needs them."""
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):  # as Windows writes it
        content = content.decode("utf-16", "replace").encode("utf-8", "replace")
    spans = suspects(content, path)
    if not spans:
        return ()
    from cloudtrain.bundle.secrets.search import secrets_in

    return secrets_in(content, spans, path)
