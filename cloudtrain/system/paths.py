"""What a path of the user's leads to, said in words: the system may refuse even to look."""

from __future__ import annotations

import os


def why_missing(path: str) -> str | None:
    """The end of a sentence about a path that leads to nothing (`does not exist`); None where something is there."""
    try:
        os.stat(path)  # noqa: PTH116 - a Path raises for other reasons on each version of Python
    except (FileNotFoundError, NotADirectoryError):
        return "does not exist"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    except ValueError:
        return "is not a path: it has a NUL character in it"
    return None
