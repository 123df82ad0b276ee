"""Paths as users write them, and the reasons why a path cannot be used."""

from __future__ import annotations

import os
from pathlib import Path


def expand_home(path: str) -> Path:
    """Return the path with a leading `~` or `~user` replaced by the home folder. The `~user` of an unknown user is not
    replaced."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 - Path.expanduser raises for that user


def why_missing(path: str) -> str | None:
    """Return why nothing can be found at a path, as the end of a sentence (`does not exist`); None if the path
    exists."""
    try:
        os.stat(path)  # noqa: PTH116 - a Path raises for other reasons on each version of Python
    except (FileNotFoundError, NotADirectoryError):
        return "does not exist"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    except ValueError:
        return "is not a path: it has a NUL character in it"
    return None


def is_root(path: str) -> bool:
    """Return whether a path leads to the root of this machine's file system, whatever its spelling."""
    return why_missing(path) is None and os.path.samefile(path, os.sep)  # noqa: PTH121 - as `why_missing`
