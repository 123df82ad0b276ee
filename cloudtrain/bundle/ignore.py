"""The files that stay out of the bundle: the defaults, and the rules of every `.cloudtrainignore`.

Ignore files have the syntax of gitignore. The nearest ignore file with a matching rule decides about a path, by its
last matching rule. The defaults come after all ignore files, so a `!` rule can include a path that a default leaves
out. Such a rule must contain a name: `!*/` does not include virtual environments. An ignored folder is never read, so
no rule can include files in it.
"""

from __future__ import annotations

import codecs
import os
import re
import stat
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple, Protocol

from cloudtrain.bundle.pattern_index import PatternIndex
from cloudtrain.bundle.patterns import NoPattern, Pattern, pattern_of
from cloudtrain.bundle.secrets.names import secret_name
from cloudtrain.errors import JobError, Problem

IGNORE_FILE = ".cloudtrainignore"
INCLUDE_FILE = ".cloudtraininclude"

_DEFAULT_NAMES = frozenset(
    f"""
    {IGNORE_FILE} {INCLUDE_FILE} .git .hg .svn .jj .idea .vscode .DS_Store Thumbs.db
    __pycache__ .venv venv .tox .nox .eggs node_modules
    .mypy_cache .pytest_cache .ruff_cache .hypothesis .ipynb_checkpoints
    """.split()
)
_DEFAULT_SUFFIXES = (".pyc", ".pyo", ".egg-info")
_EDITORS_LOCK = ".#"
"""Prefix of the link to nothing that Emacs makes beside a file with unsaved changes."""
_ENVIRONMENT_MARKS = {"pyvenv.cfg": "a virtual environment", "conda-meta": "a conda environment"}


class Verdict(NamedTuple):
    """The decision of an ignore file about a path, and the rule that made it. `by_name` is False if this rule contains
    no letter or digit, such as `!*`."""

    ignores: bool
    by_name: bool
    rule: str


class _Rule(NamedTuple):
    pattern: Pattern
    text: str
    line: int


class Rules:
    """The rules of one ignore file. `folder` is the folder of the file, relative to the root, such as `a/b/`;
    empty for the root itself."""

    def __init__(self, folder: str, content: bytes) -> None:
        self._folder = folder
        lines = content.removeprefix(codecs.BOM_UTF8).split(b"\n")
        rules = [_rule(text.removesuffix(b"\r"), line, folder) for line, text in enumerate(lines, 1)]
        self._rules = tuple(rule for rule in reversed(rules) if rule is not None)
        self._index = PatternIndex([rule.pattern for rule in self._rules])

    def judge(self, path: str, is_folder: bool) -> Verdict | None:
        """Return whether the path is ignored and by which rule; None if no rule matches.

        A rule decides only about paths that it matches. For example, after the rule `*`, the rule `!data/` includes the
        folder `data`, but not the files in it.
        """
        relative = os.fsencode(path[len(self._folder) :])
        for number in self._index.candidates(relative):
            rule = self._rules[number]
            if rule.pattern.matches(relative, is_folder):
                by_name = any(character.isalnum() for character in rule.text)
                return Verdict(rule.pattern.ignores, by_name, f"{self._folder}{IGNORE_FILE}:{rule.line} {rule.text}")
        return None


def _rule(text: bytes, line: int, folder: str) -> _Rule | None:
    """Parse one line of an ignore file; return None for a blank line or a comment.

    Raises:
        JobError: no path can match the line.
    """
    shown = os.fsdecode(text)
    try:
        pattern = pattern_of(text)
    except NoPattern:
        message, hint = f"`{shown}` is not a pattern", "write it as in a .gitignore file, or begin the line with `#`"
        problem = Problem(("source_dir",), message, hint, f"{folder}{IGNORE_FILE}", line, 1, code="CT051")
        raise JobError([problem]) from None
    return None if pattern is None else _Rule(pattern, shown.rstrip(), line)


class OnDisk(Protocol):
    """A file or folder in a folder's listing, such as an `os.DirEntry`."""

    @property
    def path(self) -> str:
        """The item's path on disk."""
        ...

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Return the item's status, as `os.stat` does."""
        ...


class Defaults(NamedTuple):
    """The default rules, which leave out paths unless an ignore file includes them.

    Attributes:
        declared: paths that the job declares as data, each with the text that `rule` returns for it.
        output: device and inode of the files that stdout and stderr of this process are redirected to.
    """

    declared: Mapping[str, str]
    output: frozenset[tuple[int, int]]

    def rule(self, path: str, item: OnDisk, *, is_folder: bool) -> str | None:
        """Return the default rule that leaves out the file or folder at `path`; None if no default rule matches."""
        name = path.rpartition("/")[2]
        if name in _DEFAULT_NAMES:
            return f"default {name}"
        if name.endswith(_DEFAULT_SUFFIXES):
            return f"default *{name[name.rindex('.') :]}"
        if name.startswith(_EDITORS_LOCK) and os.path.islink(item.path):  # noqa: PTH114
            return f"default {_EDITORS_LOCK}* (a lock of an editor)"
        if path in self.declared:
            return self.declared[path]
        if (secret := secret_name(path)) is not None:
            return f"default {secret[1]}"
        if is_folder:
            return _environment_rule(item.path)
        return "the output of this command" if self.output and _inode(item) in self.output else None


def own_output() -> frozenset[tuple[int, int]]:
    """Return device and inode of each file that this process's stdout or stderr is redirected to."""
    found = []
    for descriptor in (1, 2):
        with suppress(OSError):
            status = os.fstat(descriptor)
            if stat.S_ISREG(status.st_mode):
                found.append((status.st_dev, status.st_ino))
    return frozenset(found)


def _inode(item: OnDisk) -> tuple[int, int]:
    status = item.stat(follow_symlinks=False)
    return status.st_dev, status.st_ino


def _environment_rule(folder: str) -> str | None:
    """Return the default rule that leaves out the folder if it is a Python environment, whatever its name; else None.
    `folder` is a path on disk."""
    for mark, what in _ENVIRONMENT_MARKS.items():
        if os.path.lexists(f"{folder}/{mark}"):
            return f"default {what}"
    return None


def ignore_line(path: str) -> str:
    """Return a line for the root's ignore file that matches this path and can be printed and typed.

    A `?` replaces each byte that an editor cannot show: line breaks, control characters, bytes that are not UTF-8.
    """
    letters = []
    for letter in path:
        if not letter.isprintable():
            letters.append("?" * len(os.fsencode(letter)))
        else:
            letters.append(f"\\{letter}" if letter in "\\*?[" else letter)
    return "/" + re.sub(r" $", r"\\ ", "".join(letters))
