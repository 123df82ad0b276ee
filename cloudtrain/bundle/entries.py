"""What is in a bundle, and the hash that names it."""

from __future__ import annotations

import hashlib
import os
import posixpath
from collections.abc import Iterable
from typing import Literal, NamedTuple

_VERSION = b"cloudtrain bundle 1\n"
"""Changes whenever the same entries would give another archive."""


class Entry(NamedTuple):
    """One file or link. `path` is relative to the root of the archive, with `/`.

    A name that is not UTF-8 holds surrogates, as `os.fsdecode` makes them.
    """

    path: str
    size: int = 0
    """Bytes of a file; 0 for a link."""
    executable: bool = False
    sha256: str = ""
    """Hex digest of a file's bytes; empty for a link."""
    target: str | None = None
    """Where a link points: relative to the link, and `..` only at the start. None for a file."""
    secret: str | None = None
    """What the first bytes look like: `a private key`. Never the value."""

    @property
    def kind(self) -> Literal["file", "symlink"]:
        return "file" if self.target is None else "symlink"


class Ignored(NamedTuple):
    """A file or folder that was left out. A folder stands for all that is in it."""

    path: str
    rule: str
    """`.cloudtrainignore:3 *.bin`, or `default *.pem`."""


def content_hash(entries: Iterable[Entry]) -> str:
    """SHA-256 over paths, executable bits, file hashes and link targets. Entries must be sorted by path.

    No path, hash or target holds a NUL byte, so no two lists of entries give the same text.
    """
    lines = [_VERSION]
    for entry in entries:
        kind = "l" if entry.target is not None else "x" if entry.executable else "f"
        parts = (kind, entry.path, entry.sha256, entry.target or "")
        lines.append(b"\0".join(map(os.fsencode, parts)) + b"\n")
    return hashlib.sha256(b"".join(lines)).hexdigest()


def below(entries: Iterable[Entry], folder: str) -> list[Entry]:
    """The entries of one folder, with their paths from there; all of them for `.`."""
    prefix = posixpath.normpath(folder) + "/"
    prefix = "" if prefix == "./" else prefix
    return [entry._replace(path=entry.path[len(prefix) :]) for entry in entries if entry.path.startswith(prefix)]


def shown(path: str) -> str:
    """A path for a message: line breaks, control characters and bytes that are not UTF-8 are escaped."""
    return path if path.isprintable() else repr(path)[1:-1]
