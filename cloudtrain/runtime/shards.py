"""Dealing out the files of sharded inputs over the instances of a run, as S3's ShardedByS3Key does over containers: on
this machine, and on Azure ML, which deals out nothing itself.

SageMaker documents that each instance gets about 1/n of the objects, not which: a script must not count on it. Here
files are taken in the order of their keys, one for each instance in turn, so that every file goes to exactly one
instance and the counts differ by at most one. A file keeps its path below the input's folder; it is a link.
"""

# Paths are strings here: this has to start in no time.
# ruff: noqa: PTH103, PTH112, PTH114, PTH116, PTH118, PTH119, PTH120, PTH211
from __future__ import annotations

import os

TYPE_CHECKING = False  # as typing.TYPE_CHECKING, without importing typing
if TYPE_CHECKING:
    from collections.abc import Iterable


def link_share(directory: str, source: str, index: int, count: int) -> int:
    """Fill a folder, which is made, with links to the files of one of `count` instances; how many those are.

    Raises:
        OSError: the source cannot be read, or the folder not be written.
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
    """The keys of each of `count` instances: every key once, in the order of S3, which compares UTF-8 bytes."""
    ordered = sorted(keys, key=os.fsencode)
    return [ordered[instance::count] for instance in range(count)]


def keys_in(folder: str) -> list[str]:
    """The files below a folder, links followed, as paths relative to it.

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
    """Whether a folder is a link to one that the way to it leads through, where there would be no end."""
    path = os.path.join(parent, name)
    if not os.path.islink(path):
        return False
    target = os.path.join(os.path.realpath(path), "")
    while not os.path.join(os.path.realpath(parent), "").startswith(target):
        if parent == (parent := os.path.dirname(parent)):
            return False
    return True
