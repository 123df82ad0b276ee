"""Write the generated documents: docs/rules.md from the rules, docs/cli.md from the command line.

python tools/docs.py            write them
python tools/docs.py --check    exit code 1 when one is out of date
"""

from __future__ import annotations

import sys
from pathlib import Path

from gen_cli_docs import document as cli_page

from cloudtrain.checks import Rule, all_rules

DOCS = Path(__file__).parent.parent / "docs"

FAMILIES = {
    "CT": "Portable: every target",
    "LO": "Local: this machine",
    "SM": "Amazon SageMaker",
    "AZ": "Azure Machine Learning",
}


def rules_page() -> str:
    """Every rule, by family and code."""
    lines = [
        "# Preflight rules",
        "",
        "Written by `make docs` from the rules themselves. `cloudtrain explain CODE` prints one. An error stops a",
        "submit, a warning does not; `--ignore CODE` silences either.",
    ]
    for prefix, title in FAMILIES.items():
        rules = [rule for rule in all_rules() if rule.code.startswith(prefix)]
        if rules:
            lines += ["", f"## {title}"]
            lines += [line for rule in rules for line in _section(rule)]
    return "\n".join(lines) + "\n"


def _section(rule: Rule) -> list[str]:
    return ["", f"### {rule.code} ({rule.level})", "", rule.summary, "", rule.explanation]


PAGES = {"rules.md": rules_page, "cli.md": cli_page}


def main() -> int:
    """Write or check all pages."""
    stale = []
    for name, page in PAGES.items():
        file = DOCS / name
        text = page()
        if "--check" not in sys.argv[1:]:
            file.write_text(text)
        elif not file.exists() or file.read_text() != text:
            stale.append(name)
    if stale:
        print(f"out of date: {', '.join(stale)}; run `make docs`", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
