"""The entries of a bundle: their hash, which names the bundle, links, and files from outside of the
source folder."""

from __future__ import annotations

import codecs
import os
import posixpath
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Literal, NamedTuple

from cloudtrain.code.content import hash_lines, line_of
from cloudtrain.code.ignore import INCLUDE_FILE
from cloudtrain.documents.document import read_bytes
from cloudtrain.errors import Problem
from cloudtrain.system.files import why_missing


class Secret(NamedTuple):
    """A secret found in a file, without its value."""

    rule: str
    """The rule that found the secret: `github-pat`."""
    line: int
    certain: bool
    """Whether sending the secret is an error; otherwise it is a warning."""


class Entry(NamedTuple):
    """One file or link of a bundle. `path` is relative to the root of the archive; its parts are
    separated by `/`.

    A path that is not UTF-8 contains surrogates, as `os.fsdecode` produces them.
    """

    path: str
    size: int = 0
    """Size of a file in bytes; 0 for a link."""
    executable: bool = False
    sha256: str = ""
    """Hex digest of a file's content; empty for a link."""
    target: str | None = None
    """The target of a link, relative to the link, with `..` only at the start. None for a file."""
    secrets: tuple[Secret, ...] = ()
    """Probable secrets in a file of the user."""

    @property
    def kind(self) -> Literal["file", "symlink"]:
        return "file" if self.target is None else "symlink"


class Ignored(NamedTuple):
    """A file or folder that the bundle leaves out. A folder is listed once for its whole
    content."""

    path: str
    rule: str
    """The rule that left it out: `.cloudtrainignore:3 *.bin`, or `default *.pem`."""


def content_hash(entries: Iterable[Entry]) -> str:
    """Return the hash of all entries, which must be sorted by path."""
    lines = [line_of(entry.path, entry.sha256, entry.executable, entry.target) for entry in entries]
    return hash_lines(lines)


def below(entries: Iterable[Entry], folder: str) -> list[Entry]:
    """Return the entries below one folder, with paths relative to that folder; for `.`, return all
    entries."""
    prefix = posixpath.normpath(folder) + "/"
    if prefix == "./":
        return list(entries)
    inside = []
    for entry in entries:
        if entry.path.startswith(prefix):
            inside.append(entry._replace(path=entry.path.removeprefix(prefix)))
    return inside


def escape_path(path: str) -> str:
    """Escape a path for a message: line breaks, control characters and bytes that are not UTF-8."""
    if path.isprintable():
        return path
    return repr(path)[1:-1]


# Symbolic links: each must lead to an entry of the bundle without leaving the bundle on the way.

_MOST_HOPS = 40
"""Maximum length of a chain of links, as in Linux. A longer chain is a loop."""


class BrokenLink(Exception):
    """A link that a bundle cannot contain. The message completes a sentence about the link, such as
    `leads back to itself`."""


class Links:
    """Follows links in a tree of known paths, as the kernel will do after unpacking. All paths are
    relative to the root, which is the empty path."""

    def __init__(
        self, roots: Collection[str], files: Collection[str], links: Mapping[str, str]
    ) -> None:
        """Store the tree. `roots` are the absolute paths of the root folder, with and without
        links."""
        self._roots = sorted(roots, key=len, reverse=True)
        self._files = set(files)
        self._links = links
        self._folders = {""}
        for path in (*files, *links):
            parent = posixpath.dirname(path)
            while parent not in self._folders:
                self._folders.add(parent)
                parent = posixpath.dirname(parent)

    def canonical(self, path: str) -> str:
        """Return the target of the link at `path`, relative to the folder of the link, with `..`
        only at the start.

        Raises:
            BrokenLink: the link leaves the tree, is in a loop or leads into one, or leads to
                nothing in the bundle. A link to a folder that contains it is a loop, too, for
                programs that follow links to folders.
        """
        folder = posixpath.dirname(path)
        start, parts = self._split(folder, self._links[path])

        # The target itself may be a link, which keeps its name: only its folder is resolved.
        last: list[str] = []
        if parts and parts[-1] not in (".", ".."):
            last.append(parts.pop())

        parent = self._follow(start, parts, iter(range(_MOST_HOPS)))
        end = self._follow(parent, last, iter(range(_MOST_HOPS)))
        if not end or f"{path}/".startswith(f"{end}/"):
            raise BrokenLink("is a folder that contains the link")
        return os.path.relpath(posixpath.join("/", parent, *last), f"/{folder}")

    def _split(self, folder: str, target: str) -> tuple[str, list[str]]:
        """Split the target of a link in `folder` into a base folder and the names to follow from
        it. The base is `folder`, or the root for an absolute target."""
        if target.startswith("/"):
            target = self._below_root(target)
            folder = ""
        if target.endswith("/"):
            target += "."  # only a folder has an item of this name
        return folder, [part for part in target.split("/") if part]

    def _below_root(self, target: str) -> str:
        """Return an absolute target without the root folder. Raises BrokenLink if it is not in the
        root."""
        for root in self._roots:
            if target == root or target.startswith(f"{root}/"):
                return target.removeprefix(root)
        raise BrokenLink("is outside `source_dir`")

    def _follow(self, place: str, parts: list[str], hops: Iterator[int]) -> str:
        """Follow `parts` from the real path `place`, and return the real path that they lead to.
        Each link takes one item from `hops`; if no item is left, the link is in a loop."""
        for part in parts:
            if part in (".", "..") and place not in self._folders:
                raise _nothing_at(place)
            if part == ".":
                continue
            if part == "..":
                if not place:
                    raise BrokenLink("is outside `source_dir`")
                place = posixpath.dirname(place)
                continue

            folder = place
            place = posixpath.join(folder, part)
            if place in self._links:
                if next(hops, None) is None:
                    raise BrokenLink("leads back to itself")
                start, others = self._split(folder, self._links[place])
                place = self._follow(start, others, hops)
            elif place not in self._files and place not in self._folders:
                raise _nothing_at(place)
        return place


