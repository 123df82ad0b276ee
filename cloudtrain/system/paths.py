"""Descriptions of paths that do not lead to a readable item, including paths that the system refuses to inspect."""

from __future__ import annotations

import os


def why_missing(path: str) -> str | None:
    """Return why a path leads to nothing, as the end of a sentence (`does not exist`); None if it leads to
    something."""
    try:
        os.stat(path)  # noqa: PTH116 - a Path raises for other reasons on each version of Python
    except (FileNotFoundError, NotADirectoryError):
        return "does not exist"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    except ValueError:
        return "is not a path: it has a NUL character in it"
    return None
