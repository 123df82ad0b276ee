"""Conversion of JSON to a document. The standard library reads the values; a scan of the text finds the positions."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from cloudtrain.documents.document import Document, Lines, Notes, Path, Unreadable, too_many_digits
from cloudtrain.documents.limits import MAX_DEPTH, MAX_DIGITS

_SPACE = re.compile(r"[ \t\r\n]*")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_DIGITS = re.compile(r"[0-9]{4301,}")
"""A whole number with more digits than Python reads."""
_PLAIN = re.compile(r"[^,\]}\s]+")
_HINTS = {
    "Expecting property name enclosed in double quotes": "write keys in double quotes, and no comma after the last one",
    "Illegal trailing comma before end of object": "remove the comma after the last entry",
    "Illegal trailing comma before end of array": "remove the comma after the last entry",
    "Expecting value": "write a value: text in double quotes, a number, true, false, null, a list or a mapping",
    "Expecting ',' delimiter": "put a comma between two entries",
    "Extra data": "a file holds one job",
    "Invalid control character at": "write a line break inside a text as \\n",
}


def read(text: str) -> Document:
    """Convert JSON text to a document.

    Raises:
        Unreadable: the text is not JSON. NaN and Infinity are not JSON.
    """
    lines = Lines(text)
    try:
        data = json.loads(text, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        reason = error.msg[0].lower() + error.msg[1:]
        hint = _HINTS.get(error.msg) or "correct the text at this position, or write the job as YAML"
        raise Unreadable(f"not valid JSON: {reason}", hint, lines.place(error.pos)) from None
    except _Constant as error:
        name = str(error)
        match = re.search(rf'(?:"(?:[^"\\]|\\.)*"|[^"])*?({name})', text)
        place = lines.place(match.start(1)) if match else None
        raise Unreadable(f"`{name}` is not JSON", f'write `"{name}"`, as text', place) from None
    except ValueError:  # a whole number with more digits than Python reads
        digits = _DIGITS.search(text)
        raise too_many_digits(lines.place(digits.start()) if digits else None) from None
    scanner = _Scanner(text, lines)
    scanner.value((), 0)
    return scanner.notes.document(data)


class _Constant(Exception):
    """The text contains NaN, Infinity or -Infinity."""


def _refuse(name: str) -> NoReturn:
    raise _Constant(name)


class _Scanner:
    """Finds the positions of the values in JSON that is known to be valid."""

    def __init__(self, text: str, lines: Lines) -> None:
        self.text, self.lines, self.notes = text, lines, Notes()

    def value(self, path: Path, start: int) -> int:
        """Record the position of the value at `path`. The value begins at the offset `start`, or after the white space
        there. Return the offset after the value."""
        start = self._skip(start)
        self.notes.values[path] = self.lines.place(start)
        opening = self.text[start]
        if opening in "{[":
            if len(path) >= MAX_DEPTH:
                raise RecursionError
            return self._entries(path, start + 1, "}" if opening == "{" else "]")
        match = (_STRING if opening == '"' else _PLAIN).match(self.text, start)
        assert match is not None
        if opening != '"' and len(match[0]) > MAX_DIGITS:
            raise too_many_digits(self.lines.place(start))
        self.notes.texts[path] = json.loads(match[0]) if opening == '"' else match[0]
        return match.end()

    def _entries(self, path: Path, start: int, closing: str) -> int:
        index, offset = 0, self._skip(start)
        while self.text[offset] != closing:
            part: Any = index
            if closing == "}":
                part, offset = self._key(path, offset)
            offset = self._skip(self.value((*path, part), offset))
            index += 1
            if self.text[offset] == ",":
                offset = self._skip(offset + 1)
        return offset + 1

    def _key(self, path: Path, offset: int) -> tuple[str, int]:
        match = _STRING.match(self.text, offset)
        assert match is not None
        name, place = json.loads(match[0]), self.lines.place(offset)
        if (*path, name) in self.notes.keys:
            self.notes.duplicate((*path, name), place)
        self.notes.keys.setdefault((*path, name), place)
        return name, self._skip(match.end()) + 1

    def _skip(self, offset: int) -> int:
        match = _SPACE.match(self.text, offset)
        assert match is not None
        return match.end()
