"""The rules of every `.cloudtrainignore`, by which files stay out of the bundle.

Ignore files have the syntax of gitignore. The nearest ignore file with a matching rule decides
about a path, by its last matching rule. The defaults (`walk.py`) come after all ignore files, so a
`!` rule can include a path that a default leaves out. Such a rule must contain a name: `!*/` does
not include virtual environments. An ignored folder is never read, so no rule can include files in
it.

The matching is our own code, compared with git 2.55 and with `pathspec`, which takes 90 s on one
hostile pattern and differs from git on some hard lines.
"""

from __future__ import annotations

import codecs
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, count
from typing import Literal, NamedTuple

from cloudtrain.errors import JobError, Problem

# The patterns of ignore files, with the rules of git 2.55 (`wildmatch.c` and `dir.c`). Matching
# takes time linear in the path's length.
#
# A pattern is converted to one regular expression, which backtracks only for the last star. Every
# earlier star takes the shortest text that fits, because the next star can match the rest. So a
# pattern with many stars takes no longer than a pattern with few.

_CLASSES = {
    b"alnum": rb"0-9A-Za-z", b"alpha": rb"A-Za-z", b"blank": rb" \t", b"cntrl": rb"\x00-\x1f\x7f",
    b"digit": rb"0-9",
    b"graph": rb"!-~", b"lower": rb"a-z", b"print": rb" -~", b"punct": rb"!-/:-@\[-`{-~",
    b"space": rb"\s",
    b"upper": rb"A-Z", b"xdigit": rb"0-9A-Fa-f",
}  # fmt: skip
"""The named classes of sets such as `[[:digit:]]`, as a regular expression writes them."""

_PREFIX = re.compile(rb"[^*?[\\]*(?:(?<![^/])|(?!\*\*))")
"""Matches the text before the first wildcard, of which `**` takes the last letter of a name along:
git 2.55 takes the stars of `a**/b` for one star, as everywhere inside a name. git 2.39 compares the
text by itself, and the stars then match folders."""

_STAR = b"*"
_SLASH = b"/"
_ANY = rb"[^/]"
"""Matches one byte of a name."""


class NoPattern(ValueError):
    """The line is not a valid pattern: in git it would match nothing."""


Position = Literal["whole", "start", "end", "inside"]
"""The place of a text in each path that a pattern matches."""


class Key(NamedTuple):
    """A text that each path has which a pattern matches, or each name if the pattern is matched
    with names."""

    by_name: bool
    where: Position
    text: bytes


@dataclass(eq=False)
class Pattern:
    """One line of an ignore file: the text before its first wildcard, and the tokens of the rest.
    A token is a star, a slash, or a regular expression for one byte: `[^/]`, `a`, `\\.`."""

    prefix: bytes
    tokens: Sequence[bytes]
    by_name: bool
    """Whether the pattern is matched with the name, because its only slash, if any, is at the
    end."""
    ignores: bool
    """False for a line that begins with `!`."""
    folders_only: bool

    @cached_property
    def _regex(self) -> re.Pattern[bytes]:
        """Matches the whole path relative to the folder of the ignore file, or only the name."""
        rest = _expression(self.tokens, by_name=self.by_name)
        return re.compile(re.escape(self.prefix) + rest, re.DOTALL)

    def matches(self, path: bytes, is_folder: bool) -> bool:
        if self.folders_only and not is_folder:
            return False
        text = _name(path) if self.by_name else path
        return self._regex.fullmatch(text) is not None

    def keys(self) -> Iterator[Key]:
        """Yield texts without which no path matches. A pattern of wildcards has none."""
        if not self.tokens:
            yield Key(self.by_name, "whole", self.prefix)
            return
        if self.prefix:
            yield Key(self.by_name, "start", self.prefix)
        *inside, end = _texts(self.tokens)
        if end:
            yield Key(self.by_name, "end", end)
        for text in inside:
            if text:
                yield Key(self.by_name, "inside", text)


def _name(path: bytes) -> bytes:
    return path[path.rfind(b"/") + 1 :]


def pattern_of(line: bytes) -> Pattern | None:
    """Parse a line, given without its line end; return None for an empty line or a comment.

    Raises:
        NoPattern: no path can match the line.
    """
    # A space after a backslash stays. An even number of backslashes escapes no space.
    bare = line.rstrip(b" ")
    backslashes = len(bare) - len(bare.rstrip(b"\\"))
    if backslashes % 2 and bare != line:
        bare += b" "
    line = bare
    if not line or line.startswith(b"#"):
        return None

    ignores = not line.startswith(b"!")
    text = line.removeprefix(b"!")
    folders_only = text.endswith(b"/")
    text = text.removesuffix(b"/")
    if not text:
        if line == b"/":
            return None
        raise NoPattern

    by_name = b"/" not in text
    text = text.removeprefix(b"/")

    prefix = _PREFIX.match(text)[0]  # type: ignore[index] # it matches everywhere
    tokens = _tokens(text[len(prefix) :])
    return Pattern(prefix, tokens, by_name, ignores, folders_only)


