"""Which store this is: part of every run's name, so that two stores never give one name to two runs.

A store keeps a `salt`, made when the store is, and the location at which it was made or last written. A store that
was copied or moved is found at another location and counts as another store: its salt becomes a new one. Nothing is
random, so that a dry run, which writes nothing, knows the salt that a submit would use.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import NamedTuple

from cloudtrain.system.clock import boot_id


class Identity(NamedTuple):
    """The salt of a store, and where the store is."""

    salt: str
    location: str

    def at(self, location: str) -> Identity:
        """Return the identity of this store as found at `location`: itself, or another one if the store was copied."""
        return self if location == self.location else Identity(_hash(self.salt, location), location)


def salt_of_new_store(folder: Path) -> str:
    """Return the salt that a store made in `folder` now would get.

    It is hashed from the host, this boot, the path, and the device and inode of the nearest folder that exists, so
    that containers made from one image differ too.
    """
    nearest = next(parent for parent in (folder, *folder.parents) if parent.exists())
    found = nearest.stat()
    return _hash(_host(), boot_id(), os.path.realpath(folder), str(found.st_dev), str(found.st_ino))


def location_of(file: Path) -> str:
    """Return where a database is: host, path and inode. A copy differs in one of them, a reboot changes none."""
    return _hash(_host(), os.path.realpath(file), str(file.stat().st_ino))


def _host() -> str:
    return os.uname().nodename


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:32]
