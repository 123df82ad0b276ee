"""The search for secrets: which rule matches, and where. No message contains the secret."""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from cloudtrain.code.files import Secret
from cloudtrain.code.suspects import SETTINGS, Span
from cloudtrain.documents.document import load_toml


class Allowed(NamedTuple):
    """Conditions under which a match of a rule is not reported. `target` names the text that
    `regexes` search: the `secret`, the whole `match`, or the `line` with the match."""

    regexes: tuple[str, ...] = ()
    target: str = "secret"
    paths: tuple[str, ...] = ()
    stopwords: tuple[bytes, ...] = ()
    all: bool = False
    """Whether all regexes, paths and stopwords must match, instead of one of them."""


class SecretForm(NamedTuple):
    """A rule that finds one form of secret. The secret is the first regex group that matched, or
    the whole match if there is no group."""

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
    return re.compile(expression.encode())


# All rules: gitleaks' and cloudtrain's own.
#
# gitleaks' rules are data (`secret_rules.json`, written by `tools/gen_secret_rules.py`). They
# recognize the tokens of about two hundred services, with very few false positives. cloudtrain's
# own (`own_secret_rules.toml`) cover keys, URLs and settings with a password, and accounts of
# clouds and machine learning services. Rules are read and compiled on first use.

_GITLEAKS = Path(__file__).with_name("secret_rules.json")
_OWN = Path(__file__).with_name("own_secret_rules.toml")


class RuleSet(NamedTuple):
    """All rules. `allowed` describes the matches that no rule reports."""

    rules: tuple[SecretForm, ...]
    by_keyword: Mapping[bytes, tuple[SecretForm, ...]]
    allowed: Allowed


@cache
def rule_set() -> RuleSet:
    """Return all rules, and an index of them by keyword: a rule can match only texts with one of
    its keywords."""
    data, own = json.loads(_GITLEAKS.read_bytes()), load_toml(_OWN.read_text("utf-8"))
    parts = {**own["parts"], "SETTINGS": SETTINGS}
    rules = (*map(_rule, data["rules"]), *(_rule(_complete(item, parts)) for item in own["rules"]))
    index: dict[bytes, list[SecretForm]] = {}
    for rule in rules:
        for keyword in rule.keywords:
            index.setdefault(keyword, []).append(rule)
    stopwords = tuple(word.encode() for word in data["stopwords"])
    allowed = Allowed(tuple(data["allowed"]), stopwords=stopwords)
    return RuleSet(rules, {word: tuple(of_keyword) for word, of_keyword in index.items()}, allowed)


def _complete(item: dict[str, object], parts: Mapping[str, str]) -> dict[str, object]:
    """Return a rule with each `%NAME%` in its expressions replaced by the part of that name."""
    return item | {
        field: re.sub(r"%([A-Z_]+)%", lambda match: parts[match[1]], str(item[field]))
        for field in ("regex", "path")
        if field in item
    }


def _rule(item: Mapping[str, Any]) -> SecretForm:
    return SecretForm(
        item["id"],
        item["regex"],
        tuple(word.encode() for word in item["keywords"]),
        certain=not item.get("uncertain", False),
        entropy=item.get("entropy", 0.0),
        path=item.get("path"),
        group=item.get("secretGroup", 0),
        prefix=item.get("prefix", False),
        random=item.get("random", False),
        allowed=tuple(map(_parse_allowed, item.get("allowed", ()))),
    )


def _parse_allowed(item: Mapping[str, Any]) -> Allowed:
    return Allowed(
        tuple(item.get("regexes", ())),
        item.get("target", "secret"),
        tuple(item.get("paths", ())),
        tuple(word.encode() for word in item.get("stopwords", ())),
        item.get("all", False),
    )


# The search.

_MARKS = (b"gitleaks:allow", b"pragma: allowlist secret")
"""Comments that mark a line as free of secrets. gitleaks and detect-secrets use the same comments,
so a file needs only one of them."""

_NO_SECRET = (
    r"(?i)example|placeholder|changeme|dummy|redacted|xxxx|your[-_]|<[a-z]|\*\*\*|\.\.\.|"
    r"123456789|abcdefgh|"
    r"password|secret|test"
)
"""Texts that show that a secret is an example and only looks random."""

_END_OF_NAME = re.compile(rb"\\?[\"'][ \t]?\](?=[ \t]*=[^=])")
"""The end of the name in `environ["NAME"] = `, also as JSON writes it: `environ[\\"NAME\\"] = `."""

_OPENING = re.compile(rb"\\\"(?=[\w/+:.$-])")

_GAP = b"\n\0\n"
"""Put between spans. No rule matches across it."""


class Match(NamedTuple):
    """A secret that a rule found, with the offset of its first byte and the offset after its last
    byte."""

    rule: SecretForm
    start: int
    end: int


