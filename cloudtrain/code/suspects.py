"""The parts of a file that the rules must search. Few of a bundle's thousands of files have such
parts.

Nearly every secret is a long word with a digit, or is next to such a word. The other secrets follow
a word such as `password`, are in a URL, or follow a header such as `-----BEGIN`. Rules are tried
only around these positions.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

Span = tuple[int, int]

SETTINGS = (
    r"(?i)(?:\.(?:ya?ml|toml|json|ini|cfg|cnf|conf|config|properties|env|tfvars|txt|sh|"
    r"bash)|(?:^|/)\.?[^./]+)$"
)
"""Paths of files in which values are written without quotes, including names without an
extension."""

LARGEST = 16 << 20
"""Number of bytes at the start of a file of code or settings that are searched."""

_WRITTEN = frozenset(
    "bash c cc cfg cnf conf config cpp cu cuh env go h hpp ini ipynb java jl js jsx lua md "
    "properties ps1 py pyi pyx r rb rs rst sh sql tf tfvars toml ts tsx yaml yml".split()
)
"""The suffixes of code and settings, which people write. Files with others may be data."""

_MOST_DATA = 8 << 20
"""In bytes. If there is more data, only a sample of each suffix is searched, because a search of
all data takes much longer than reading it."""

_SAMPLE = 64 << 10
_SAMPLE_OF_FILE = 1 << 10
"""Number of bytes of a sample: of all files of one suffix together, and of each file at least."""

_LETTERS = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
_DIGITS = frozenset(b"0123456789")
_OF_WORDS = _LETTERS | _DIGITS | frozenset(b"+/_-")
_WORDS = bytes(65 if byte in _OF_WORDS else 32 for byte in range(256))
"""Maps every byte of a word to an A, so that one fast search finds a long word."""

_LONG = b"A" * 20
_END = re.compile(b"A*")
_NO_DIGITS = bytes({*range(256)} - _DIGITS)
_NO_LETTERS = bytes({*range(256)} - _LETTERS)
_TOKENS = re.compile(rb"[/+_-]*(?i:a[ks]ia|a[bc][ic]a|gl[a-z]{2,6}-|[sr]k_(?:live|test|prod)_|hf_)")
"""Tokens that need not contain a digit."""

_HEADLINES = (b"-----BEGIN", b"PuTTY-User-Key-File")
_HEADLINES_OF_SETTINGS = (*_HEADLINES, b"kind: Secret")
_ADDRESS = rb"://[^\s/:@\"'<>{}$\\`|]{0,64}:[^\s/@\"'<>{}$\\`|]{6,200}@"
_NAMES = (b"passw", b"pwd", b"secret")
_NAMES_IN_SETTINGS = (*_NAMES, b"pass_phrase", b"passphrase", b"token", b"key", b"auth")
_ASSIGNED = re.compile(
    rb"[\w\"'\]\\ \t-]{0,32}[:=]>?[ \t]{0,8}\\?[\"']?[^\s\"'(){}$<>%,;]{8,}|\s+\S*[0-9]"
)
"""The rest of a name and its value: long, or with a digit."""
_NOTES = rb"(?m)^[^\s:]{1,64}:\$[0-9a-z]{1,4}\$"

_BEFORE = 160
_BEHIND = 100
"""Number of bytes around a long word in which its name and its end are searched."""
_UNBROKEN = re.compile(rb"[^\s\"'<>]{0,4096}")
"""The rest of a long word: the other parts of a token or a URL."""

_MOST = 1 << 20
_MOST_OF_BINARY = 1 << 17
"""Maximum number of bytes to search in one text file and in one binary file. A list of a million
hashes is data, and a binary file is full of long words."""


_ARCHIVES = (
    rb'(?m)^(?:    |sdist = )\{ url = "https://files\.pythonhosted\.org/packages/[0-9a-f]{2}/[0-9a-f]{2}/[0-9a-f]{60}/'
    rb'[^"/]{1,120}", hash = "sha256:[0-9a-f]{64}"(?:, size = \d+)?(?:, upload-time = '
    rb'"[0-9TZ:.-]+")? \},?$'
    rb"|^    --hash=sha256:[0-9a-f]{64}(?: \\)?$"
)
"""Lines of a lock that name public archives, and lines of hashes. A lock has thousands of them."""


def searched_sizes(paths: Sequence[str | None], sizes: Sequence[int]) -> list[int]:
    """Return the number of bytes at the start of each file that are searched. None stands for a
    file that is not searched."""
    suffixes = [None if path is None else _suffix(path) for path in paths]
    counts = Counter(suffixes)
    totals: Counter[str] = Counter()
    for suffix, size in zip(suffixes, sizes, strict=True):
        if suffix is not None and suffix not in _WRITTEN:
            totals[suffix] += size

    left: dict[str | None, int] = {}
    if totals.total() > _MOST_DATA:
        left.update({suffix: _SAMPLE for suffix, total in totals.items() if total > _SAMPLE})
    searched = []
    for suffix in suffixes:
        size = 0 if suffix is None else LARGEST
        if suffix in left:
            share = max(_SAMPLE // counts[suffix], _SAMPLE_OF_FILE)
            size = min(share, left[suffix])
            left[suffix] -= size
        searched.append(size)
    return searched


def _suffix(path: str) -> str:
    """Return what follows the last dot in the name of a file; empty without a dot."""
    name = path.rpartition("/")[2]
    return name.rpartition(".")[2].lower() if "." in name else ""


def suspects(content: bytes, path: str) -> list[Span]:
    """Return the spans of a file's content that rules must search: sorted, without overlaps, and
    usually none."""
    if b"sha256:" in content:
        content = re.sub(_ARCHIVES, blank, content)
    settings = re.search(SETTINGS, path) is not None
    spans = [*_long_words(content), *_behind_names(content, settings)]
    for headline in _HEADLINES_OF_SETTINGS if settings else _HEADLINES:
        for at in _places_of(content, headline):
            spans.append((at, at + 600))
    if b"://" in content:
        for address in re.finditer(_ADDRESS, content):
            spans.append((address.start() - 40, address.end() + _BEHIND))
    if settings and b":$" in content:
        for note in re.finditer(_NOTES, content):
            spans.append((note.start(), note.end() + 200))
    return _apart(spans, len(content))


def blank(line: re.Match[bytes]) -> bytes:
    """Return as many spaces as the match has bytes, so that offsets after it stay."""
    return b" " * len(line[0])


def _long_words(content: bytes) -> list[Span]:
    """Return the surroundings of every long word that may be a secret, until their total length
    exceeds the maximum."""
    words = content.translate(_WORDS)
    spans: list[Span] = []
    budget = _MOST_OF_BINARY if b"\0" in content[:8192] else _MOST
    span_end = 0
    start = words.find(_LONG)
    while start >= 0 and budget > 0:
        end = _END.match(words, start).end()  # type: ignore[union-attr] # it matches everywhere
        if end > span_end:
            longest = start + 4096
            word = content[start : min(end, longest)]
            if _may_be_secret(word):
                # A token may go on after a byte such as `.`, which ends a word.
                span_end = _UNBROKEN.match(content, end).end() + _BEHIND  # type: ignore[union-attr]
                span_end = min(span_end, longest)
                span_start = start - _BEFORE
                last_end = spans[-1][1] if spans else 0
                budget -= span_end - max(span_start, last_end)
                spans.append((span_start, span_end))
        start = words.find(_LONG, end)
    return spans


def _may_be_secret(word: bytes) -> bool:
    """Return whether a long word has a digit and a letter, or begins like a known token."""
    if not word.translate(None, _NO_DIGITS):
        return _TOKENS.match(word) is not None
    has_letters = bool(word.translate(None, _NO_LETTERS))
    return has_letters and not _is_machine(word)


def _is_machine(word: bytes) -> bool:
    """Return whether a word is the name of a machine's size, `Standard_ND96asr_v4`. Most job files
    have one, and the rules would be read for it alone."""
    if not word.startswith(b"Standard_N"):
        return False
    return max(map(len, word.split(b"_"))) < 14


def _behind_names(content: bytes, settings: bool) -> list[Span]:
    """Return the surroundings of every word such as `password` that a value follows."""
    lowered = content.lower()
    spans = []
    for name in _NAMES_IN_SETTINGS if settings else _NAMES:
        for at in _places_of(lowered, name):
            end = at + len(name)
            if _ASSIGNED.match(lowered, end, end + 120):
                spans.append((at - 60, at + 260))
    return spans


def _places_of(content: bytes, word: bytes) -> list[int]:
    """Return the offsets at which the word begins."""
    places = []
    at = content.find(word)
    while at >= 0:
        places.append(at)
        at = content.find(word, at + len(word))
    return places


def _apart(spans: list[Span], length: int) -> list[Span]:
    """Clip the spans to the content, sort them, and join those that touch."""
    spans.sort()
    joined: list[Span] = []
    for span_start, span_end in spans:
        start = max(span_start, 0)
        end = min(span_end, length)
        if joined and start <= joined[-1][1]:
            start, last_end = joined.pop()
            end = max(last_end, end)
        joined.append((start, end))
    return joined
