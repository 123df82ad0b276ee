"""The hash that names a bundle. It covers the bundle's files and links, and does not depend on the archive's bytes."""

from __future__ import annotations

import hashlib
import os

_VERSION = b"cloudtrain bundle 1\n"
"""Changes whenever the same entries would produce another archive."""


class ContentHash:
    """SHA-256 over paths, executable bits, file hashes and link targets. Entries are added in the byte order of their
    paths.

    The parts of an entry are separated by NUL bytes, which no path, file hash or link target contains. So different
    lists of entries never give the same input to SHA-256.
    """

    def __init__(self) -> None:
        self._hash = hashlib.sha256(_VERSION)

    def add_file(self, path: str, sha256: str, *, executable: bool) -> None:
        """Add a file; `sha256` is the hex digest of its bytes."""
        self._add("x" if executable else "f", path, sha256, "")

    def add_link(self, path: str, target: str) -> None:
        self._add("l", path, "", target)

    def hexdigest(self) -> str:
        """Return the hex digest, which names the bundle."""
        return self._hash.hexdigest()

    def _add(self, *parts: str) -> None:
        self._hash.update(b"\0".join(map(os.fsencode, parts)) + b"\n")
