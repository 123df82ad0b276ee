"""Symbolic links: each must lead to an entry of the bundle without leaving the bundle on the way."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping

_MOST_HOPS = 40
"""Maximum length of a chain of links, as in Linux. A longer chain is a loop."""

Place = tuple[str, ...]


class BrokenLink(Exception):
    """A link that a bundle cannot contain. The message completes a sentence about the link, such as
    `leads back to itself`."""


class Links:
    """Follows links in a tree of known paths, as the kernel will do after unpacking."""

    def __init__(self, roots: Collection[str], files: Collection[str], links: Mapping[str, str]) -> None:
        """Store the tree. `roots` are the absolute paths of the root folder, with and without links. `files` and the
        keys of `links` are relative to the root."""
        self._roots = sorted(roots, key=len, reverse=True)
        self._files = {tuple(path.split("/")) for path in files}
        self._links = {tuple(path.split("/")): target for path, target in links.items()}
        self._folders: set[Place] = {()}
        for place in (*self._files, *self._links):
            parent = place[:-1]
            while parent not in self._folders:
                self._folders.add(parent)
                parent = parent[:-1]

    def canonical(self, path: str) -> str:
        """Return the target of the link at `path`, relative to the folder of the link, with `..` only at the start.

        Raises:
            BrokenLink: the link leaves the tree, is in a loop or leads into one, or leads to nothing in the bundle.
        """
        place = tuple(path.split("/"))
        start, parts = self._split(place[:-1], self._links[place])
        last = parts.pop() if parts and parts[-1] not in (".", "..") else None
        parent = self._follow(start, parts, iter(range(_MOST_HOPS)))
        aim = parent if last is None else (*parent, last)
        self._follow(parent, [] if last is None else [last], iter(range(_MOST_HOPS)))
        return os.path.relpath("/" + "/".join(aim), "/" + "/".join(place[:-1]))

    def _split(self, folder: Place, target: str) -> tuple[Place, list[str]]:
        """Split the target of a link in `folder` into a base folder and the names to follow from it. The base is
        `folder`, or the root for an absolute target."""
        if target.startswith("/"):
            base = next((root for root in self._roots if target == root or target.startswith(root + "/")), None)
            if base is None:
                raise BrokenLink("is outside `source_dir`")
            folder, target = (), target[len(base) :]
        return folder, [part for part in (target + "." * target.endswith("/")).split("/") if part]

    def _follow(self, place: Place, parts: list[str], hops: Iterator[int]) -> Place:
        """Follow `parts` from the real path `place`, and return the real path that they lead to. Each link
        takes one item from `hops`; if no item is left, the link is in a loop."""
        for part in parts:
            if part in (".", "..") and place not in self._folders:
                raise _nothing_at(place)
            if part == ".":
                continue
            if part == "..":
                if not place:
                    raise BrokenLink("is outside `source_dir`")
                place = place[:-1]
                continue
            place = (*place, part)
            if place in self._links:
                if next(hops, None) is None:
                    raise BrokenLink("leads back to itself")
                place = self._follow(*self._split(place[:-1], self._links[place]), hops)
            elif place not in self._files and place not in self._folders:
                raise _nothing_at(place)
        return place


def _nothing_at(place: Place) -> BrokenLink:
    return BrokenLink(f"is not in the bundle: `{'/'.join(place)}` is ignored, an empty folder or missing")
