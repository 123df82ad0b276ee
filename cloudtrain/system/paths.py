"""Paths as users write them, and the reasons why a path cannot be used."""

from __future__ import annotations

import os
from collections.abc import Iterator
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


def links_to(path: str) -> Iterator[str]:
    """Yield each link that the system follows to reach an absolute path, from the first to the last."""
    here, rest = os.sep, path.split("/")[::-1]
    for _ in range(10_000):  # two links can lead to each other
        if not rest:
            return
        item = os.path.normpath(os.path.join(here, rest.pop()))  # noqa: PTH118
        if os.path.islink(item):  # noqa: PTH114
            yield item
            target = os.readlink(item)  # noqa: PTH115
            rest += target.split("/")[::-1]
            here = os.sep if os.path.isabs(target) else here  # noqa: PTH117
        else:
            here = item


def is_root(path: str) -> bool:
    """Return whether a path leads to the root of this machine's file system, whatever its spelling."""
    try:
        return os.path.samefile(path, os.sep)  # noqa: PTH121 - as `why_missing`
    except (OSError, ValueError):
        return False
