"""Write the generated documents: docs/rules.md from the rules and errors, docs/cli.md from the command line,
docs/settings.md from the targets' models, docs/picture.svg from the tutorial, docs/chart.svg from the measurements, and
the outputs of the commands in README.md and the pages of tools/pages.py.

python tools/docs.py            write them
python tools/docs.py --check    exit code 1 when one is out of date
"""

from __future__ import annotations

import sys
from pathlib import Path
from textwrap import wrap

from chart import chart
from gen_cli_docs import document as cli_page
from gen_settings_docs import document as settings_page
from pages import PAGES as WITH_OUTPUTS
from pages import readme, update
from picture import picture

from cloudtrain.job.codes import error_codes
from cloudtrain.rules.engine import Rule, all_rules
from cloudtrain.system.plugins import PORTABLE
from cloudtrain.targets.registry import all_targets

DOCS = Path(__file__).parent.parent / "docs"


def _families() -> dict[str, str]:
    """Map prefix of codes to the title of its section: the portable rules, then the targets in the order of all
    lists."""
    own = {target.prefix: f"{target.title[0].upper()}{target.title[1:]} (`{target.name}`)" for target in all_targets()}
    return {PORTABLE: "Portable: every target"} | own


def rules_page() -> str:
    """Return every rule and every error, by family and code."""
    lines = [
        "# Preflight rules and errors",
        "",
        "`cloudtrain explain CODE` prints one of these. An error stops a submit, a warning does not; `--ignore CODE`",
        "silences either, except rules about `max_cost`. The errors at the end come before any rule looks, and cannot",
        "be ignored.",
    ]
    for prefix, title in _families().items():
        rules = [rule for rule in all_rules() if rule.code.startswith(prefix)]
        if rules:
            lines += ["", f"## {title}"]
            lines += [line for rule in rules for line in _section(rule)]
    lines += ["", "## Errors"]
    for error in error_codes().values():
        lines += ["", f"### {error.code} · {error.summary.rstrip('.')}", "", *wrap(error.explanation, 118)]
    return "\n".join(lines) + "\n"


def _section(rule: Rule) -> list[str]:
    return ["", f"### {rule.code} · {rule.summary.rstrip('.')}", "", f"*{rule.level}*", "", rule.explanation]


PAGES = {
    "rules.md": rules_page,
    "cli.md": cli_page,
    "settings.md": settings_page,
    "picture.svg": picture,
    "chart.svg": chart,
    "../README.md": lambda: readme((DOCS.parent / "README.md").read_text("utf-8")),
}


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
    if "--check" not in sys.argv[1:]:
        update(WITH_OUTPUTS)  # a test compares these with what the commands print
    if stale:
        print(f"out of date: {', '.join(stale)}; run `make docs`", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
