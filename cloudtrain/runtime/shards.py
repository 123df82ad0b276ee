"""Divide the files of sharded inputs among the instances of a run, as SageMaker's ShardedByS3Key
does. Used on this machine and on Azure ML, which does not shard data itself.

SageMaker documents that each instance gets about 1/n of the objects, but not which ones, so a
script must not rely on a particular division. Here files are sorted by key and assigned to the
instances in turn. Every file goes to exactly one instance, and the counts differ by at most one. In
its instance's folder, each file becomes a link with the same relative path as in the input's
folder.
"""

# Paths are strings here: this has to start in no time.
from __future__ import annotations

import os
from collections.abc import Iterable


def link_share(directory: str, source: str, index: int, count: int) -> int:
    """Create the folder `directory` with links to those files of `source` that instance `index` (of
    `count`) gets. Return the number of links.

    Raises:
        OSError: the source cannot be read, or the folder cannot be written.
    """
    os.stat(source)  # what is not there is no single file
    folder, name = os.path.split(source)
    keys = [name]
    if os.path.isdir(source):
        folder = source
        keys = keys_in(source)
    os.makedirs(directory, exist_ok=True)
    mine = deal(keys, count)[index]
    for key in mine:
        place = os.path.join(directory, key)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        os.symlink(os.path.join(folder, key), place)
    return len(mine)


def deal(keys: Iterable[str], count: int) -> list[list[str]]:
    """Return one list of keys for each of `count` instances. Every key occurs once. Keys are sorted
    by their UTF-8 bytes, as in S3."""
    ordered = sorted(keys, key=os.fsencode)
    return [ordered[instance::count] for instance in range(count)]


def keys_in(folder: str) -> list[str]:
    """Return all files below a folder as paths relative to it. Links are followed.

    Raises:
        OSError: a folder cannot be read.
    """

    def refuse(error: OSError) -> None:
        raise error

    paths = []
    for parent, folders, names in os.walk(folder, followlinks=True, onerror=refuse):
        folders[:] = [name for name in folders if not leads_back(parent, name)]
        paths += [os.path.relpath(os.path.join(parent, name), folder) for name in names]
    return paths


def leads_back(parent: str, name: str) -> bool:
    """Return whether the folder `name` in `parent` is a link to one of its own parent folders.
    Following such a link would never end."""
    path = os.path.join(parent, name)
    if not os.path.islink(path):
        return False
    target = os.path.join(os.path.realpath(path), "")
    while not os.path.join(os.path.realpath(parent), "").startswith(target):
        if parent == (parent := os.path.dirname(parent)):
            return False
    return True
