"""Conversion of TOML and JSON to a document. The standard library reads the values, a scan finds
the positions."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Callable, Mapping
from typing import NoReturn

from cloudtrain.documents.document import (
    MAX_DEPTH,
    MAX_DIGITS,
    Content,
    Notes,
    Place,
    Unreadable,
    ValuePath,
    load_toml,
    parser_hint,
    too_deep,
    too_many_digits,
)

# TOML.

_AT = r" \(at (?:line (\d+), column (\d+)|end of document)\)$"
_SPACE = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_TEXT = re.compile(
    r'"""(?:[^\\]|\\.)*?"""(?:""|")?(?!")'
    r"|'''.*?'''(?:''|')?(?!')"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'[^'\n]*'",
    re.DOTALL,
)
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_PLAIN = re.compile(r"[^,\]}#\n]+")
_DIGITS = r"[0-9](?:_?[0-9]){4300,}"
"""A whole number with more digits than Python reads."""
_DEEP_KEY = re.compile(
    r"^[ \t]*(?:\[\[?[ \t]*)?"
    rf"""((?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){{{MAX_DEPTH}}})""",
    re.MULTILINE,
)
"""A key with more parts than a job has levels. tomllib needs time that grows with the square of
their number. A single star matches the white space, because two adjacent stars would try every way
to split a long indent."""


def read_toml(text: str) -> Content:
    """Convert TOML text to a document.

    Raises:
        Unreadable: the text is not TOML.
    """
    text = text.replace("\r\n", "\n")
    lines = _Lines(text)
    deep_key = _DEEP_KEY.search(text)
    if deep_key is not None:
        raise too_deep(lines.place(deep_key.start(1)))

    try:
        data = load_toml(text)
    except ValueError as error:  # includes TOMLDecodeError
        raise _unreadable(str(error), text, lines) from None

    scanner = _TomlScanner(text, lines)
    scanner.scan()
    return scanner.notes.document(data)


def toml_text(value: object) -> str:
    """Return a value as TOML on one line."""
    if isinstance(value, Mapping):
        entries = []
        for name, inner in value.items():
            entries.append(f"{toml_key(name)} = {toml_text(inner)}")
        return "{" + ", ".join(entries) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml_text, value)) + "]"
    return scalar_text(value)


def toml_key(name: str) -> str:
    """Return a key as TOML writes it, in quotes if it needs them."""
    return name if _BARE.fullmatch(name) else scalar_text(name)


def scalar_text(value: object) -> str:
    """Return a single value as TOML and YAML write it, with all characters that cannot be printed
    escaped. Floats get a decimal point, because YAML 1.1 reads `1e-05` as text."""
    text = json.dumps(value, ensure_ascii=False)
    if isinstance(value, float):
        return re.sub(r"^(-?\d+)e", r"\1.0e", text)
    return escape_unprintable(text)


def escape_unprintable(text: str) -> str:
    """Return a quoted text in which `\\U` escapes replace the characters that cannot be printed."""
    escaped = ""
    for letter in text:
        escaped += letter if letter.isprintable() else f"\\U{ord(letter):08x}"
    return escaped


def _unreadable(message: str, text: str, lines: _Lines) -> Unreadable:
    """Return the error for a message of tomllib, which ends with the position."""
    reason = re.sub(_AT, "", message)
    if "digits" in reason:  # a message of Python's, without a position
        return _too_long_number(text, lines)

    match = re.search(_AT, message)
    place = None
    if match is not None and match[1]:
        place = Place(int(match[1]), int(match[2]))
    elif match is not None:  # at the end of the document
        place = lines.place(len(text.rstrip()))

    # tomli 2.0, on Python 3.10, has other quotes and writes "Can not"
    words = reason.replace('"', "'").replace("Can not", "Cannot")
    default = "correct the text at this position; https://toml.io describes the format"
    hint = parser_hint("toml", words, default)
    return Unreadable(f"not valid TOML: {_lower_first(reason)}", hint, place)


def _too_long_number(text: str, lines: _Lines) -> Unreadable:
    """Return the error for a number with more digits than Python reads."""
    digits = re.search(_DIGITS, text)
    return too_many_digits(lines.place(digits.start()) if digits else None)


def _lower_first(text: str) -> str:
    return text[0].lower() + text[1:]


class _Lines:
    """Converts offsets in a text to positions."""

    def __init__(self, text: str) -> None:
        self._starts = [0]
        for index, letter in enumerate(text):
            if letter == "\n":
                self._starts.append(index + 1)

    def place(self, offset: int) -> Place:
        line = bisect_right(self._starts, offset)
        start = self._starts[line - 1]
        return Place(line, offset - start + 1)


class _Scanner:
    """Finds the positions of the keys and values in text that is known to be valid. Methods such as
    `_entry` take the offset at which the entry begins, and return the offset after it. JSON is
    scanned as TOML is, except that another function reads its strings."""

    def __init__(self, text: str, lines: _Lines, read_string: Callable[[str], str]) -> None:
        self.text = text
        self.lines = lines
        self.notes = Notes()
        self._read_string = read_string

    def value(self, path: ValuePath, offset: int) -> int:
        """Record the position of the value at `path`, which begins at the offset or after white
        space there."""
        if len(path) > MAX_DEPTH:
            raise RecursionError
        start = self._skip(offset)
        self.notes.values[path] = self.lines.place(start)
        opening = self.text[start]
        if opening == "[":
            return self._items(start + 1, "]", lambda at, index: self.value((*path, index), at))
        if opening == "{":
            return self._items(start + 1, "}", lambda at, _: self._entry(path, at))

        match = _TEXT.match(self.text, start)
        if match is not None:
            self.notes.texts[path] = self._read_string(match[0])
            return match.end()
        match = _PLAIN.match(self.text, start)
        assert match is not None
        text = match[0].rstrip()
        if len(text) > MAX_DIGITS:
            raise too_many_digits(self.lines.place(start))
        self.notes.texts[path] = text
        return match.end()

    def _items(self, offset: int, closing: str, item: Callable[[int, int], int]) -> int:
        """Scan the items of a list or mapping with `item`, which takes the offset and the index of
        an item."""
        index = 0
        offset = self._skip(offset)
        while self.text[offset] != closing:
            offset = self._skip(item(offset, index))
            index += 1
            if self.text[offset] == ",":
                offset = self._skip(offset + 1)
        return offset + 1

    def _entry(self, above: ValuePath, offset: int) -> int:
        names, end = self._key(offset)
        path = above
        for name, place in names:
            path = (*path, name)
            self._note_key(path, place)
        return self.value(path, end + 1)

    def _note_key(self, path: ValuePath, place: Place) -> None:
        """Record a key, and the same position for the value until a value is found."""
        self.notes.keys.setdefault(path, place)
        self.notes.values.setdefault(path, place)

    def _key(self, offset: int) -> tuple[list[tuple[str, Place]], int]:
        """Read a key such as `a . "b.c"`. Return its names with positions, and the offset of the
        sign after it."""
        names = []
        while True:
            offset = self._skip(offset)
            match = _TEXT.match(self.text, offset) or _BARE.match(self.text, offset)
            assert match is not None
            name = match[0]
            if name[0] in "\"'":
                name = self._read_string(name)
            names.append((name, self.lines.place(offset)))
            offset = self._skip(match.end())
            if self.text[offset] != ".":
                return names, offset
            offset += 1

    def _skip(self, offset: int) -> int:
        match = _SPACE.match(self.text, offset)
        assert match is not None
        return match.end()


class _TomlScanner(_Scanner):
    def __init__(self, text: str, lines: _Lines) -> None:
        super().__init__(text, lines, _string)
        # the number of tables in each array so far
        self._counts: dict[ValuePath, int] = {}

    def scan(self) -> None:
        offset = self._skip(0)
        is_empty = not self.text.strip()
        self.notes.values[()] = self.lines.place(0 if is_empty else offset)
        table: ValuePath = ()
        while offset < len(self.text):
            if self.text[offset] == "[":
                table, offset = self._header(offset)
            else:
                offset = self._entry(table, offset)
            offset = self._skip(offset)

    def _header(self, offset: int) -> tuple[ValuePath, int]:
        """Read the header `[a.b]` or `[[a.b]]`. Return the path of the entries below it and the
        offset after it."""
        is_array = self.text.startswith("[[", offset)
        brackets = 2 if is_array else 1
        names, end = self._key(offset + brackets)
        path: ValuePath = ()
        for index, (name, place) in enumerate(names):
            path = (*path, name)
            self._note_key(path, place)
            if is_array and index == len(names) - 1:
                self._counts[path] = self._counts.get(path, 0) + 1
            if path in self._counts:  # the last table of an array
                path = (*path, self._counts[path] - 1)
                self.notes.values.setdefault(path, place)
        return path, end + brackets


def _string(literal: str) -> str:
    """Return the text that a string in TOML stands for."""
    return str(load_toml(f"x = {literal}")["x"])


# JSON.


def read_json(text: str) -> Content:
    """Convert JSON text to a document.

    Raises:
        Unreadable: the text is not JSON. NaN and Infinity are not JSON.
    """
    lines = _Lines(text)

    def refuse(name: str) -> NoReturn:
        # the first one outside of strings
        match = re.search(rf'(?:"(?:[^"\\]|\\.)*"|[^"])*?({name})', text)
        place = lines.place(match.start(1)) if match else None
        raise Unreadable(f"`{name}` is not JSON", f'write `"{name}"`, as text', place)

    try:
        data = json.loads(text, parse_constant=refuse)
    except json.JSONDecodeError as error:
        message = f"not valid JSON: {_lower_first(error.msg)}"
        default = "correct the text at this position, or write the job as YAML"
        hint = parser_hint("json", error.msg, default)
        raise Unreadable(message, hint, lines.place(error.pos)) from None
    except ValueError:  # a whole number with more digits than Python reads
        raise _too_long_number(text, lines) from None

    scanner = _JsonScanner(text, lines, json.loads)
    scanner.value((), 0)
    return scanner.notes.document(data)


class _JsonScanner(_Scanner):
    def _note_key(self, path: ValuePath, place: Place) -> None:
        if path in self.notes.keys:
            self.notes.duplicate(path, place)
        super()._note_key(path, place)
