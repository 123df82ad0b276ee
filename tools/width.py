"""Find lines of code in the documents that a page of the site cuts off.

python tools/width.py       prints them; exit code 1 if there are any

A block shows 82 columns. The site wraps longer lines of code and of outputs; a command with a comment becomes
unreadable when it is wrapped, and loses the comment elsewhere.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
COLUMNS = 82
BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Wide(NamedTuple):
    """A line that is too long, and where it stands."""

    file: Path
    line: int
    text: str


def documents() -> list[Path]:
    """Return the pages of the site."""
    folders = ("*.md", "docs/*.md", "examples/*.md", "training_scripts/*/*.md")
    return sorted(page for pattern in folders for page in ROOT.glob(pattern) if page.name != "CHANGELOG.md")


def wide_lines(page: str, file: Path) -> Iterator[Wide]:
    """Yield the lines of a page's blocks that are too long."""
    for block in BLOCK.finditer(page):
        first = page.count("\n", 0, block.start(2)) + 1
        for number, line in enumerate(block[2].splitlines()):
            is_command = block[1] in ("", "sh", "bash") or (block[1] == "console" and line.startswith("$ "))
            if len(line) > COLUMNS and is_command and re.search(r"\s# ", line):
                yield Wide(file, first + number, line)


if __name__ == "__main__":
    found = [wide for file in documents() for wide in wide_lines(file.read_text("utf-8"), file.relative_to(ROOT))]
    for wide in found:
        print(f"{wide.file}:{wide.line}: {wide.text}")
    print(f"{len(found)} lines over {COLUMNS} columns", file=sys.stderr)
    sys.exit(1 if found else 0)