def _tokens(text: bytes) -> list[bytes]:
    """Split a pattern into stars, slashes, and regular expressions for one byte each."""
    tokens: list[bytes] = []
    at = 0
    while at < len(text):
        letter = text[at : at + 1]
        at += 1
        if letter in (_STAR, _SLASH):
            tokens.append(letter)
        elif letter == b"?":
            tokens.append(_ANY)
        elif letter == b"[":
            expression, at = _parse_set(text, at)
            tokens.append(expression)
        else:
            if letter == b"\\":
                letter = text[at : at + 1]
                at += 1
                if not letter:
                    raise NoPattern
            if letter != b"/":
                tokens.append(re.escape(letter))
            elif _ends_in_folders(tokens):  # `**\/` matches one folder or more, and `**/` also none
                tokens += (_SLASH, _STAR, _SLASH)
            else:
                tokens.append(_SLASH)
    return tokens


def _ends_in_folders(tokens: Sequence[bytes]) -> bool:
    """Return whether the text after the last slash of a pattern consists of at least two stars and
    nothing else."""
    last = _split(tokens, _SLASH)[-1]
    return len(last) > 1 and set(last) == {_STAR}


_MEMBER = re.compile(
    rb"\[:(?P<name>[A-Za-z]+):\]|(?P<first>\\.|[^\\])(?:-(?P<last>\\.|[^]\\]))?", re.DOTALL
)
"""A named class, a letter, or a range of letters, any of which a backslash may escape."""


def _parse_set(text: bytes, at: int) -> tuple[bytes, int]:
    """Return the regular expression for a set such as `[a-z]`, and the offset after it. `at` is the
    offset after the opening bracket."""
    negated = text[at : at + 1] in (b"!", b"^")
    at += negated
    start = at  # where a closing bracket is a member
    inner = b""
    while at == start or text[at : at + 1] != b"]":
        member = _MEMBER.match(text, at)
        if member is None or (member["name"] and member["name"] not in _CLASSES):
            raise NoPattern
        at = member.end()
        if member["name"]:
            inner += _CLASSES[member["name"]]
            continue
        first = member["first"][-1:]
        last = (member["last"] or first)[-1:]
        inner += re.escape(first)
        # `[b-a]` is only its first letter in git, and an error in a regular expression.
        if first < last:
            inner += b"-" + re.escape(last)

    # Without `(?!/)`, a set such as `[!a]` or `[+-9]` would match a slash.
    opening = rb"(?!/)[^" if negated else rb"(?!/)["
    return opening + inner + b"]", at + 1


def _expression(tokens: Sequence[bytes], *, by_name: bool) -> bytes:
    """Return the regular expression for the tokens of a pattern. With `by_name`, it matches only
    the name of a file or folder, else the whole path."""
    if by_name:
        return _part(tokens)

    chunks: list[list[bytes]] = [[]]  # the parts between `**`
    for part in _split(tokens, _SLASH):
        if _ends_in_folders(part):
            chunks.append([])
        else:
            chunks[-1].append(_part(part))
    expression = _SLASH.join(chunks[0])
    if len(chunks) == 1:
        return expression

    if chunks[0]:  # not empty if its only part is, as in `\/**`
        expression += _SLASH
    if not chunks[-1]:  # `a/**` is everything in the folder
        chunks[-1] = [b".*"]
    folders = rb"(?:[^/]*/)*?"
    for chunk in chunks[1:-1]:
        if chunk:
            expression += _first(folders + _SLASH.join(chunk) + _SLASH)
    return expression + folders + _SLASH.join(chunks[-1])


def _part(tokens: Sequence[bytes]) -> bytes:
    """Return the regular expression for one name in a path. The texts between the stars are matched
    from left to right; the text after the last star must be at the end of the name."""
    first, *others = [b"".join(piece) for piece in _split(tokens, _STAR)]
    if not others:
        return first
    *middle, last = others
    expression = first
    for piece in middle:
        if piece:
            expression += _first(rb"[^/]*?" + piece)
    return expression + rb"[^/]*" + last


_GROUPS = count()
"""Numbers for groups, whose names must differ in an expression."""


def _first(expression: bytes) -> bytes:
    """Wrap an expression so that it keeps its first match: the result never backtracks into it.
    Python has groups of its own for this only from 3.11 on."""
    number = next(_GROUPS)
    return b"(?=(?P<g%d>%s))(?P=g%d)" % (number, expression, number)


def _texts(tokens: Sequence[bytes]) -> list[bytes]:
    """Return the texts of a pattern between its wildcards and slashes. The last text ends the
    pattern; it is empty if a wildcard does."""
    texts = [b""]
    for token in tokens:
        # Only the token of a plain byte is that byte escaped; a star without a backslash is not.
        letter = token[-1:]
        if token == re.escape(letter) and token != _SLASH:
            texts[-1] += letter
        else:
            texts.append(b"")
    return texts


