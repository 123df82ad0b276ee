"""Write the generated documents below docs/.

reference/rules.md and its pages come from the rules and errors, reference/cli.md from the command line,
reference/settings.md from the targets' models, reference/fields.md from their tables of fields, assets/picture.svg from
the tutorial, assets/chart.svg from the measurements, and the outputs of commands in README.md and in the pages of
tools/generate/pages.py from these commands.

python tools/docs.py            write them
python tools/docs.py --check    exit code 1 when one is out of date
"""

from __future__ import annotations

import re
import sys
from functools import partial
from pathlib import Path
from textwrap import wrap
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent / "generate"))

from chart import chart
from cli_docs import document as cli_page
from fields_docs import document as fields_page
from pages import PAGES as WITH_OUTPUTS
from pages import readme, update
from picture import picture
from settings_docs import document as settings_page

from cloudtrain.job.problems import error_codes
from cloudtrain.rules.engine import Rule, all_rules
from cloudtrain.system.plugins import PORTABLE
from cloudtrain.targets.registry import all_targets

DOCS = Path(__file__).parent.parent / "docs"


class Family(NamedTuple):
    """Rules with one prefix, or the errors that come before any rule looks. They have a page of their own."""

    page: str
    title: str
    entries: tuple[Entry, ...]


class Entry(NamedTuple):
    """What a page says of a rule or an error."""

    code: str
    level: str
    title: str
    text: str

    @property
    def heading(self) -> str:
        """The heading of the entry, from which the anchor of a link is made."""
        return f"{self.code} · {self.title}"


def families() -> list[Family]:
    """Return the portable rules, those of the targets in the order of all lists, and the errors."""
    own = [
        (target.prefix, target.name, f"{target.title[0].upper()}{target.title[1:]}")
        for target in all_targets()
    ]
    found = []
    for prefix, name, title in [(PORTABLE, "portable", "Every target"), *own]:
        entries = tuple(_rule(rule) for rule in all_rules() if rule.code.startswith(prefix))
        if entries:
            found.append(Family(f"rules-{name}.md", title, entries))
    errors = tuple(
        Entry(
            error.code, "error", error.summary.rstrip("."), "\n".join(wrap(error.explanation, 118))
        )
        for error in error_codes().values()
    )
    return [*found, Family("errors.md", "Errors before any rule", errors)]


def _rule(rule: Rule) -> Entry:
    return Entry(rule.code, rule.level, rule.summary.rstrip("."), rule.explanation)


def rules_page() -> str:
    """Return the list of all rules and errors, with links to what their pages say."""
    lines = [
        "# Rules and errors",
        "",
        "`cloudtrain explain CODE` prints one of these. An error stops a submit, a warning does not. `--ignore CODE`",
        "silences either, where it is a judgement. Rules about `max_cost`, and about what a run needs, such as",
        "a role, credentials or PyTorch, cannot be ignored; nor can the errors at the end, which come before any rule looks.",
    ]
    for family in families():
        lines += ["", f"## {family.title}", "", "| code | level | what is wrong |", "|---|---|---|"]
        lines += [
            f"| [{entry.code}]({family.page}#{_anchor(entry.heading)}) | {entry.level} | {entry.title} |"
            for entry in family.entries
        ]
    return "\n".join(lines) + "\n"


def family_page(family: Family) -> str:
    """Return the page of a family."""
    lines = [f"# {family.title}", "", "[All rules and errors](rules.md)"]
    for entry in family.entries:
        level = [] if family.page == "errors.md" else [f"*{entry.level}*", ""]
        lines += ["", f"## {entry.heading}", "", *level, entry.text]
    return "\n".join(lines) + "\n"


def _anchor(heading: str) -> str:
    """Return the anchor of a heading, in GitHub's spelling, which is the site's too."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


PAGES = {
    "reference/rules.md": rules_page,
    **{f"reference/{family.page}": partial(family_page, family) for family in families()},
    "reference/cli.md": cli_page,
    "reference/settings.md": settings_page,
    "reference/fields.md": fields_page,
    "assets/picture.svg": picture,
    "assets/chart.svg": chart,
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
