"""The hash that names a bundle. It covers the bundle's files and links, and does not depend on the
archive's bytes."""

from __future__ import annotations

import hashlib
import os

TYPE_CHECKING = False  # like typing.TYPE_CHECKING, without importing typing
if TYPE_CHECKING:
    from collections.abc import Sequence

_VERSION = b"cloudtrain bundle 1\n"
"""Changes whenever the same entries would produce another archive."""


def hash_lines(lines: Sequence[bytes]) -> str:
    """Return the SHA-256 of the lines of all entries, in the byte order of their paths."""
    return hashlib.sha256(_VERSION + b"".join(lines)).hexdigest()


def line_of(
    path: str, sha256: str = "", executable: bool = False, target: str | None = None
) -> bytes:
    """Return the line of a file, whose bytes have the hex digest `sha256`, or of a link to
    `target`.

    The parts of a line are separated by NUL bytes, which no path, file hash or link target
    contains. So different lists of entries never give the same input to SHA-256.
    """
    kind = "f"
    if target is not None:
        kind = "l"
    elif executable:
        kind = "x"
    parts = [os.fsencode(part) for part in (kind, path, sha256, target or "")]
    return b"\0".join(parts) + b"\n"
