"""What stays out of the bundle: the defaults, and the rules of every `.cloudtrainignore`.

The rules are gitignore's. A path is judged by the last rule that matches it in the nearest ignore file that has one.
After all ignore files come the defaults, so a `!` rule brings a default back, if it names what it brings back: the
`!*/` in a list of what to keep does not mean virtual environments. Nothing can be brought back from a folder that is
itself left out, because such a folder is never read.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from cloudtrain.bundle.secret_names import secret_name
from cloudtrain.errors import JobError, Problem

IGNORE_FILE = ".cloudtrainignore"

_DEFAULT_NAMES = frozenset(
    f"""
    {IGNORE_FILE} .git .hg .svn .jj .idea .vscode .DS_Store Thumbs.db
    __pycache__ .venv venv .tox .nox .eggs node_modules
    .mypy_cache .pytest_cache .ruff_cache .hypothesis .ipynb_checkpoints
    """.split()
)
_DEFAULT_SUFFIXES = (".pyc", ".pyo", ".egg-info")
_ENVIRONMENT_MARKS = {"pyvenv.cfg": "a virtual environment", "conda-meta": "a conda environment"}


class Verdict(NamedTuple):
    """What an ignore file says of a path. `by_name` is False for `!*` and its like, which name nothing."""

    ignores: bool
    by_name: bool
    rule: str


class _Rule(NamedTuple):
    pattern: re.Pattern[str]
    ignores: bool
    folders_only: bool
    text: str
    line: int


class Rules:
    """The rules of one ignore file. `folder` is where it stands, relative to the root: `` or `a/b/`."""

    def __init__(self, folder: str, content: bytes) -> None:
        self._folder = folder
        lines = os.fsdecode(content).removeprefix("\ufeff").split("\n")
        rules = [_rule(text, line, folder) for line, text in enumerate(lines, 1)]
        self._rules = tuple(rule for rule in reversed(rules) if rule is not None)

    def judge(self, path: str, is_folder: bool) -> Verdict | None:
        """Whether the path is ignored, and by which rule; None where no rule matches.

        A pattern's regular expression also matches what lies below a match, and marks that with its one group. Such
        a match does not count: a path below an ignored folder is never judged, and a folder that was
        brought back must not bring back all that is in it.
        """
        relative = path[len(self._folder) :].replace("\n", "\0")
        for rule in self._rules:
            match = rule.pattern.match(relative)
            if match and match.lastgroup is None and (is_folder or not rule.folders_only):
                by_name = any(character.isalnum() for character in rule.text)
                return Verdict(rule.ignores, by_name, f"{self._folder}{IGNORE_FILE}:{rule.line} {rule.text}")
        return None


def _rule(text: str, line: int, folder: str) -> _Rule | None:
    """One line as a rule; None for a blank line, a comment, and a line that git would not understand either.

    The pattern is translated without a `/` at its end, so that it matches the folder itself.
    """
    from pathspec import GitIgnoreSpec

    text = text.removesuffix("\r")
    bare = text if text.endswith("\\ ") else text.rstrip(" \t")
    folders_only = bare.endswith("/") and bare not in ("/", "!/")
    try:
        patterns = GitIgnoreSpec.from_lines([bare[:-1] if folders_only else bare]).patterns
    except ValueError:
        place = f"{folder}{IGNORE_FILE}"
        problem = Problem(
            ("source_dir",),
            f"line {line} of `{place}` is not a pattern: `{text}`",
            "write it as in a .gitignore file, or begin the line with `#`",
        )
        raise JobError([problem]) from None
    for pattern in patterns:
        if pattern.include is not None and pattern.regex is not None:
            return _Rule(pattern.regex, pattern.include, folders_only, bare, line)
    return None


def default_rule(name: str) -> str | None:
    """The default that leaves out a file or folder of that name."""
    if name in _DEFAULT_NAMES:
        return f"default {name}"
    if name.endswith(_DEFAULT_SUFFIXES):
        return f"default *{name[name.rindex('.') :]}"
    secret = secret_name(name)
    return None if secret is None else f"default {secret[1]}"


def environment_rule(folder: str) -> str | None:
    """The default that leaves out a Python environment, whatever its name; `folder` is a path on disk."""
    for mark, what in _ENVIRONMENT_MARKS.items():
        if os.path.lexists(f"{folder}/{mark}"):
            return f"default {what}"
    return None


def ignore_line(path: str) -> str:
    """The line of an ignore file at the root that matches this path and nothing else."""
    return "/" + re.sub(r"([\\*?\[]|\s$)", r"\\\1", path)
