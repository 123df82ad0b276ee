"""The files of a code folder that azure-ai-ml 1.35.2 sends."""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from cloudtrain.code.data import files_below
from cloudtrain.code.ignore import NoPattern, Pattern, PatternIndex, pattern_of
from cloudtrain.documents.document import read_bytes

_IGNORE_FILES = (".amlignore", ".gitignore")
"""The first of these in the folder of the code counts. Those in folders below do not."""


def sent_files(folder: Path) -> Iterator[str]:
    """Yield the paths of the files that the SDK sends: all that its ignore file does not match,
    such as those in `.git`. Links are followed, and a file behind a linked folder is matched by its
    own place."""
    patterns = _patterns_of(folder)
    index = PatternIndex(patterns)
    root = os.path.realpath(folder)

    @cache
    def place_of(parent: Path) -> str:
        return os.path.relpath(os.path.realpath(parent), root)

    @cache
    def last_match(path: str, *, is_folder: bool) -> int:
        """Return the number of the last pattern that matches the path or a folder above it; -1 if
        none does. In git, nothing below an ignored folder can be included again."""
        parent = os.path.dirname(path)
        last = last_match(parent, is_folder=True) if parent else -1
        name = os.fsencode(path)
        for number in index.candidates(name):
            if number > last and patterns[number].matches(name, is_folder):
                last = number
        return last

    for file in files_below(folder):
        path = os.path.normpath(os.path.join(place_of(file.place.parent), file.place.name))
        number = last_match(path, is_folder=False)
        if number < 0 or not patterns[number].ignores:
            yield file.path


def _patterns_of(folder: Path) -> list[Pattern]:
    name = next((name for name in _IGNORE_FILES if (folder / name).exists()), None)
    content = read_bytes(folder / name) if name else b""
    patterns = []
    for line in content.removeprefix(codecs.BOM_UTF8).splitlines():
        try:
            pattern = pattern_of(line.rstrip())
        except NoPattern:
            continue
        if pattern is not None:
            patterns.append(pattern)
    return patterns
