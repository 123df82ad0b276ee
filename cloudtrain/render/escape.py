r"""Escaping of external text, so that it is safe to print on a terminal.

Log lines, names, reasons, file names, variables and a service's messages may contain characters that control a terminal
or are invisible: control characters, marks that reverse the text direction, characters without width. Such characters
can forge output, for example a line that was never written, or a command that differs from the one you read. They are
escaped as in Python and JSON: `\x1b`, `\u202e`. Everything that cloudtrain prints passes through this module.
"""

from __future__ import annotations

import re
import shlex

_CHARACTERS = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters
    "\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\uffa0"  # characters without a glyph
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff0-\ufffb"  # width, line ends, direction, annotations
    "\ud800-\udfff"  # undecodable bytes
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"  # more format characters; tags (hidden text)
)

UNSEEN = re.compile(f"[{_CHARACTERS}]")
"""A character that controls a terminal or is invisible, except tab and line feed, which are layout."""

_UNSEEN_OR_LAYOUT = re.compile(f"[{_CHARACTERS}\t\n]")

_REDRAWS = re.compile(r"\x1b\[(?:[012]?K|\d*A|\?25[hl])")
"""Escapes that progress bars write besides carriage returns: erase the line, move up, hide and show the cursor."""

_COLOUR = re.compile(
    r"(\x1b\[(?:(?:0?[0-479]|2[1-9]|[34][0-79]|9[0-7]|10[0-7]|[34]8[;:]5[;:]\d{1,3}"
    r"|[34]8[;:]2(?:[;:]\d{1,3}){3})(?:;(?=\d)|(?=m)))*m)"
)
"""Colours and weights (ECMA-48, SGR), except hidden (8) and blinking (5, 6) text."""

_RESET = "\x1b[0m"


def visible(text: str) -> str:
    """Escape every invisible character in a text except line breaks. Tabs become spaces."""
    if text.isascii() and text.isprintable():
        return text
    return UNSEEN.sub(_escape_match, text.expandtabs(4))


def on_one_line(text: str) -> str:
    """Escape every invisible character in a text, including line breaks and tabs, so that it fits into one line."""
    if text.isascii() and text.isprintable():
        return text
    return _UNSEEN_OR_LAYOUT.sub(_escape_match, text)


def visible_json(text: str) -> str:
    """Escape invisible characters in a JSON document. The result parses to the same data."""
    return UNSEEN.sub(_in_json, text)


def visible_yaml(text: str) -> str:
    """Escape invisible characters in a YAML document. Every string with such characters must already be in double
    quotes.
    """
    return UNSEEN.sub(_in_shell, text)


def visible_output(text: str, *, color: bool) -> str:
    """Escape a line of a program's output for display. Tabs are kept, and with `color`, colours as well. If a progress
    bar was redrawn on the line, only its last state is kept.
    """
    if text.isascii() and text.isprintable():
        return text
    text = _REDRAWS.sub("", text.rstrip("\r").rpartition("\r")[2])
    parts = _COLOUR.split(text)  # text and colours alternate
    written = [part if index % 2 else UNSEEN.sub(_escape_match, part) for index, part in enumerate(parts)]
    if not color or len(parts) == 1:
        return "".join(written[::2])
    return "".join(written) + _RESET


def shell_word(text: str) -> str:
    """Quote a word for a shell. Invisible characters are escaped between `$'` and `'` (bash, zsh)."""
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
