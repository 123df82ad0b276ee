"""What a rule about secrets is."""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple


class Allowed(NamedTuple):
    """What a rule finds and must not report. `target` is what `regexes` look at: `secret`, `match` or `line`."""

    regexes: tuple[str, ...] = ()
    target: str = "secret"
    paths: tuple[str, ...] = ()
    stopwords: tuple[bytes, ...] = ()
    all: bool = False
    """Whether regexes, paths and stopwords must all hold, instead of one of them."""


class Rule(NamedTuple):
    """One form of secret. The secret is the first group that matched, or all that matched where there is no group."""

    id: str
    regex: str
    keywords: tuple[bytes, ...]
    """In small letters; every text that matches has one of them."""
    certain: bool = True
    """Whether what it finds is an error; else it is a warning."""
    entropy: float = 0.0
    """Bits per letter that the secret has more than."""
    path: str | None = None
    """Holds for paths in which this is found."""
    group: int = 0
    """The group with the secret; 0 for the first that matched."""
    prefix: bool = False
    """Whether the match also has the name before it, which `allowed` looks at."""
    random: bool = False
    """Whether the secret must have a digit and a letter, and no word of an example."""
    allowed: tuple[Allowed, ...] = ()

    @property
    def pattern(self) -> re.Pattern[bytes]:
        """The regular expression, compiled when it is first wanted."""
        return compile_bytes(self.regex)


@cache
def compile_bytes(expression: str) -> re.Pattern[bytes]:
    """A regular expression for bytes."""
    return re.compile(expression.encode())
