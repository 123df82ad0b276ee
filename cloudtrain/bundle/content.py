"""The hash that names a bundle. It covers the content of the bundle, independent of the archive's bytes.

Packing and unpacking both compute it.
"""

from __future__ import annotations

import hashlib
import os

_VERSION = b"cloudtrain bundle 1\n"
"""Changes whenever the same entries would produce another archive."""


class ContentHash:
    """SHA-256 over paths, executable bits, file hashes and link targets, added in the order of the paths' bytes.

    No path, hash or target contains a NUL byte, so different lists of entries always give different texts.
    """

    def __init__(self) -> None:
        self._hash = hashlib.sha256(_VERSION)

    def add_file(self, path: str, sha256: str, *, executable: bool) -> None:
        """Add a file; `sha256` is the hex digest of its bytes."""
        self._add("x" if executable else "f", path, sha256, "")

    def add_link(self, path: str, target: str) -> None:
        """Add a symbolic link."""
        self._add("l", path, "", target)

    def hexdigest(self) -> str:
        """Return the bundle's name."""
        return self._hash.hexdigest()

    def _add(self, *parts: str) -> None:
        self._hash.update(b"\0".join(map(os.fsencode, parts)) + b"\n")