def _nothing_at(place: str) -> BrokenLink:
    return BrokenLink(f"is not in the bundle: `{place}` is ignored, an empty folder or missing")


# Files from outside the source folder, listed in `.cloudtraininclude` at the folder's root.
#
# Each line is the path of a file or folder, relative to the root. The item appears under its own
# name at the root of the bundle, like an item of `dependencies` in the SageMaker SDK. Ignore rules,
# limits and the search for secrets apply as usual.


class Included(NamedTuple):
    """A file or folder from outside the source folder, with the methods of an `os.DirEntry`. Links
    in `path` are already resolved."""

    path: str
    status: os.stat_result

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:  # noqa: ARG002
        return stat.S_ISDIR(self.status.st_mode)

    def is_symlink(self) -> bool:
        return False

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:  # noqa: ARG002
        return self.status


def includes(root: str, own: Iterable[str]) -> tuple[dict[str, Included], list[Problem]]:
    """Return the files and folders that the include file of the source folder `root` lists, by
    their names in the bundle, and the problems with invalid lines. No listed item may have a name
    in `own`, those of the folder's own items.

    Raises:
        FileNotFoundError: the include file or a listed item was removed meanwhile.
    """
    try:
        content = read_bytes(f"{root}/{INCLUDE_FILE}")
    except OSError as error:
        if not os.path.lexists(f"{root}/{INCLUDE_FILE}"):  # removed since the folder was listed
            raise
        message = f"`{INCLUDE_FILE}` cannot be read: {error.strerror}"
        return {}, [
            Problem(
                ("source_dir",),
                message,
                "make it a plain file that you may read, or remove it",
                code="CT055",
            )
        ]

    items: dict[str, Included] = {}
    problems = []
    origins = dict.fromkeys(own, "`source_dir`")
    lines = content.removeprefix(codecs.BOM_UTF8).split(b"\n")
    for line, text in enumerate(lines, 1):
        path = os.fsdecode(text).strip()
        if not path or path.startswith("#"):
            continue

        place = os.path.join(root, path)
        shown = f"`{escape_path(path)}`"
        # `../lib/..` has the name of the folder that it leads to.
        name = os.path.basename(os.path.normpath(place))
        fault = why_missing(place)
        if not fault and not name:
            fault = "has no name for the bundle"

        if fault is not None:
            problems.append(
                _problem(
                    f"{shown} {fault}",
                    "write the path of a file or folder, relative to `source_dir`, or remove the "
                    "line",
                    line,
                )
            )
        elif name in origins:
            sources = f"from {origins[name]} and from {shown}"
            message = f"the bundle would have `{escape_path(name)}` {sources}"
            problems.append(_problem(message, "remove the line, or rename one of the two", line))
        else:
            real = os.path.realpath(place)
            items[name] = Included(real, os.stat(real))
            origins[name] = f"line {line}"
    return items, problems


def _problem(message: str, hint: str, line: int) -> Problem:
    """Return a problem with a line of the include file."""
    return Problem(("source_dir",), message, hint, INCLUDE_FILE, line, 1, code="CT055")
