"""Divide the files of sharded inputs among the instances of a run, as S3's ShardedByS3Key does among containers. Used
on this machine, and on Azure ML, which does not shard data itself.

SageMaker documents that each instance gets about 1/n of the objects, but not which ones, so a script must not rely on
the choice. Here files are taken in the order of their keys, one for each instance in turn. Every file goes to exactly
one instance, and the counts differ by at most one. Each file becomes a link at its path below the input's folder.
"""

# Paths are strings here: this has to start in no time.
# ruff: noqa: PTH103, PTH112, PTH114, PTH116, PTH118, PTH119, PTH120, PTH211
from __future__ import annotations

import os

TYPE_CHECKING = False  # as typing.TYPE_CHECKING, without importing typing
if TYPE_CHECKING:
    from collections.abc import Iterable


def link_share(directory: str, source: str, index: int, count: int) -> int:
    """Make a folder and fill it with links to the files of one of `count` instances. Return the number of links.

    Raises:
        OSError: the source cannot be read, or the folder cannot be written.
    """
    os.stat(source)  # what is not there is no single file
    is_folder = os.path.isdir(source)
    folder = source if is_folder else os.path.dirname(source)
    keys = keys_in(source) if is_folder else [os.path.basename(source)]
    os.makedirs(directory, exist_ok=True)
    mine = deal(keys, count)[index]
    for key in mine:
        place = os.path.join(directory, key)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        os.symlink(os.path.join(folder, key), place)
    return len(mine)


def deal(keys: Iterable[str], count: int) -> list[list[str]]:
    """Return the keys of each of `count` instances: every key once, in the order of S3, which compares UTF-8 bytes."""
    ordered = sorted(keys, key=os.fsencode)
    return [ordered[instance::count] for instance in range(count)]


def keys_in(folder: str) -> list[str]:
    """Return the files below a folder, links followed, as paths relative to it.

    Raises:
        OSError: a folder cannot be read.
    """

    def refuse(error: OSError) -> None:
        raise error

    found = []
    for parent, folders, names in os.walk(folder, followlinks=True, onerror=refuse):
        folders[:] = [name for name in folders if not leads_back(parent, name)]
        found += [os.path.relpath(os.path.join(parent, name), folder) for name in names]
    return found


def leads_back(parent: str, name: str) -> bool:
    """Return whether a folder is a link to one of its own parent folders, which would make the walk endless."""
    path = os.path.join(parent, name)
    if not os.path.islink(path):
        return False
    target = os.path.join(os.path.realpath(path), "")
    while not os.path.join(os.path.realpath(parent), "").startswith(target):
        if parent == (parent := os.path.dirname(parent)):
            return False
    return True
