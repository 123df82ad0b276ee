r"""Text from outside, as a terminal may show it.

Log lines, names, reasons, file names, variables and a service's messages may hold characters that a terminal obeys or
that nobody sees: control characters, marks that turn the order of the text around, characters without width. With
them, output can be forged: a line that was never written, a command other than the one that is read. They are written
out, as Python and JSON write them: `\x1b`, `\u202e`. Everything that cloudtrain prints goes through here.
"""

from __future__ import annotations

import re
import shlex

_CHARACTERS = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters
    "\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\uffa0"  # characters without a glyph
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff0-\ufffb"  # width, line ends, direction, annotations
    "\ud800-\udfff"  # bytes that were no text
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"  # more formats; tags, which carry hidden text
)

UNSEEN = re.compile(f"[{_CHARACTERS}]")
"""A character that a terminal obeys or does not show; tab and line feed are layout."""

_UNSEEN_OR_LAYOUT = re.compile(f"[{_CHARACTERS}\t\n]")

_REDRAWS = re.compile(r"\x1b\[(?:[012]?K|\d*A|\?25[hl])")
"""What progress bars write beside carriage returns: erase the line, go up, hide and show the cursor."""

_COLOUR = re.compile(
    r"(\x1b\[(?:(?:0?[0-479]|2[1-9]|[34][0-79]|9[0-7]|10[0-7]|[34]8[;:]5[;:]\d{1,3}"
    r"|[34]8[;:]2(?:[;:]\d{1,3}){3})(?:;(?=\d)|(?=m)))*m)"
)
"""Colours and weights (ECMA-48, SGR). Hidden (8) and blinking (5, 6) text is none."""

_RESET = "\x1b[0m"


def visible(text: str) -> str:
    """The text with everything written out that would not be seen. Lines stay lines, and tabs become blanks."""
    if text.isascii() and text.isprintable():
        return text
    return UNSEEN.sub(_escape_match, text.expandtabs(4))


def on_one_line(text: str) -> str:
    """The same for a text that is a part of a line: a line feed or a tab in it is written out too."""
    if text.isascii() and text.isprintable():
        return text
    return _UNSEEN_OR_LAYOUT.sub(_escape_match, text)


def visible_json(text: str) -> str:
    """A JSON document with the same value: what would not be seen is written as JSON writes it."""
    return UNSEEN.sub(_in_json, text)


def visible_yaml(text: str) -> str:
    """The same for a YAML document whose texts with such characters are in double quotes."""
    return UNSEEN.sub(_in_shell, text)


def visible_output(text: str, *, color: bool) -> str:
    """A line of a program's output. Of a progress bar the last state stays; colours stay or go; tabs stay."""
    if text.isascii() and text.isprintable():
        return text
    text = _REDRAWS.sub("", text.rstrip("\r").rpartition("\r")[2])
    parts = _COLOUR.split(text)  # text and colours in turn
    written = [part if index % 2 else UNSEEN.sub(_escape_match, part) for index, part in enumerate(parts)]
    if not color or len(parts) == 1:
        return "".join(written[::2])
    return "".join(written) + _RESET


def shell_word(text: str) -> str:
    """A word as a shell reads it back. What would not be seen is written out between `$'` and `'` (bash, zsh)."""
    if on_one_line(text) == text:
        return shlex.quote(text)
    return "$'" + _UNSEEN_OR_LAYOUT.sub(_in_shell, text.replace("\\", "\\\\").replace("'", "\\'")) + "'"


def _escape_match(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()


def _in_json(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[index : index + 2].hex()}" for index in range(0, len(units), 2))


def _in_shell(match: re.Match[str]) -> str:
    code = ord(match[0])
    if 0xDC80 <= code <= 0xDCFF or code < 0x80:  # a byte
        return f"\\x{code & 0xFF:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
