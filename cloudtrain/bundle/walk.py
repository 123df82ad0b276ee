"""The walk over the user's folder: every file and link that is not ignored, found once."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from typing import NamedTuple

from cloudtrain.bundle.entries import Ignored, shown
from cloudtrain.bundle.ignore import IGNORE_FILE, Rules, default_rule, environment_rule, ignore_line
from cloudtrain.errors import Problem

_SPECIAL = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFBLK: "a block device",
    stat.S_IFCHR: "a character device",
}


class Found(NamedTuple):
    """A file as the walk saw it."""

    path: str
    size: int
    executable: bool


@dataclass
class Walk:
    """What a walk found. `links` holds each link's target as it stands on disk."""

    files: list[Found] = field(default_factory=list)
    links: dict[str, str] = field(default_factory=dict)
    ignored: list[Ignored] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def refuse(self, path: str, message: str, *, remedy: str) -> None:
        """Note a problem with one path. The way out is always to ignore the path, or the remedy."""
        line = shown(ignore_line(path))
        hint = f"add the line `{line}` to `{IGNORE_FILE}` in `source_dir`, or {remedy}"
        self.problems.append(Problem(("source_dir",), message, hint))


def walk(root: str) -> Walk:
    """Every file and link below `root`, sorted by the bytes of their paths. Ignored folders are not read."""
    found = Walk()
    waiting: list[tuple[str, tuple[Rules, ...]]] = [("", ())]
    while waiting:
        folder, rules = waiting.pop()
        try:
            with os.scandir(f"{root}/{folder}") as listing:
                items = sorted(listing, key=lambda item: os.fsencode(item.name))
            if any(item.name == IGNORE_FILE and item.is_file() for item in items):
                rules = (Rules(folder, _read(f"{root}/{folder}{IGNORE_FILE}")), *rules)
            for item in items:
                _look_at(item, folder, rules, found, waiting)
        except OSError as error:
            message = f"`{shown(folder.rstrip('/') or root)}` cannot be read: {error.strerror}"
            if folder:
                found.refuse(folder, message, remedy="make it readable for you")
            else:
                found.problems.append(Problem(("source_dir",), message, "make it readable for you"))
    found.files.sort(key=lambda file: os.fsencode(file.path))
    return found


def _read(path: str) -> bytes:
    with open(path, "rb") as file:  # noqa: PTH123 - paths are plain strings here: half the time of a walk is names
        return file.read()


def _look_at(
    item: os.DirEntry[str],
    folder: str,
    rules: tuple[Rules, ...],
    found: Walk,
    waiting: list[tuple[str, tuple[Rules, ...]]],
) -> None:
    path = folder + item.name
    is_folder = item.is_dir(follow_symlinks=False)
    rule = _ignoring_rule(item, path, is_folder, rules)
    if rule is not None:
        found.ignored.append(Ignored(path, rule))
    elif is_folder:
        waiting.append((path + "/", rules))
    elif item.is_symlink():
        found.links[path] = os.readlink(item.path)  # noqa: PTH115
    else:
        status = item.stat(follow_symlinks=False)
        if stat.S_ISREG(status.st_mode):
            found.files.append(Found(path, status.st_size, bool(status.st_mode & stat.S_IXUSR)))
        else:
            what = _SPECIAL.get(stat.S_IFMT(status.st_mode), "no regular file")
            found.refuse(path, f"`{shown(path)}` is {what}, which cannot be in a bundle", remedy="remove it")


def _ignoring_rule(item: os.DirEntry[str], path: str, is_folder: bool, rules: tuple[Rules, ...]) -> str | None:
    """The rule that leaves the path out: of the nearest ignore file that has one for it, or a default."""
    verdicts = (each.judge(path, is_folder) for each in rules)
    verdict = next((verdict for verdict in verdicts if verdict is not None), None)
    if verdict is None or not (verdict.ignores or verdict.by_name):
        return default_rule(item.name) or (environment_rule(item.path) if is_folder else None)
    return verdict.rule if verdict.ignores else None
