"""The files of a code folder that azure-ai-ml 1.35.2 sends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from cloudtrain.code.data import files_below
from cloudtrain.code.ignore import Rules
from cloudtrain.documents.document import read_bytes
from cloudtrain.targets.adoption import Original

_IGNORE_FILES = (".amlignore", ".gitignore")
"""The first of these in the folder of the code counts. Those in folders below do not."""


def sent_files(_: Original, folder: Path) -> Iterator[str]:
    """Yield the paths of the files that the SDK sends: all that its ignore file does not match,
    such as those in `.git`. Links are followed, and a file behind a linked folder is matched by its
    own place."""
    name = next((name for name in _IGNORE_FILES if (folder / name).exists()), "")
    lines = read_bytes(folder / name).splitlines() if name else []
    rules = Rules("", b"\n".join(map(bytes.rstrip, lines)), name)
    root = os.path.realpath(folder)

    @cache
    def place_of(parent: Path) -> str:
        return os.path.relpath(os.path.realpath(parent), root)

    @cache
    def last_match(path: str, *, is_folder: bool) -> tuple[int, bool]:
        """Return the line of the last rule that matches the path or a folder above it, and whether
        it ignores. In git, nothing below an ignored folder can be included again."""
        parent = os.path.dirname(path)
        above = last_match(parent, is_folder=True) if parent else (0, False)
        rule = rules.judge(path, is_folder)
        if rule is None:
            return above
        return max(above, (rule.line, rule.pattern.ignores))

    for file in files_below(folder):
        path = os.path.normpath(os.path.join(place_of(file.place.parent), file.place.name))
        if not last_match(path, is_folder=False)[1]:
            yield file.path