def secrets_in(content: bytes, spans: Sequence[Span], path: str) -> tuple[Secret, ...]:
    """Return the secrets in some spans of a file, sorted by line, at most one per line. If a line
    has several secrets, one that is certain takes precedence."""
    by_line: dict[int, Secret] = {}
    for match in sorted(
        matches(content, spans, path), key=lambda match: (not match.rule.certain, match.start)
    ):
        line = content.count(b"\n", 0, match.start) + 1
        by_line.setdefault(line, Secret(match.rule.id, line, match.rule.certain))
    return tuple(by_line[line] for line in sorted(by_line))


def matches(content: bytes, spans: Sequence[Span], path: str) -> Iterator[Match]:
    """Yield every secret that a rule finds in the spans, which are sorted and do not overlap."""
    text = _plain(_GAP.join(content[start:end] for start, end in spans))
    starts = list(accumulate((end - start + len(_GAP) for start, end in spans), initial=0))
    for rule in _candidates(text.lower(), path):
        for match in rule.pattern.finditer(text):
            groups = (number for number, part in enumerate(match.groups(), 1) if part)
            start, end = match.span(rule.group or next(groups, 0))
            if _is_secret(rule, match, text[start:end], path) and not _is_name(
                rule, text, start, end, path
            ):
                number = bisect_right(starts, start) - 1
                shift = spans[number][0] - starts[number]
                yield Match(rule, start + shift, end + shift)


def _plain(text: bytes) -> bytes:
    """Return text of the same length, in which all values are written as the rules expect: `NAME =
    "value"` instead of `environ["NAME"] = "value"`, and quotes without the backslash that they have
    in the cells of a notebook."""
    text = _END_OF_NAME.sub(lambda end: b" " * len(end[0]), text)
    return _OPENING.sub(b' "', text).replace(b'\\"', b'" ')


def _candidates(lowered: bytes, path: str) -> Iterable[SecretForm]:
    """Return the rules that apply to the path and have a keyword in the lower-case text, each rule
    once."""
    candidates: dict[str, SecretForm] = {}
    for keyword, rules in rule_set().by_keyword.items():
        if keyword in lowered:
            candidates.update(
                (rule.id, rule) for rule in rules if rule.path is None or re.search(rule.path, path)
            )
    return candidates.values()


def _is_secret(rule: SecretForm, match: re.Match[bytes], secret: bytes, path: str) -> bool:
    if rule.entropy and bits_per_letter(secret) <= rule.entropy:
        return False
    if rule.random and not looks_random(secret):
        return False
    if b"EXAMPLE" in secret or _is_allowed(rule_set().allowed, match, secret, path, rule):
        return False
    return not any(mark in _line(match) for mark in _MARKS) and not any(
        _is_allowed(item, match, secret, path, rule) for item in rule.allowed
    )


def _is_name(rule: SecretForm, text: bytes, start: int, end: int, path: str) -> bool:
    """Return whether a possible secret is a name in Python code, after a comma: `import
    T5Tokenizer, T5Model`."""
    is_word = path.endswith((".py", ".ipynb")) and re.fullmatch(rb"[A-Za-z_]\w*", text[start:end])
    return bool(
        not rule.certain and is_word and re.search(rb",\s*\Z", text[max(0, start - 80) : start])
    )


def _is_allowed(
    allowed: Allowed, match: re.Match[bytes], secret: bytes, path: str, rule: SecretForm
) -> bool:
    verdicts = []
    if allowed.regexes:
        text = {
            "secret": lambda: secret,
            "match": lambda: _whole(rule, match),
            "line": lambda: _line(match),
        }
        target = text[allowed.target]()
        verdicts.append(any(compile_bytes(item).search(target) for item in allowed.regexes))
    if allowed.paths:
        verdicts.append(any(re.search(item, path) for item in allowed.paths))
    if allowed.stopwords:
        lowered = secret.lower()
        verdicts.append(any(word in lowered for word in allowed.stopwords))
    return (all if allowed.all else any)(verdicts)


def _whole(rule: SecretForm, match: re.Match[bytes]) -> bytes:
    """Return the whole match and not only the secret in it. For a rule with `prefix`, include the
    rest of a name that ends directly before the match."""
    if not rule.prefix:
        return match[0]
    start = match.start()
    before = compile_bytes(r"[\w.-]{0,50}\Z").search(match.string, max(0, start - 50), start)
    return (before[0] if before else b"") + match[0]


def _line(match: re.Match[bytes]) -> bytes:
    text = match.string
    end = text.find(b"\n", match.end())
    return text[text.rfind(b"\n", 0, match.start()) + 1 : end if end >= 0 else None]


def looks_random(secret: bytes) -> bool:
    """Return whether a value contains a digit and a letter, and no word that marks an example, such
    as `placeholder`."""
    has_both = re.search(rb"[0-9]", secret) and re.search(rb"[A-Za-z]", secret)
    return bool(has_both) and not compile_bytes(_NO_SECRET).search(secret)


def bits_per_letter(text: bytes) -> float:
    """Return the Shannon entropy in bits per byte: 0 for `aaaa`, 4 for random hexadecimal digits, 6
    for random base64."""
    length = len(text)
    return (
        -sum(count / length * math.log2(count / length) for count in Counter(text).values())
        if length
        else 0.0
    )
