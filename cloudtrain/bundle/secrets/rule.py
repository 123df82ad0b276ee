"""The data types of a rule that finds secrets."""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple


class Allowed(NamedTuple):
    """Conditions under which a match of a rule is not reported. `target` names the text that `regexes`
    search: the `secret`, the whole `match`, or the `line` with the match."""

    regexes: tuple[str, ...] = ()
    target: str = "secret"
    paths: tuple[str, ...] = ()
    stopwords: tuple[bytes, ...] = ()
    all: bool = False
    """Whether all regexes, paths and stopwords must match, instead of one of them."""


class Rule(NamedTuple):
    """A rule that finds one form of secret. The secret is the first regex group that matched, or the whole match if
    there is no group."""

    id: str
    regex: str
    keywords: tuple[bytes, ...]
    """In lower case. Every text that matches the rule contains one of them."""
    certain: bool = True
    """Whether a match is an error; otherwise it is a warning."""
    entropy: float = 0.0
    """The entropy in bits per letter that the secret must exceed."""
    path: str | None = None
    """Restricts the rule to paths in which this expression is found."""
    group: int = 0
    """The group with the secret; 0 for the first that matched."""
    prefix: bool = False
    """Whether the match that `allowed` is applied to includes the name before it."""
    random: bool = False
    """Whether the secret must contain a digit and a letter, and no word of an example."""
    allowed: tuple[Allowed, ...] = ()

    @property
    def pattern(self) -> re.Pattern[bytes]:
        """The regular expression, compiled on first use."""
        return compile_bytes(self.regex)


@cache
def compile_bytes(expression: str) -> re.Pattern[bytes]:
    """Compile a regular expression for bytes."""
    return re.compile(expression.encode())
