"""What is in a bundle, and the hash that names it."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from typing import Literal, NamedTuple

from cloudtrain.bundle.content import ContentHash


class Secret(NamedTuple):
    """A secret in a file. Never the value."""

    rule: str
    """What found it: `github-pat`."""
    line: int
    certain: bool
    """Whether it is an error to send it; else it is a warning."""


class Entry(NamedTuple):
    """One file or link. `path` is relative to the root of the archive, with `/`.

    A name that is not UTF-8 holds surrogates, as `os.fsdecode` makes them.
    """

    path: str
    size: int = 0
    """Bytes of a file; 0 for a link."""
    executable: bool = False
    sha256: str = ""
    """Hex digest of a file's bytes; empty for a link."""
    target: str | None = None
    """Where a link points: relative to the link, and `..` only at the start. None for a file."""
    secrets: tuple[Secret, ...] = ()
    """What in a file of the user's looks like a secret."""

    @property
    def kind(self) -> Literal["file", "symlink"]:
        return "file" if self.target is None else "symlink"


class Ignored(NamedTuple):
    """A file or folder that was left out. A folder stands for all that is in it."""

    path: str
    rule: str
    """`.cloudtrainignore:3 *.bin`, or `default *.pem`."""


def content_hash(entries: Iterable[Entry]) -> str:
    """The hash of all entries, which must be sorted by path."""
    content = ContentHash()
    for entry in entries:
        if entry.target is None:
            content.add_file(entry.path, entry.sha256, executable=entry.executable)
        else:
            content.add_link(entry.path, entry.target)
    return content.hexdigest()


def below(entries: Iterable[Entry], folder: str) -> list[Entry]:
    """The entries of one folder, with their paths from there; all of them for `.`."""
    prefix = posixpath.normpath(folder) + "/"
    prefix = "" if prefix == "./" else prefix
    return [entry._replace(path=entry.path[len(prefix) :]) for entry in entries if entry.path.startswith(prefix)]


def escape_path(path: str) -> str:
    """A path for a message: line breaks, control characters and bytes that are not UTF-8 are escaped."""
    return path if path.isprintable() else repr(path)[1:-1]
