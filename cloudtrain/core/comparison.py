"""What differs between two values of JSON data, and between the files of two pieces of code."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher, unified_diff
from typing import Any, Final, Literal

from cloudtrain.errors import dotted

Path = tuple[str | int, ...]


class _Absent:
    def __repr__(self) -> str:
        return "(not set)"


ABSENT: Final = _Absent()
"""Stands for a value that is not there. JSON's null is a value."""


@dataclass(frozen=True)
class Change:
    """One value that differs."""

    path: Path
    before: Any
    after: Any

    @property
    def name(self) -> str:
        """`hyperparameters.learning_rate`."""
        return dotted(self.path)

    def to_dict(self) -> dict[str, Any]:
        """As JSON data; a value that is not there is left out."""
        values = {"before": self.before, "after": self.after}
        return {"field": self.name, **{key: value for key, value in values.items() if value is not ABSENT}}


@dataclass(frozen=True)
class FileChange:
    """One file that differs.

    Attributes:
        added, removed: lines; None for a file that is no text, or whose content cannot be had.
        lines: the unified diff, without line ends.
    """

    path: str
    change: Literal["added", "removed", "changed"]
    added: int | None = None
    removed: int | None = None
    lines: tuple[str, ...] = ()

    @property
    def amount(self) -> str:
        """`+3 -1`, or in a word what happened to it."""
        if self.change == "changed" and self.added is not None:
            return f"+{self.added} -{self.removed}"
        return self.change

    def to_dict(self) -> dict[str, Any]:
        """As JSON data."""
        counts = {} if self.added is None else {"added": self.added, "removed": self.removed}
        return {"path": self.path, "change": self.change, **counts, "diff": list(self.lines)}


def changes_between(before: Any, after: Any, path: Path = ()) -> Iterator[Change]:
    """What differs, value by value, in the order of `before`; entries of lists are matched with each other."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in dict.fromkeys((*before, *after)):
            yield from changes_between(before.get(key, ABSENT), after.get(key, ABSENT), (*path, key))
    elif isinstance(before, list) and isinstance(after, list):
        yield from _between_lists(before, after, path)
    elif before is ABSENT and isinstance(after, Mapping) and after:
        for key, value in after.items():
            yield from changes_between(ABSENT, value, (*path, key))
    elif after is ABSENT and isinstance(before, Mapping) and before:
        for key, value in before.items():
            yield from changes_between(value, ABSENT, (*path, key))
    elif not _is_same(before, after):
        yield Change(path, before, after)


def _between_lists(before: Sequence[Any], after: Sequence[Any], path: Path) -> Iterator[Change]:
    old_texts, new_texts = ([json.dumps(item, sort_keys=True) for item in items] for items in (before, after))
    for _, start, end, other, last in SequenceMatcher(None, old_texts, new_texts, autojunk=False).get_opcodes():
        for number in range(max(end - start, last - other)):
            old = before[start + number] if start + number < end else ABSENT
            new = after[other + number] if other + number < last else ABSENT
            yield from changes_between(old, new, (*path, (start if old is not ABSENT else other) + number))


def _is_same(before: Any, after: Any) -> bool:
    """`True` and `1` are two values, `1` and `1.0` too: a script would see the difference."""
    return type(before) is type(after) and bool(before == after)


Content = Callable[[str], bytes | None]
"""From the path of a file to what is in it; None where it cannot be had."""


def file_changes(
    before: Mapping[str, Any], after: Mapping[str, Any], old: Content, new: Content, *, names: tuple[str, str]
) -> Iterator[FileChange]:
    """Files that differ, by path. What the mappings hold is equal where the files are; `names` are those of the two
    sides in the lines of the diff."""
    for path in sorted({*before, *after}):
        if path not in after:
            yield FileChange(path, "removed")
        elif path not in before:
            yield FileChange(path, "added")
        elif before[path] != after[path]:
            yield _compare_file(path, old(path), new(path), names)


def _compare_file(path: str, old: bytes | None, new: bytes | None, names: tuple[str, str]) -> FileChange:
    old_lines, new_lines = _lines(old), _lines(new)
    if old_lines is None or new_lines is None:
        return FileChange(path, "changed")
    found = tuple(unified_diff(old_lines, new_lines, f"{names[0]}/{path}", f"{names[1]}/{path}", lineterm=""))
    counts = [sum(line.startswith(sign) for line in found[2:]) for sign in "+-"]
    return FileChange(path, "changed", counts[0], counts[1], found)


_LARGEST = 1 << 20
"""Bytes of a file that is compared line by line: nobody reads the differences of a larger one."""


def _lines(content: bytes | None) -> list[str] | None:
    if content is None or b"\0" in content[:8192] or len(content) > _LARGEST:
        return None
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        return None
    lines = text.split("\n")
    return lines[:-1] if lines[-1] == "" else [*lines[:-1], f"{lines[-1]}\\ no line end"]
