"""Comparison of two JSON values, and of the files of two versions of a job's code."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher, unified_diff
from itertools import zip_longest
from typing import Any, Final, Literal

from cloudtrain.documents import JsonObject
from cloudtrain.errors import ValuePath as ValuePath
from cloudtrain.errors import dotted

ABSENT: Final = object()
"""Stands for a missing value. JSON's null counts as a value."""


@dataclass(frozen=True)
class Change:
    """One value that differs between two JSON documents."""

    path: ValuePath
    before: Any
    after: Any

    @property
    def name(self) -> str:
        """The path of the value as text: `hyperparameters.learning_rate`."""
        return dotted(self.path)

    def to_dict(self) -> JsonObject:
        """Return the change as JSON data, without `before` or `after` if that document lacks the
        value."""
        data = {"field": self.name}
        if self.before is not ABSENT:
            data["before"] = self.before
        if self.after is not ABSENT:
            data["after"] = self.after
        return data


@dataclass(frozen=True)
class FileChange:
    """One file that differs between two versions of the code.

    Attributes:
        added, removed: the numbers of added and removed lines; None for a binary file, or if the
            content is unavailable.
        lines: the unified diff, without line ends.
    """

    path: str
    change: Literal["added", "removed", "changed"]
    added: int | None = None
    removed: int | None = None
    lines: tuple[str, ...] = ()

    @property
    def amount(self) -> str:
        """The numbers of added and removed lines, such as `+3 -1`; or the value of `change`, such
        as `added`, if the numbers are unknown or only one version has the file."""
        if self.change == "changed" and self.added is not None:
            return f"+{self.added} -{self.removed}"
        return self.change

    def to_dict(self) -> JsonObject:
        """Return the change as JSON data."""
        data: JsonObject = {"path": self.path, "change": self.change}
        if self.added is not None:
            data["added"] = self.added
            data["removed"] = self.removed
        data["diff"] = list(self.lines)
        return data


def changes_between(before: object, after: object, path: ValuePath = ()) -> Iterator[Change]:
    """Yield the values that differ, in the order of `before`. `path` is the path of `before` and
    `after` in the whole document. Lists are aligned before they are compared, so one inserted entry
    is one change."""
    if before is ABSENT and isinstance(after, Mapping) and after:
        before = {}
    elif after is ABSENT and isinstance(before, Mapping) and before:
        after = {}

    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in dict.fromkeys((*before, *after)):
            old = before.get(key, ABSENT)
            new = after.get(key, ABSENT)
            yield from changes_between(old, new, (*path, key))
    elif isinstance(before, list) and isinstance(after, list):
        yield from _between_lists(before, after, path)
    # `True` differs from `1`, and `1` from `1.0`
    elif type(before) is not type(after) or before != after:
        yield Change(path, before, after)


def _between_lists(
    before: Sequence[object], after: Sequence[object], path: ValuePath
) -> Iterator[Change]:
    """Align equal entries, then compare the rest in pairs. The path of an added entry has its
    number in `after`, and that of any other its number in `before`."""
    old_texts = [json.dumps(item, sort_keys=True) for item in before]
    new_texts = [json.dumps(item, sort_keys=True) for item in after]
    matcher = SequenceMatcher(None, old_texts, new_texts, autojunk=False)
    # Equal entries yield nothing, so the kind of a block, its first value, does not matter.
    for _, old_start, old_end, new_start, new_end in matcher.get_opcodes():
        old_numbers = range(old_start, old_end)
        new_numbers = range(new_start, new_end)
        for old, new in zip_longest(old_numbers, new_numbers):
            old_value = ABSENT if old is None else before[old]
            new_value = ABSENT if new is None else after[new]
            number: Any = new if old is None else old
            yield from changes_between(old_value, new_value, (*path, number))


Content = Callable[[str], bytes | None]
"""Maps the path of a file to its content, or to None if the content is unavailable."""


def file_changes(
    before: Mapping[str, object],
    after: Mapping[str, object],
    old: Content,
    new: Content,
    *,
    names: tuple[str, str],
) -> Iterator[FileChange]:
    """Yield the files that differ between two versions, sorted by path. `before` and `after` map
    the path of each file to a value, such as a hash, which differs where the file does. `old` and
    `new` return the content of the file at a path; `names` are those of the two versions in the
    diff."""
    for path in sorted({*before, *after}):
        if path not in after:
            yield FileChange(path, "removed")
        elif path not in before:
            yield FileChange(path, "added")
        elif before[path] != after[path]:
            yield _compare_file(path, old(path), new(path), names)


def _compare_file(
    path: str, old: bytes | None, new: bytes | None, names: tuple[str, str]
) -> FileChange:
    """Return the change of a file with two contents, without a diff if one of them is None or is
    not text."""
    old_lines = _lines(old)
    new_lines = _lines(new)
    if old_lines is None or new_lines is None:
        return FileChange(path, "changed")

    old_name, new_name = (f"{name}/{path}" for name in names)
    diff = tuple(unified_diff(old_lines, new_lines, old_name, new_name, lineterm=""))
    signs = Counter(line[0] for line in diff[2:])  # the first two lines name the files
    return FileChange(path, "changed", signs["+"], signs["-"], diff)


_LARGEST = 1 << 20
"""Size in bytes up to which files are compared line by line. The diff of a larger file would be too
long to read."""


def _lines(content: bytes | None) -> list[str] | None:
    """Return the lines of a text; None if the content is unavailable, too large or binary."""
    if content is None or len(content) > _LARGEST:
        return None
    if b"\0" in content[:8192]:
        return None
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        return None

    *lines, last = text.split("\n")
    if last:
        lines.append(f"{last}\\ no line end")
    return lines


# Differences between two JSON values, and the overrides that turn one value into the other.

ABSENT_TEXT = "(absent)"
"""Stands for a field that only one of the two values has."""


def paths_that_differ(
    theirs: object, ours: object, path: ValuePath = ()
) -> Iterator[tuple[ValuePath, object, object]]:
    """Yield each path at which two JSON values differ, with both values. Mappings are compared key
    by key, all other values as a whole. The yielded paths begin with `path`."""
    if isinstance(theirs, Mapping) and isinstance(ours, Mapping):
        for key in dict.fromkeys((*theirs, *ours)):
            their_value = theirs.get(key, ABSENT_TEXT)
            our_value = ours.get(key, ABSENT_TEXT)
            yield from paths_that_differ(their_value, our_value, (*path, key))
    elif not _is_same(theirs, ours):
        yield path, theirs, ours


def overrides_between(ours: Mapping[str, object], theirs: Mapping[str, object]) -> JsonObject:
    """Return the overrides with which `job.model.merged` turns `ours` into `theirs`."""
    overrides: JsonObject = {}
    for path, after, _ in paths_that_differ(theirs, ours):
        *above, key = map(str, path)
        inner = overrides
        for part in above:
            inner = inner.setdefault(part, {})
        inner[key] = None if after is ABSENT_TEXT else after
    return overrides


def _is_same(one: object, other: object) -> bool:
    """Return whether two JSON values are equal. `true` differs from 1."""
    if isinstance(one, list) and isinstance(other, list):
        if len(one) != len(other):
            return False
        return all(map(_is_same, one, other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        if one.keys() != other.keys():
            return False
        return all(_is_same(value, other[key]) for key, value in one.items())
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)
