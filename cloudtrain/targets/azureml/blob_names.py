"""Which files of a bundle can be blobs of the same name."""

from __future__ import annotations

_LONGEST_BLOB, _LONGEST_PART = 1000, 254
"""Characters of a blob's name and of each part of it; Azure takes 1,024, of which our own folder needs some."""


def refuse_blob_name(path: str) -> str | None:
    """Why a file cannot be a blob: names are Unicode text without control characters; None where it can."""
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
