"""The patterns of ignore files, with git's rules (`wildmatch.c` and `dir.c`). Matching takes time linear in the path's
length.

A pattern is converted to one regular expression, which backtracks only for the last star. Every earlier star takes the
shortest text that fits, because the next star can match the rest. So a pattern with many stars takes no longer than a
pattern with few.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import IntEnum
from functools import cached_property
from typing import NamedTuple

_CLASSES = {
    b"alnum": rb"0-9A-Za-z", b"alpha": rb"A-Za-z", b"blank": rb" \t", b"cntrl": rb"\x00-\x1f\x7f", b"digit": rb"0-9",
    b"graph": rb"!-~", b"lower": rb"a-z", b"print": rb" -~", b"punct": rb"!-/:-@\[-`{-~", b"space": rb"\s",
    b"upper": rb"A-Z", b"xdigit": rb"0-9A-Fa-f",
}  # fmt: skip

_PLAIN = re.compile(rb"[^*?[\\]*")
"""git compares the part before the first wildcard literally. So in `a**/b` the stars are at the start of the remaining
pattern and match folders, which stars elsewhere in the middle of a name do not."""

_STAR, _SLASH = b"*", b"/"
_ANY = rb"[^/]"


class NoPattern(ValueError):
    """The line is not a valid pattern: in git it would match nothing."""


class Where(IntEnum):
    """The place of a text in each path that a pattern matches."""

    WHOLE = 0
    START = 1
    END = 2
    INSIDE = 3


class Key(NamedTuple):
    """A text that each path has which a pattern matches, or each name if the pattern is matched with names."""

    by_name: bool
    where: Where
    text: bytes


class Pattern:
    """One line of an ignore file.

    Attributes:
        by_name: whether the pattern is matched with the name, because its only slash, if any, is at the end.
        ignores: False for a line that begins with `!`.
        folders_only: whether the line ends with a slash.
    """

    def __init__(
        self, plain: bytes, tokens: Sequence[bytes], *, by_name: bool, ignores: bool, folders_only: bool
    ) -> None:
        self._plain = plain
        self._tokens = tokens
        self.by_name = by_name
        self.ignores = ignores
        self.folders_only = folders_only

    @cached_property
    def _regex(self) -> re.Pattern[bytes]:
        """Matches the whole path relative to the folder of the ignore file, or only the name."""
        expression = re.escape(self._plain) + _Expression().path(self._tokens, by_name=self.by_name)
        return re.compile(expression, re.DOTALL)

    def matches(self, path: bytes, is_folder: bool) -> bool:
        """Return whether the pattern matches the path."""
        if self.folders_only and not is_folder:
            return False
        return self._regex.fullmatch(path[path.rfind(b"/") + 1 :] if self.by_name else path) is not None

    def keys(self) -> Iterator[Key]:
        """Yield texts without which no path matches. A pattern of wildcards has none."""
        if not self._tokens:
            yield Key(self.by_name, Where.WHOLE, self._plain)
            return
        if self._plain:
            yield Key(self.by_name, Where.START, self._plain)
        *inside, end = _texts(self._tokens)
        if end:
            yield Key(self.by_name, Where.END, end)
        for text in filter(None, inside):
            yield Key(self.by_name, Where.INSIDE, text)


def pattern_of(line: bytes) -> Pattern | None:
    """Parse a line, given without its line end; return None for an empty line or a comment.

    Raises:
        NoPattern: no path can match the line.
    """
    line = _without_spaces(line)
    if not line or line.startswith(b"#"):
        return None
    ignores = not line.startswith(b"!")
    text = line if ignores else line[1:]
    folders_only = text.endswith(b"/")
    text = text[:-1] if folders_only else text
    if not text:
        if line == b"/":
            return None
        raise NoPattern
    by_name = b"/" not in text
    text = text[1:] if text.startswith(b"/") else text
    plain = _PLAIN.match(text)[0]  # type: ignore[index] # it matches everywhere
    tokens = _tokens(text[len(plain) :])
    return Pattern(plain, tokens, by_name=by_name, ignores=ignores, folders_only=folders_only)


def _without_spaces(line: bytes) -> bytes:
    """Remove trailing spaces, except a space after a backslash."""
    bare = line.rstrip(b" ")
    escapes = len(bare) - len(bare.rstrip(b"\\"))
    return line[: len(bare) + 1] if escapes % 2 and len(line) > len(bare) else bare


def _tokens(text: bytes) -> list[bytes]:
    """Split a pattern into stars, slashes, and regular expressions for one byte each."""
    found: list[bytes] = []
    at = 0
    while at < len(text):
        letter = text[at : at + 1]
        at += 1
        if letter in (_STAR, _SLASH):
            found.append(letter)
        elif letter == b"?":
            found.append(_ANY)
        elif letter == b"[":
            expression, at = _set(text, at)
            found.append(expression)
        else:
            if letter == b"\\":
                letter = text[at : at + 1]
                at += 1
                if not letter:
                    raise NoPattern
            if letter == b"/" and _ends_in_folders(found):
                found += (_SLASH, _STAR)  # `**\/` matches one folder or more, and `**/` also none
            found.append(_SLASH if letter == b"/" else re.escape(letter))
    return found


def _ends_in_folders(tokens: Sequence[bytes]) -> bool:
    """Return whether the text after the last slash of a pattern consists of at least two stars and nothing else."""
    last = _split(tokens, _SLASH)[-1]
    return len(last) > 1 and set(last) == {_STAR}


def _set(text: bytes, at: int) -> tuple[bytes, int]:
    """Return the regular expression for a set in brackets, such as `[a-z]`, and the offset after the set. `at` is the
    offset after the opening bracket."""
    negated = text[at : at + 1] in (b"!", b"^")
    at += negated
    members: list[bytes] = []
    previous: bytes | None = None
    first = True
    while first or text[at : at + 1] != b"]":
        first = False
        letter = text[at : at + 1]
        at += 1
        if not letter:
            raise NoPattern
        if letter == b"[" and text[at : at + 1] == b":":
            end = text.find(b":]", at + 1)
            known = _CLASSES.get(text[at + 1 : end]) if end > 0 else None
            if known is not None:
                members.append(known)
                at, previous = end + 2, None
                continue
            if end > 0 and text[at + 1 : end].isalpha():
                raise NoPattern
        is_range = letter == b"-" and previous is not None and text[at : at + 1] not in (b"]", b"")
        if letter == b"\\" or (is_range and text[at : at + 1] == b"\\"):
            at += is_range
            letter, at = text[at : at + 1], at + 1
            if not letter:
                raise NoPattern
        elif is_range:
            letter, at = text[at : at + 1], at + 1
        if is_range:
            assert previous is not None, "a range begins somewhere"
            if previous <= letter:
                members.append(re.escape(previous) + b"-" + re.escape(letter))
            previous = None
        else:
            members.append(re.escape(letter))
            previous = letter
    inner = b"".join(members)
    if not inner:
        return (_ANY if negated else rb"(?!)"), at + 1
    return (rb"(?!/)[" + (b"^" if negated else b"") + inner + b"]"), at + 1


class _Expression:
    """Builds the regular expression of a pattern. It numbers the groups, because their names must differ."""

    def __init__(self) -> None:
        self._groups = 0

    def path(self, tokens: Sequence[bytes], *, by_name: bool) -> bytes:
        """Return the regular expression for the tokens of a pattern. With `by_name`, it matches only the name of a file
        or folder, else the whole path."""
        if by_name:
            return self._part(tokens)
        parts = _split(tokens, _SLASH)
        is_any = [_ends_in_folders(part) for part in parts]
        chunks: list[list[bytes]] = [[]]
        for part, any_folders in zip(parts, is_any, strict=True):
            if any_folders:
                chunks.append([])
            else:
                chunks[-1].append(self._part(part))
        return self._chunks(chunks, ends_open=is_any[-1])

    def _chunks(self, chunks: list[list[bytes]], *, ends_open: bool) -> bytes:
        """Join the expressions for the parts of a pattern between `**`. Each `**` matches any number of folders.
        `ends_open` says that the pattern ends in `**`."""
        if ends_open:  # `a/**` is everything in the folder
            chunks = chunks[:-1]
        first, *others = [_SLASH.join(chunk) for chunk in chunks if chunk or chunk is chunks[0]]
        last = others.pop() if others and not ends_open else None
        goes_on = others or last is not None or ends_open
        expression = first + (b"/" if chunks[0] and goes_on else b"")
        for chunk in others:
            expression += self._first(rb"(?:[^/]*/)*?" + chunk + b"/")
        if last is not None:
            expression += rb"(?:[^/]*/)*?" + last
        return expression + (b".*" if ends_open else b"")

    def _part(self, tokens: Sequence[bytes]) -> bytes:
        """Return the regular expression for one name in a path. The texts between the stars are matched from left to
        right; the text after the last star must be at the end of the name."""
        first, *others = _pieces(tokens)
        if not others:
            return first
        *middle, last = others
        return first + b"".join(self._first(rb"[^/]*?" + piece) for piece in middle if piece) + rb"[^/]*" + last

    def _first(self, expression: bytes) -> bytes:
        """Wrap an expression so that it keeps its first match: the result never backtracks into it."""
        self._groups += 1
        return b"(?=(?P<g%d>%s))(?P=g%d)" % (self._groups, expression, self._groups)


def _texts(tokens: Sequence[bytes]) -> list[bytes]:
    """Return the texts of a pattern between its wildcards and slashes. The last text ends the pattern; it is empty if a
    wildcard does."""
    texts = [b""]
    for token in tokens:
        letter = token[-1:]
        if token in (_STAR, _SLASH) or token not in (letter, b"\\" + letter):
            texts.append(b"")
        else:
            texts[-1] += letter
    return texts


def _pieces(tokens: Sequence[bytes]) -> list[bytes]:
    return [b"".join(piece) for piece in _split(tokens, _STAR)]


def _split(tokens: Sequence[bytes], separator: bytes) -> list[list[bytes]]:
    parts: list[list[bytes]] = [[]]
    for token in tokens:
        if token == separator:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts
