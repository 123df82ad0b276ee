"""The search for secrets: which rule matches, and where. No message contains the secret."""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from cloudtrain.code.files import Secret
from cloudtrain.code.suspects import SETTINGS, Span, blank
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
# gitleaks' rules are data (`secret_rules.json`, written by `tools/generate/secret_rules.py`). They
# recognize the tokens of about two hundred services, with very few false positives. cloudtrain's
# own (`own_secret_rules.toml`) cover keys, URLs and settings with a password, and accounts of
# clouds and machine learning services. Rules are read and compiled on first use.

_GITLEAKS = Path(__file__).with_name("secret_rules.json")
_OWN = Path(__file__).with_name("own_secret_rules.toml")


class RuleSet(NamedTuple):
    """All rules, by their keywords. `allowed` describes the matches that no rule reports."""

    by_keyword: Mapping[bytes, Sequence[SecretForm]]
    allowed: Allowed


@cache
def rule_set() -> RuleSet:
    """Return all rules, and an index of them by keyword: a rule can match only texts with one of
    its keywords."""
    data = json.loads(_GITLEAKS.read_bytes())
    own = load_toml(_OWN.read_text("utf-8"))
    parts = {**own["parts"], "SETTINGS": SETTINGS}
    rules = [_parse_rule(item) for item in data["rules"]]
    for item in own["rules"]:
        rules.append(_parse_rule(_complete(item, parts)))

    index: dict[bytes, list[SecretForm]] = {}
    for rule in rules:
        for keyword in rule.keywords:
            index.setdefault(keyword, []).append(rule)
    allowed = Allowed(tuple(data["allowed"]), stopwords=_encoded(data["stopwords"]))
    return RuleSet(index, allowed)


def _encoded(words: Iterable[str]) -> tuple[bytes, ...]:
    return tuple(word.encode() for word in words)


def _complete(item: Mapping[str, object], parts: Mapping[str, str]) -> dict[str, object]:
    """Return a rule with each `%NAME%` in its expressions replaced by the part of that name."""

    def part(name: re.Match[str]) -> str:
        return parts[name[1]]

    complete = dict(item)
    for field in ("regex", "path"):
        if field in item:
            complete[field] = re.sub(r"%([A-Z_]+)%", part, str(item[field]))
    return complete


def _parse_rule(item: Mapping[str, Any]) -> SecretForm:
    """Return a rule from a table, which has some fields under gitleaks' names."""
    fields = dict(item)
    fields["keywords"] = _encoded(item["keywords"])
    fields["certain"] = not fields.pop("uncertain", False)
    fields["group"] = fields.pop("secretGroup", 0)
    fields["allowed"] = tuple(map(_parse_allowed, item.get("allowed", ())))
    return SecretForm(**fields)


def _parse_allowed(item: Mapping[str, Any]) -> Allowed:
    fields = dict(item)
    fields["regexes"] = tuple(item.get("regexes", ()))
    fields["paths"] = tuple(item.get("paths", ()))
    fields["stopwords"] = _encoded(item.get("stopwords", ()))
    return Allowed(**fields)


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
"""The quote before a value, as JSON writes it."""

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
    found = list(matches(content, spans, path))
    found.sort(key=lambda match: (not match.rule.certain, match.start))
    by_line: dict[int, Secret] = {}
    for match in found:
        line = content.count(b"\n", 0, match.start) + 1
        by_line.setdefault(line, Secret(match.rule.id, line, match.rule.certain))
    return tuple(by_line[line] for line in sorted(by_line))


def matches(content: bytes, spans: Sequence[Span], path: str) -> Iterator[Match]:
    """Yield every secret that a rule finds in the spans, which are sorted and do not overlap."""
    # The rules search one text of all spans. `starts` are the offsets of the spans in it.
    parts = [content[start:end] for start, end in spans]
    text = _with_plain_values(_GAP.join(parts))
    starts = [0]
    for part in parts:
        starts.append(starts[-1] + len(part + _GAP))

    for rule in _candidates(text.lower(), path):
        for match in rule.pattern.finditer(text):
            start, end = match.span(rule.group or _first_group(match))
            if not _is_secret(rule, match, text[start:end], path):
                continue
            if rule.certain or not _is_name(text, start, end, path):
                number = bisect_right(starts, start) - 1
                shift = spans[number][0] - starts[number]
                yield Match(rule, start + shift, end + shift)


def _first_group(match: re.Match[bytes]) -> int:
    """Return the number of the first group that matched some text; 0 if none did."""
    for number, part in enumerate(match.groups(), 1):
        if part:
            return number
    return 0


def _with_plain_values(text: bytes) -> bytes:
    """Return text of the same length, in which all values are written as the rules expect: `NAME =
    "value"` instead of `environ["NAME"] = "value"`, and quotes without the backslash that they have
    in the cells of a notebook."""
    text = _END_OF_NAME.sub(blank, text)
    return _OPENING.sub(b' "', text).replace(b'\\"', b'" ')


def _candidates(lowered: bytes, path: str) -> Iterable[SecretForm]:
    """Return the rules that apply to the path and have a keyword in the lower-case text, each rule
    once."""
    candidates: dict[str, SecretForm] = {}
    for keyword, rules in rule_set().by_keyword.items():
        if keyword in lowered:
            for rule in rules:
                if rule.path is None or re.search(rule.path, path):
                    candidates[rule.id] = rule
    return candidates.values()


def _is_secret(rule: SecretForm, match: re.Match[bytes], secret: bytes, path: str) -> bool:
    """Return whether to report a match: it is random enough, no example, and not allowed."""
    if rule.entropy and bits_per_letter(secret) <= rule.entropy:
        return False
    if rule.random and not looks_random(secret):
        return False

    line = _line_of(match)
    if b"EXAMPLE" in secret or any(mark in line for mark in _MARKS):
        return False

    for allowed in (rule_set().allowed, *rule.allowed):
        if _is_allowed(allowed, match, secret, path, rule):
            return False
    return True


def _is_name(text: bytes, start: int, end: int, path: str) -> bool:
    """Return whether a possible secret is a name in Python code, after a comma: `import
    T5Tokenizer, T5Model`."""
    if not path.endswith((".py", ".ipynb")):
        return False
    if not re.fullmatch(rb"[A-Za-z_]\w*", text[start:end]):
        return False
    before = text[max(0, start - 80) : start]
    return before.rstrip().endswith(b",")


def _is_allowed(
    allowed: Allowed, match: re.Match[bytes], secret: bytes, path: str, rule: SecretForm
) -> bool:
    """Return whether the conditions of `allowed` hold for a match of a rule. Empty conditions do
    not count."""
    verdicts = []
    if allowed.regexes:
        text = secret
        if allowed.target == "match":
            text = _whole_match(rule, match)
        elif allowed.target == "line":
            text = _line_of(match)
        verdicts.append(any(compile_bytes(regex).search(text) for regex in allowed.regexes))
    if allowed.paths:
        verdicts.append(any(re.search(regex, path) for regex in allowed.paths))
    if allowed.stopwords:
        lowered = secret.lower()
        verdicts.append(any(word in lowered for word in allowed.stopwords))
    return all(verdicts) if allowed.all else any(verdicts)


def _whole_match(rule: SecretForm, match: re.Match[bytes]) -> bytes:
    """Return the whole match and not only the secret in it. For a rule with `prefix`, include the
    rest of a name that ends directly before the match."""
    if not rule.prefix:
        return match[0]
    start = match.start()
    name_before = compile_bytes(r"[\w.-]{0,50}\Z")
    before = name_before.search(match.string, max(0, start - 50), start)
    return (before[0] if before else b"") + match[0]


def _line_of(match: re.Match[bytes]) -> bytes:
    """Return the whole line of a match, or its lines."""
    text = match.string
    start = text.rfind(b"\n", 0, match.start()) + 1
    end = text.find(b"\n", match.end())
    return text[start:end] if end >= 0 else text[start:]


def looks_random(secret: bytes) -> bool:
    """Return whether a value contains a digit and a letter, and no word that marks an example, such
    as `placeholder`."""
    has_both = re.search(rb"[0-9]", secret) and re.search(rb"[A-Za-z]", secret)
    return bool(has_both) and not compile_bytes(_NO_SECRET).search(secret)


def bits_per_letter(text: bytes) -> float:
    """Return the Shannon entropy in bits per byte: 0 for `aaaa`, 4 for random hexadecimal digits, 6
    for random base64."""
    bits = 0.0
    for count in Counter(text).values():
        share = count / len(text)
        bits -= share * math.log2(share)
    return bits
