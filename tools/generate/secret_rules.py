"""Write what secrets look like, from the rules of gitleaks that the installed maskerlogger carries.

python tools/generate/secret_rules.py            write cloudtrain/code/secret_rules.json
python tools/generate/secret_rules.py --check    exit code 1 when that file is not what the package says
python tools/generate/secret_rules.py FILE       write it from a gitleaks.toml, to compare another version of the rules

The rules are data, under the MIT licence (LICENSE.gitleaks, beside the file). gitleaks is a Go program and has no
package for Python; maskerlogger is one that keeps a copy of its rules. Go's regular expressions become Python's.
"""

from __future__ import annotations

import json
import re
import sys
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from written import write_or_check

DATA = Path(__file__).parents[2] / "cloudtrain" / "code"
TARGET = DATA / "secret_rules.json"

LEFT_OUT = {
    "private-key": "it also finds code that names both ends of a key; cloudtrain's own rule wants the key between them",
    "kubernetes-secret-yaml": "Python's `re` would try for minutes where Go's does not; cloudtrain has its own",
    "pkcs12-file": "a rule about names; names are looked at before the content",
}

UNCERTAIN = re.compile(
    r"generic-api-key|curl-auth-(header|user)|hashicorp-tf-password|jwt|jwt-base64|"
    r"mapbox-api-token|.*-(client|access)-id|.*-pub(lic)?-key"
)
"""Rules that often match ordinary text: generic ones, tokens that examples show, and identifiers."""

PREFIX = r"[\w.-]{0,50}?"
"""The beginning of most rules. It matches nothing that the rest needs, and makes Python's `re` try fifty ways at every
letter."""


def document(source: Path, name: str) -> str:
    """Return the whole file."""
    found = _toml(source)
    rules = [_rule(rule) for rule in found["rules"] if rule["id"] not in LEFT_OUT]
    allowed = found["allowlist"]
    head = {
        "source": name,
        "licence": "MIT, see LICENSE.gitleaks",
        "allowed": [_python(text) for text in allowed["regexes"]],
        "stopwords": allowed["stopwords"],
    }
    lines = [
        json.dumps(rule, separators=(",", ":"))
        for rule in sorted(rules, key=lambda rule: rule["id"])
    ]
    return f'{json.dumps(head)[:-1]},"rules":[\n' + ",\n".join(lines) + "\n]}\n"


def _toml(source: Path) -> dict[str, Any]:
    try:
        import tomllib
    except ImportError:
        import tomli as tomllib
    return tomllib.loads(source.read_text("utf-8"))


def _rule(rule: dict[str, Any]) -> dict[str, Any]:
    expression = _python(rule["regex"])
    bare = re.sub(rf"^((?:\(\?i:?\)?)?){re.escape(PREFIX)}", r"\1", expression)
    has_prefix = bare != expression
    entry = {
        "id": rule["id"],
        "regex": re.sub(rf"^(\(\?i:){re.escape(PREFIX)}", r"\1", bare),  # some say it twice
        "keywords": sorted({word.lower() for word in rule["keywords"]}),
    }
    if has_prefix:
        entry["prefix"] = True
    for field in ("entropy", "path", "secretGroup"):
        if field in rule:
            entry[field] = rule[field]
    if UNCERTAIN.fullmatch(rule["id"]):
        entry["uncertain"] = True
    allowed = [_allowed(item) for item in rule.get("allowlists", ())]
    return entry | ({"allowed": allowed} if allowed else {})


def _allowed(item: dict[str, Any]) -> dict[str, Any]:
    known = {"description", "regexes", "regexTarget", "stopwords", "paths", "condition"}
    assert item.keys() <= known, f"gitleaks has new fields: {item.keys() - known}"
    entry: dict[str, Any] = {}
    if "regexes" in item:
        entry["regexes"] = [_python(text) for text in item["regexes"]]
        entry["target"] = item.get("regexTarget", "secret")
    if "paths" in item:
        entry["paths"] = [_python(text) for text in item["paths"]]
    if "stopwords" in item:
        entry["stopwords"] = item["stopwords"]
    if item.get("condition") == "AND":
        entry["all"] = True
    return entry


def _python(expression: str) -> str:
    """Convert a regular expression of Go (RE2) to Python: `(?i)` in the middle applies to the end of its group."""
    expression = expression.replace(r"\z", r"\Z").replace("[[:alnum:]]", "[a-zA-Z0-9]")
    parts: list[str] = []
    opened = [0]
    in_set = False
    index = 0
    while index < len(expression):
        letter = expression[index]
        width = 2 if letter == "\\" else 1
        if in_set:
            in_set = letter != "]"
            letter = "\\[" if letter == "[" else letter
        elif letter == "[":
            in_set = True
        elif index and expression.startswith("(?i)", index):
            letter, width = "(?i:", 4
            opened[-1] += 1
        elif letter == "(":
            opened.append(0)
        elif letter == ")":
            letter = ")" * opened.pop() + ")"
        parts.append(expression[index : index + 2] if letter == "\\" else letter)
        index += width
    text = "".join(parts) + ")" * opened.pop()
    re.compile(text.encode())
    return text


def main() -> int:
    """Write or check the file."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--check"]
    if arguments:
        text = document(Path(arguments[0]), Path(arguments[0]).name)
    else:
        package = distribution("maskerlogger")
        source = Path(str(package.locate_file("maskerlogger/config/gitleaks.toml")))
        text = document(source, f"gitleaks' rules, as in maskerlogger {package.version}")
    return write_or_check(TARGET, text, __file__)


if __name__ == "__main__":
    sys.exit(main())
