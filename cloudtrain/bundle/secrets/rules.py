"""The rules that find secrets: gitleaks' rules, and cloudtrain's additional rules.

gitleaks' rules are data (`data/secret_rules.json`, written by `tools/gen_secret_rules.py`). They recognize the tokens
of about two hundred services, with very few false positives. `own_rules.py` adds rules for other secrets. Rules are
read and compiled on first use.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from cloudtrain.bundle.secrets.own_rules import OWN_RULES
from cloudtrain.bundle.secrets.rule import Allowed, Rule

_FILE = Path(__file__).parent / "data" / "secret_rules.json"


class RuleSet(NamedTuple):
    """All rules. `allowed` describes the matches that no rule reports."""

    rules: tuple[Rule, ...]
    by_keyword: Mapping[bytes, tuple[Rule, ...]]
    allowed: Allowed


@cache
def rule_set() -> RuleSet:
    """Return all rules, and an index of them by keyword: a rule can match only texts with one of its keywords."""
    data = json.loads(_FILE.read_bytes())
    rules = (*(_rule(item) for item in data["rules"]), *OWN_RULES)
    index: dict[bytes, list[Rule]] = {}
    for rule in rules:
        for keyword in rule.keywords:
            index.setdefault(keyword, []).append(rule)
    stopwords = tuple(word.encode() for word in data["stopwords"])
    allowed = Allowed(tuple(data["allowed"]), stopwords=stopwords)
    return RuleSet(rules, {word: tuple(found) for word, found in index.items()}, allowed)


def _rule(item: Mapping[str, object]) -> Rule:
    fields: dict[str, object] = {
        "id": item["id"],
        "regex": item["regex"],
        "keywords": tuple(str(word).encode() for word in _list(item["keywords"])),
        "certain": not item.get("uncertain", False),
        "entropy": item.get("entropy", 0.0),
        "path": item.get("path"),
        "group": item.get("secretGroup", 0),
        "prefix": item.get("prefix", False),
        "allowed": tuple(_parse_allowed(each) for each in _list(item.get("allowed", []))),
    }
    return Rule(**fields)  # type: ignore[arg-type] # the file is written by our own tool


def _parse_allowed(item: Mapping[str, object]) -> Allowed:
    return Allowed(
        tuple(map(str, _list(item.get("regexes", [])))),
        str(item.get("target", "secret")),
        tuple(map(str, _list(item.get("paths", [])))),
        tuple(str(word).encode() for word in _list(item.get("stopwords", []))),
        bool(item.get("all", False)),
    )


def _list(value: object) -> list[Mapping[str, object]]:
    assert isinstance(value, list)
    return value
