"""Check whether a bundle's files can be stored as blobs under the same names."""

from __future__ import annotations

_LONGEST_BLOB, _LONGEST_PART = 1000, 254
"""Longest name of a blob, and of each part of it, in characters.

Azure allows 1,024, and our own folder needs some of them.
"""


def refuse_blob_name(path: str) -> str | None:
    """Explain why a file cannot be stored as a blob; None if it can. Blob names are text without control characters."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return "whose name is not UTF-8"
    if any(letter < " " or "\x7f" <= letter <= "\x9f" or letter in "\ufffe\uffff" for letter in path):
        return "whose name has a control character in it"
    if any(part.endswith(".") for part in path.split("/")):
        return "whose name ends with a dot"
    if len(path) > _LONGEST_BLOB or any(len(part) > _LONGEST_PART for part in path.split("/")):
        return "whose path is too long"
    return None
