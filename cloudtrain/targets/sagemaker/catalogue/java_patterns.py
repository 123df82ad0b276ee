r"""Match the service's regular expressions, which use Java's syntax, against a whole text.

Differences from Python: `\p{L}`, `\p{N}` and `\p{Z}` (any letter, number, separator), `\p{Alnum}` (ASCII), code points
above U+FFFF written as two escapes, `\d` and `\w` (ASCII only), and `.`, which stops at every line break.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache

_CLASSES = {"L": ("a-zA-Z", "\ue000"), "N": ("0-9", "\ue001"), "Z": (" ", "\ue002")}
"""Maps each Unicode category to its ASCII members, and to the character that stands for all its other members."""

_OTHER = "\ue003"
"""The character that stands for every non-ASCII character outside these categories."""

_TOKEN = (
    r"\\u(?P<high>[dD][89abAB][0-9a-fA-F]{2})\\u(?P<low>[dD][c-fC-F][0-9a-fA-F]{2})"
    r"|\\p\{(?P<name>\w+)\}|\\.|(?P<open>\[\^?\]?)|(?P<close>\])|(?P<dot>\.)"
)


def matches(pattern: str, text: str) -> bool:
    """Return whether the whole text matches one of the service's patterns."""
    compiled, by_category = _compile(pattern)
    return compiled.fullmatch(_categorize(text) if by_category else text) is not None


@cache
def _compile(pattern: str) -> tuple[re.Pattern[str], bool]:
    """Return the pattern for Python, and whether texts must be passed through `_categorize` before matching."""
    inside = False

    def translate(match: re.Match[str]) -> str:
        nonlocal inside
        if match["high"]:
            pair = chr(int(match["high"], 16)) + chr(int(match["low"], 16))
            return re.escape(pair.encode("utf-16-be", "surrogatepass").decode("utf-16-be"))
        if match["name"]:
            members = "a-zA-Z0-9" if match["name"] == "Alnum" else "".join(_CLASSES[match["name"]])
            return members if inside else f"[{members}]"
        if match["open"] and not inside:
            inside = True
        elif match["close"]:
            inside = False
        elif match["dot"] and not inside:
            return r"[^\n\r\x85\u2028\u2029]"
        return match[0]

    found = re.sub(_TOKEN, translate, pattern)
    return re.compile(found, re.ASCII), any(f"\\p{{{name}}}" in pattern for name in _CLASSES)


def _categorize(text: str) -> str:
    if text.isascii():
        return text
    return "".join(char if char.isascii() else _stand_in(char) for char in text)


def _stand_in(char: str) -> str:
    entry = _CLASSES.get(unicodedata.category(char)[0])
    return entry[1] if entry else _OTHER