def _split(tokens: Sequence[bytes], separator: bytes) -> list[list[bytes]]:
    """Split tokens at each separator, as `bytes.split` splits bytes."""
    parts: list[list[bytes]] = [[]]
    for token in tokens:
        if token == separator:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


# Finds the few patterns of an ignore file that can match a path, so that the time for a path does
# not grow with the number of patterns.


class PatternIndex:
    """The patterns by their keys. Of a pattern's keys, the index uses the one that the fewest
    patterns have."""

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        keys_of = [list(pattern.keys()) for pattern in patterns]
        frequency = Counter(chain.from_iterable(keys_of))

        # Numbers of patterns are the values of each table.
        self._keyless: list[int] = []
        self._whole: dict[Key, list[int]] = {}
        # Keys of one position and one length share a table, by their texts. So a path is cut to
        # this length once, and the piece looked up, however many patterns there are.
        self._tables: dict[tuple[bool, Position, int], dict[bytes, list[int]]] = {}
        for number, keys in enumerate(keys_of):
            if not keys:
                self._keyless.append(number)
                continue

            key = min(keys, key=frequency.__getitem__)
            if key.where == "whole":
                self._whole.setdefault(key, []).append(number)
            else:
                position = (key.by_name, key.where, len(key.text))
                table = self._tables.setdefault(position, {})
                table.setdefault(key.text, []).append(number)

    def candidates(self, path: bytes) -> list[int]:
        """Return the numbers of the patterns that can match the path, sorted. All others do not
        match it."""
        name = _name(path)
        candidates = [*self._keyless]
        candidates += self._whole.get(Key(True, "whole", name), ())
        candidates += self._whole.get(Key(False, "whole", path), ())
        for (by_name, where, length), table in self._tables.items():
            text = name if by_name else path
            last = len(text) - length
            if last < 0:
                continue

            starts = range(last + 1)
            if where == "start":
                starts = range(1)
            elif where == "end":
                starts = range(last, last + 1)

            for start in starts:
                candidates += table.get(text[start : start + length], ())
        return sorted(set(candidates))


IGNORE_FILE = ".cloudtrainignore"
INCLUDE_FILE = ".cloudtraininclude"


class IgnoreRule(NamedTuple):
    """A line of an ignore file, and how messages name it: `.cloudtrainignore:3 *.bin`. `has_name`
    is False if it contains no letter or digit, such as `!*`."""

    pattern: Pattern
    has_name: bool
    text: str
    line: int


class Rules:
    """The rules of one ignore file. `folder` is the folder of the file, relative to the root, such
    as `a/b/`; empty for the root itself."""

    def __init__(self, folder: str, content: bytes, name: str = IGNORE_FILE) -> None:
        self._start = len(folder)
        self._rules: list[IgnoreRule] = []
        lines = content.removeprefix(codecs.BOM_UTF8).split(b"\n")
        for number, line in enumerate(lines, 1):
            rule = _parse_rule(line.removesuffix(b"\r"), number, folder + name)
            if rule is not None:
                self._rules.append(rule)
        self._rules.reverse()  # the last matching rule decides
        self._index = PatternIndex([rule.pattern for rule in self._rules])

    def judge(self, path: str, is_folder: bool) -> IgnoreRule | None:
        """Return the rule that decides whether the path is ignored; None if no rule matches.

        A rule decides only about paths that it matches. For example, after the rule `*`, the rule
        `!data/` includes the folder `data`, but not the files in it.
        """
        relative = os.fsencode(path[self._start :])
        for number in self._index.candidates(relative):
            rule = self._rules[number]
            if rule.pattern.matches(relative, is_folder):
                return rule
        return None


def _parse_rule(text: bytes, line: int, file: str) -> IgnoreRule | None:
    """Return the rule in a line of the ignore file `file`; None for an empty line or a comment.
    Raises JobError for a line that is not a pattern."""
    entry = os.fsdecode(text)
    try:
        pattern = pattern_of(text)
    except NoPattern:
        message = f"`{entry}` is not a pattern"
        problem = Problem(
            ("source_dir",),
            message,
            "write it as in a .gitignore file, or begin the line with `#`",
            file,
            line,
            1,
            code="CT051",
        )
        raise JobError([problem]) from None
    if pattern is None:
        return None
    has_name = any(letter.isalnum() for letter in entry)
    return IgnoreRule(pattern, has_name, f"{file}:{line} {entry.rstrip()}", line)


def ignore_line(path: str) -> str:
    """Return a line for the root's ignore file that matches this path and can be printed and typed.

    A `?` replaces each byte that an editor cannot show: line breaks, control characters, bytes that
    are not UTF-8.
    """
    letters = []
    for letter in path:
        if not letter.isprintable():
            letters.append("?" * len(os.fsencode(letter)))
        elif letter in "\\*?[":
            letters.append(f"\\{letter}")
        else:
            letters.append(letter)
    return "/" + re.sub(r" $", r"\\ ", "".join(letters))
