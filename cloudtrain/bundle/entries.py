"""The entries of a bundle, and the hash that names the bundle."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from typing import Literal, NamedTuple

from cloudtrain.bundle.content import ContentHash


class Secret(NamedTuple):
    """A secret found in a file, without its value."""

    rule: str
    """The rule that found the secret: `github-pat`."""
    line: int
    certain: bool
    """Whether sending the secret is an error; otherwise it is a warning."""


class Entry(NamedTuple):
    """One file or link of a bundle. `path` is relative to the root of the archive; its parts are separated by `/`.

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
    """A file or folder that the bundle leaves out. A folder is listed once for its whole content."""

    path: str
    rule: str
    """The rule that left it out: `.cloudtrainignore:3 *.bin`, or `default *.pem`."""


def content_hash(entries: Iterable[Entry]) -> str:
    """Return the hash of all entries, which must be sorted by path."""
    content = ContentHash()
    for entry in entries:
        if entry.target is None:
            content.add_file(entry.path, entry.sha256, executable=entry.executable)
        else:
            content.add_link(entry.path, entry.target)
    return content.hexdigest()


def below(entries: Iterable[Entry], folder: str) -> list[Entry]:
    """Return the entries below one folder, with paths relative to that folder; for `.`, return all entries."""
    prefix = posixpath.normpath(folder) + "/"
    prefix = "" if prefix == "./" else prefix
    return [entry._replace(path=entry.path[len(prefix) :]) for entry in entries if entry.path.startswith(prefix)]


def escape_path(path: str) -> str:
    """Escape a path for a message: line breaks, control characters and bytes that are not UTF-8."""
    return path if path.isprintable() else repr(path)[1:-1]
