"""Find lines of code that a page of the site cuts off, or that become unreadable when they wrap.

python tools/site/width.py               lines over 82 columns in the documents; exit code 1 if there are any
python tools/site/width.py build/site    what Chromium cuts off or scrolls sideways in the pages, on a screen and on
                                         a phone, where wide tables may scroll

A block shows 82 columns. What a program prints may be wider: the site makes its letters smaller, and a phone wraps it.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
COLUMNS = 82
OUTPUTS = ("text", "json", "console")
QUOTES = "adding-a-target.md"
"""Shows the files of a package as they are."""
BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)

MEASURE = Path(__file__).with_name("width.html").read_text("utf-8")


class Wide(NamedTuple):
    """A line that is too long, and where it stands."""

    file: Path
    line: int
    text: str


def documents() -> list[Path]:
    """Return the pages of the site."""
    folders = ("*.md", "docs/*/*.md", "examples/*.md", "training_scripts/*/*.md")
    files = {page for pattern in folders for page in ROOT.glob(pattern)}
    return sorted(page for page in files if page.name not in ("CHANGELOG.md", QUOTES))


def wide_lines(page: str, file: Path) -> Iterator[Wide]:
    """Yield the lines of a page's blocks that are too long, but for outputs: `text`, `json`, and what follows a `$`."""
    for block in BLOCK.finditer(page):
        first = page.count("\n", 0, block.start(2)) + 1
        goes_on = False
        for number, line in enumerate(block[2].splitlines()):
            typed = block[1] not in OUTPUTS or line.startswith("$ ") or goes_on
            goes_on = typed and line.endswith("\\")
            if typed and len(line) > COLUMNS:
                yield Wide(file, first + number, line)


def on_page_content(content: str, **_: Any) -> str:
    """Mark what is wider than a block, and words of code, for the style sheet; mkdocs calls this for each page."""

    def marked(block: re.Match[str]) -> str:
        widest = max(map(len, html.unescape(re.sub(r"<[^>]*>", "", block[0])).splitlines()))
        return block[0].replace(' class="', ' class="wide ', 1) if widest > COLUMNS else block[0]

    content = re.sub(r"<code>(?=[^<\n]{1,20}</code>)", '<code class="short">', content)
    return re.sub(r'<div class="[^"]*\bhighlight">.*?</div>', marked, content, flags=re.DOTALL)


def cut_off(site: Path, browser: str) -> list[str]:
    """Return what is wider than its box in the pages of a built site."""
    pages = json.dumps(sorted(page.resolve().as_uri() for page in site.rglob("*.html")))
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "measure.html").write_text(MEASURE.replace("PAGES", pages), "utf-8")
        options = f"--headless --no-sandbox --disable-gpu --allow-file-access-from-files --user-data-dir={folder}/profile"
        argv = [
            browser,
            *options.split(),
            "--virtual-time-budget=10000000",
            "--dump-dom",
            f"{folder}/measure.html",
        ]
        shown = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    found: list[str] = json.loads(html.unescape(re.sub(r"<[^>]*>", "", shown)))
    return found


def main() -> int:
    """Print what is found."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if sys.argv[1:] and not browser:
        print("no Chromium is here to look for blocks that are cut off", file=sys.stderr)
        return 0
    if browser and sys.argv[1:]:
        found = cut_off(Path(sys.argv[1]), browser)
    else:
        files = [(file, file.read_text("utf-8")) for file in documents()]
        wide = [one for file, page in files for one in wide_lines(page, file.relative_to(ROOT))]
        found = [f"{one.file}:{one.line}: {one.text}" for one in wide]
    print(*found, sep="\n", end="\n" * bool(found))
    print(f"{len(found)} lines or blocks are too wide", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
