"""The walk over the user's folder, which finds every file and link that is not ignored, and the
default rules, which leave out paths unless an ignore file includes them."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import islice
from typing import NamedTuple, TypeVar

from cloudtrain.code.files import Ignored, Included, escape_path, includes
from cloudtrain.code.ignore import IGNORE_FILE, INCLUDE_FILE, Rules, ignore_line
from cloudtrain.code.secret_names import secret_name
from cloudtrain.documents.document import KINDS, MAX_FILES, read_bytes
from cloudtrain.errors import JobError, Problem
from cloudtrain.system.files import is_root

_NARROWER = "let `source_dir` name a folder with only your code"

MOVED = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ESTALE)
"""Errors of reading a file or folder that was removed, or replaced by something else, after it was
listed."""

T = TypeVar("T")

PAUSES = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64)
"""Seconds before each further attempt to read a folder in which other programs remove or replace
files."""


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

Item = os.DirEntry[str] | Included
"""What a walk finds."""


class Moved(Exception):
    """A path was removed or replaced after its folder was listed, so the folder has to be listed
    again. The text is the path below the source folder; empty for the source folder itself."""


def read_until_settled(read: Callable[[], T]) -> T:
    """Return what `read` returns. Call it again, after a pause, while other programs remove or
    replace what it reads.

    Raises:
        Moved: this happened at every attempt.
    """
    for pause in PAUSES:
        with suppress(Moved):
            return read()
        time.sleep(pause)
    return read()


class SourceFile(NamedTuple):
    """A file of the user, with its size and mode when the walk came to it."""

    path: str
    size: int
    executable: bool
    place: str
    """The path on disk."""
    is_searched: bool = True
    """Whether its content is searched for secrets."""


class Walk:
    """A walk over the user's folder, with its results.

    Attributes:
        included: names in the bundle of the files and folders from outside the user's folder.
        links: maps the path of each link to its target as written on disk.
        declared: paths that the job declares as data, each with a description.
        output: device and inode of the files that stdout and stderr of this process are redirected
            to.
    """

    def __init__(self, root: str, declared: Mapping[str, str]) -> None:
        self.root = root
        self.declared = declared
        self.output = _own_output()
        self.waiting: list[_Folder] = []
        self.included: list[str] = []
        self.files: list[SourceFile] = []
        self.links: dict[str, str] = {}
        self.ignored: list[Ignored] = []
        self.problems: list[Problem] = []
        self.count = 0

    def refuse(self, path: str, message: str, *, remedy: str) -> None:
        """Record a problem with one path. The hint offers to add the path to the ignore file, or to
        do `remedy`."""
        line = ignore_line(path)
        hint = f"add the line `{line}` to `{IGNORE_FILE}` in `source_dir`, or {remedy}"
        self.problems.append(Problem(("source_dir",), message, hint, code="CT052"))

    def read_folder(self, folder: _Folder) -> None:
        """Look at everything in a folder."""
        path, place, rules = folder
        with os.scandir(place) as listing:
            # One item too many is enough to refuse the folder.
            items = list(islice(listing, MAX_FILES + 1 - self.count))
        items.sort(key=lambda item: os.fsencode(item.name))
        names = [item.name for item in items]
        if IGNORE_FILE in names:
            rules = (self._rules_in(place, path), *rules)
        self.count += len(items)
        if self.count > MAX_FILES:
            message = (
                f"`{escape_path(self.root)}` holds more than {MAX_FILES:,} files, too many for a "
                "bundle of code"
            )
            raise source_error(
                message, f"{_NARROWER}, or add the folders with data to `{IGNORE_FILE}`", "CT053"
            )

        for item in items:
            self.look_at(item, path + item.name, rules)

        if not path and INCLUDE_FILE in names:
            others, problems = includes(self.root, [*names, *self.included])
            self.problems += problems
            self.included += others
            for name, other in others.items():
                self.look_at(other, name, rules)

    def _rules_in(self, place: str, folder: str) -> Rules:
        """Return the rules of the ignore file in `place`, which is `folder` relative to the root;
        if the file cannot be read, no rules, and a problem is recorded."""
        try:
            return Rules(folder, read_bytes(f"{place}/{IGNORE_FILE}"))
        except OSError as error:
            if not os.path.lexists(f"{place}/{IGNORE_FILE}"):
                raise Moved(folder + IGNORE_FILE) from None
            message = f"`{escape_path(folder)}{IGNORE_FILE}` cannot be read: {error.strerror}"
            self.problems.append(
                Problem(
                    ("source_dir",),
                    message,
                    "make it a plain file that you may read, or remove it",
                    code="CT051",
                )
            )
            return Rules(folder, b"")

    def look_at(self, item: Item, path: str, rules: tuple[Rules, ...]) -> None:
        """Add an item to the results, or a folder that is not ignored to those that wait. `path` is
        the item's path in the bundle."""
        is_folder = item.is_dir(follow_symlinks=False)
        rule = self._ignoring_rule(item, path, is_folder, rules)
        if rule is not None:
            self.ignored.append(Ignored(path, rule))
        elif is_folder:
            self.waiting.append(_Folder(path + "/", item.path, rules))
        elif item.is_symlink():
            self.links[path] = _target_of(item.path, path)
        else:
            status = item.stat(follow_symlinks=False)
            mode = status.st_mode
            # It was a file when it was listed.
            if stat.S_ISDIR(mode) or stat.S_ISLNK(mode):
                raise Moved(path)
            if stat.S_ISREG(mode):
                executable = bool(mode & stat.S_IXUSR)
                self.files.append(SourceFile(path, status.st_size, executable, item.path))
            else:
                what = KINDS.get(stat.S_IFMT(mode), "not a regular file")
                message = f"`{escape_path(path)}` is {what}, which cannot be in a bundle"
                self.refuse(path, message, remedy="remove it")

    def _ignoring_rule(
        self,
        item: Item,
        path: str,
        is_folder: bool,
        rules: tuple[Rules, ...],
    ) -> str | None:
        """Return the rule that leaves out the path, from the nearest ignore file with a matching
        rule or from the defaults; None if the bundle includes the path."""
        for rules_of_file in rules:
            rule = rules_of_file.judge(path, is_folder)
            if rule is not None:
                if rule.pattern.ignores:
                    return rule.text
                if rule.has_name:
                    return None
                break  # a rule such as `!*` does not switch off the defaults
        return self._default_rule(item, path, is_folder)

    def _default_rule(self, item: Item, path: str, is_folder: bool) -> str | None:
        """Return the default rule that leaves out the path; None if no default rule matches."""
        name = path.rpartition("/")[2]
        if name in _DEFAULT_NAMES:
            return f"default {name}"
        if name.endswith(_DEFAULT_SUFFIXES):
            return f"default *{name[name.rindex('.') :]}"
        if name.startswith(_EDITORS_LOCK) and os.path.islink(item.path):
            return f"default {_EDITORS_LOCK}* (a lock of an editor)"
        if path in self.declared:
            return self.declared[path]

        secret = secret_name(path)
        if secret is not None:
            return f"default {secret[1]}"

        if is_folder:  # a Python environment, whatever its name
            for mark, what in _ENVIRONMENT_MARKS.items():
                if os.path.lexists(f"{item.path}/{mark}"):
                    return f"default {what}"
        elif self.output:
            status = item.stat(follow_symlinks=False)
            if (status.st_dev, status.st_ino) in self.output:
                return "the output of this command"
        return None


