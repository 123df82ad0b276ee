"""The identity of a store. It is part of every run's name, so that two stores never give one name to two runs.

A store contains a `salt`, which is created together with the store, and the location where the store was created or
last written. A store at another location was copied or moved. It counts as a different store and gets a new salt. The
salt is deterministic, so that a dry run, which writes nothing, can compute the salt that a submit would use.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import NamedTuple

from cloudtrain.store import FILE_NAME
from cloudtrain.system.clock import boot_id


class Identity(NamedTuple):
    """The salt of a store and the location of the store."""

    salt: str
    location: str

    def at(self, location: str) -> Identity:
        """Return the identity of the store if it is at `location` now: this identity if the location is the same, else
        one with a new salt."""
        return self if location == self.location else Identity(_hash(self.salt, location), location)


def salt_of_new_store(folder: Path) -> str:
    """Return the salt that a new store in `folder` would get now.

    The salt is a hash of the host name, the id of the current boot, the path, and the device and inode of the nearest
    existing folder. Two containers made from one image therefore get different salts.
    """
    nearest = next(parent for parent in (folder, *folder.parents) if parent.exists())
    found = nearest.stat()
    return _hash(_host(), boot_id(), os.path.realpath(folder), str(found.st_dev), str(found.st_ino))


def location_in(folder: Path) -> str:
    """Return the location of the store in `folder`, as a hash of host, path and inode; empty if there is no store. A
    copy has another location. A reboot does not change the location.
    """
    file = folder / FILE_NAME
    try:
        return _hash(_host(), os.path.realpath(file), str(file.stat().st_ino))
    except OSError:
        return ""


def _host() -> str:
    return os.uname().nodename


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:32]
