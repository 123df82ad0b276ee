"""The search for secrets: which rule matches, and where. No message contains the secret."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from cloudtrain.bundle.entries import Secret
from cloudtrain.bundle.secrets.rule import Allowed, Rule, compile_bytes
from cloudtrain.bundle.secrets.rules import rule_set
from cloudtrain.bundle.secrets.suspects import Span

_MARKS = (b"gitleaks:allow", b"pragma: allowlist secret")
"""Comments that mark a line as free of secrets. gitleaks and detect-secrets use the same comments, so a file needs only
one of them."""

_NO_SECRET = (
    r"(?i)example|placeholder|changeme|dummy|redacted|xxxx|your[-_]|<[a-z]|\*\*\*|\.\.\.|123456789|abcdefgh|"
    r"password|secret|test"
)
"""Texts that show that a secret is an example and only looks random."""

_GAP = b"\n\0\n"
"""Put between spans. No rule matches across it."""


class Match(NamedTuple):
    """A secret that a rule found, with the offset of its first byte and the offset after its last byte."""

    rule: Rule
    start: int
    end: int


def secrets_in(content: bytes, spans: Sequence[Span], path: str) -> tuple[Secret, ...]:
    """Return the secrets in some spans of a file, sorted by line, at most one per line. If a line has several
    secrets, one that is certain takes precedence."""
    found: dict[int, Secret] = {}
    for match in sorted(matches(content, spans, path), key=lambda match: (not match.rule.certain, match.start)):
        line = content.count(b"\n", 0, match.start) + 1
        found.setdefault(line, Secret(match.rule.id, line, match.rule.certain))
    return tuple(found[line] for line in sorted(found))


def matches(content: bytes, spans: Sequence[Span], path: str) -> Iterator[Match]:
    """Yield every secret that a rule finds in the spans, which are sorted and do not overlap."""
    text = _GAP.join(content[start:end] for start, end in spans)
    starts = list(accumulate((end - start + len(_GAP) for start, end in spans), initial=0))
    for rule in _candidates(text.lower(), path):
        for found in rule.pattern.finditer(text):
            start, end = found.span(_group(rule, found))
            if _is_secret(rule, found, text[start:end], path):
                number = bisect_right(starts, start) - 1
                shift = spans[number][0] - starts[number]
                yield Match(rule, start + shift, end + shift)


def _candidates(lowered: bytes, path: str) -> Iterable[Rule]:
    """Return the rules that apply to the path and have a keyword in the lower-case text, each rule once."""
    found: dict[str, Rule] = {}
    for keyword, rules in rule_set().by_keyword.items():
        if keyword in lowered:
            found.update((rule.id, rule) for rule in rules if rule.path is None or re.search(rule.path, path))
    return found.values()


def _group(rule: Rule, found: re.Match[bytes]) -> int:
    groups = [number for number, text in enumerate(found.groups(), 1) if text]
    return rule.group or (groups[0] if groups else 0)


def _is_secret(rule: Rule, found: re.Match[bytes], secret: bytes, path: str) -> bool:
    if rule.entropy and bits_per_letter(secret) <= rule.entropy:
        return False
    if rule.random and not looks_random(secret):
        return False
    if b"EXAMPLE" in secret or _is_allowed(rule_set().allowed, found, secret, path, rule):
        return False
    return not any(mark in _line(found) for mark in _MARKS) and not any(
        _is_allowed(item, found, secret, path, rule) for item in rule.allowed
    )


def _is_allowed(allowed: Allowed, found: re.Match[bytes], secret: bytes, path: str, rule: Rule) -> bool:
    verdicts = []
    if allowed.regexes:
        text = {"secret": lambda: secret, "match": lambda: _whole(rule, found), "line": lambda: _line(found)}
        target = text[allowed.target]()
        verdicts.append(any(compile_bytes(item).search(target) for item in allowed.regexes))
    if allowed.paths:
        verdicts.append(any(re.search(item, path) for item in allowed.paths))
    if allowed.stopwords:
        lowered = secret.lower()
        verdicts.append(any(word in lowered for word in allowed.stopwords))
    return (all if allowed.all else any)(verdicts)


def _whole(rule: Rule, found: re.Match[bytes]) -> bytes:
    """Return the whole match and not only the secret in it. For a rule with `prefix`, include the rest of a name that
    ends directly before the match."""
    if not rule.prefix:
        return found[0]
    start = found.start()
    before = compile_bytes(r"[\w.-]{0,50}\Z").search(found.string, max(0, start - 50), start)
    return (before[0] if before else b"") + found[0]


def _line(found: re.Match[bytes]) -> bytes:
    text = found.string
    end = text.find(b"\n", found.end())
    return text[text.rfind(b"\n", 0, found.start()) + 1 : end if end >= 0 else None]


def looks_random(secret: bytes) -> bool:
    """Return whether a value contains a digit and a letter, and no word that marks an example, such as
    `placeholder`."""
    has_digit = any(48 <= byte <= 57 for byte in secret)
    return (
        has_digit and any(bytes([byte]).isalpha() for byte in secret) and not compile_bytes(_NO_SECRET).search(secret)
    )


def bits_per_letter(text: bytes) -> float:
    """Return the Shannon entropy in bits per byte: 0 for `aaaa`, 4 for random hexadecimal digits, 6 for random
    base64."""
    length = len(text)
    return -sum(count / length * math.log2(count / length) for count in Counter(text).values()) if length else 0.0