def _own_output() -> list[tuple[int, int]]:
    """Return device and inode of each file that this process's stdout or stderr is redirected
    to."""
    files = []
    for descriptor in (1, 2):
        with suppress(OSError):
            status = os.fstat(descriptor)
            if stat.S_ISREG(status.st_mode):
                files.append((status.st_dev, status.st_ino))
    return files


def walk(
    root: str,
    declared: Mapping[str, str] | None = None,
    *,
    beside: Mapping[str, str] | None = None,
    alone: bool = False,
) -> Walk:
    """Find every file and link below `root` and in the included folders, sorted by the bytes of
    their paths. Ignored folders are not read.

    `declared` maps paths below `root` to descriptions. The walk leaves out these paths, unless a
    rule such as `!data/` in an ignore file includes them. It also leaves out the file that this
    process's output is redirected to, as in `cloudtrain submit job.yaml > submit.log`.

    `beside` maps names at the root of the bundle to files and folders outside `root`. With `alone`,
    only these are found.

    Raises:
        JobError: `root` is the root of the file system, there are too many files for a bundle, or a
            line of an ignore file is not a pattern.
        Moved: a path was removed or replaced during the walk.
    """
    if not alone and is_root(root):
        message = (
            f"`{escape_path(root)}` is the root of this machine's file system, too much "
            "for a bundle of code"
        )
        raise source_error(message, _NARROWER, "CT053")

    result = Walk(root, declared or {})
    if not alone:
        result.waiting.append(_Folder("", root, ()))

    for name, place in (beside or {}).items():
        if alone or not os.path.lexists(f"{root}/{name}"):
            result.look_at(_beside(name, place), name, ())
            result.included.append(name)
            continue
        message = (
            f"`{escape_path(name)}` comes from outside `source_dir`, which already "
            "has an item of that name"
        )
        hint = "rename one of the two"
        result.problems.append(Problem(("source_dir",), message, hint, code="CT055"))

    while result.waiting:
        folder = result.waiting.pop()
        try:
            result.read_folder(folder)
        except OSError as error:
            path = folder.path.rstrip("/")
            if error.errno in MOVED:
                raise Moved(_below(root, error.filename) or path) from None
            message = f"`{escape_path(path or root)}` cannot be read: {error.strerror}"
            hint = "make it readable for you"
            if folder.path:
                result.refuse(folder.path, message, remedy=hint)
            else:
                result.problems.append(Problem(("source_dir",), message, hint, code="CT050"))

    result.files.sort(key=lambda file: os.fsencode(file.path))
    return result


class _Folder(NamedTuple):
    """A folder that the walk has found and not yet read."""

    path: str
    """The path in the bundle: `a/b/`, or empty for the root."""
    place: str
    rules: tuple[Rules, ...]
    """Those of the ignore files in the folders above, the nearest first."""


def _beside(name: str, place: str) -> Included:
    """Return the item at `place`, a path on disk. Raises Moved with its `name` if it is gone."""
    try:
        return Included(place, os.stat(place))
    except OSError as error:
        raise Moved(name) from error


def _below(root: str, place: object) -> str:
    """Return the path below `root` of a place on disk; empty if it is `root`, unknown, or
    elsewhere."""
    if isinstance(place, str) and place.startswith(f"{root}/"):
        return place.removeprefix(f"{root}/")
    return ""


def source_error(message: str, hint: str, code: str = "CT050") -> JobError:
    """Return the error for a mistake in `source_dir` of the job."""
    return JobError([Problem(("source_dir",), message, hint, code=code)])


def _target_of(link: str, path: str) -> str:
    """Return the target of the link at `link` on disk and at `path` in the bundle. Raises Moved if
    it is no longer a link."""
    try:
        return os.readlink(link)
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise Moved(path) from None
        raise
