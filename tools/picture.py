"""Draw the README's picture: three commands of the tutorial in a terminal, as the tutorial's test has seen them.

`python tools/docs.py` writes docs/picture.svg. It is dark where the reader's browser is, and light where that is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import escape

PAGE = Path(__file__).parent.parent / "docs" / "tutorial.md"

COMMANDS = (
    "cloudtrain check job.yaml --set distribution.type=torhc",
    "cloudtrain plan job.yaml --target sagemaker --short",
    "cloudtrain rehearse job.yaml --nproc 2 --grace-period 2m",
)

COLORS = {  # of light and dark paper
    "paper": ("#ffffff", "#0d1117"),
    "frame": ("#d1d9e0", "#3d444d"),
    "text": ("#1f2328", "#e6edf3"),
    "command": ("#0550ae", "#79c0ff"),
    "dim": ("#59636e", "#9198a1"),
    "good": ("#116329", "#56d364"),
    "bad": ("#b3121d", "#ff7b72"),
}

WORDS = (
    (r"error:", "bad"),
    (r"hint:", "command"),
    (r"  verdict .*", "good"),
    (r"  [\w/]+( \w+)?(?=  )", "dim"),
    (r"\d of \d:", "dim"),
)
"""Beginnings of lines that get a colour."""

LINE, CHARACTER, MARGIN = 20, 8.43, 20  # pixels


def picture() -> str:
    """Return the SVG."""
    lines = [line for command in COMMANDS for line in (*_shown(PAGE.read_text("utf-8"), command), "")][:-1]
    width = round(max(map(len, lines)) * CHARACTER) + 2 * MARGIN
    height = len(lines) * LINE + 2 * MARGIN
    light, dark = (" ".join(f".{name}{{fill:{shades[index]}}}" for name, shades in COLORS.items()) for index in (0, 1))
    rows, color = [], "text"
    for number, line in enumerate(lines):
        color = color if line.startswith(" " * 8) else "good" if line.startswith("  verdict") else "text"
        rows.append(f'<text y="{MARGIN + LINE * number + 14}" xml:space="preserve">{_colored(line, color)}</text>')
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        "<title>cloudtrain finds a mistake, plans a SageMaker job and rehearses an interruption</title>",
        "<style>",
        "text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace}",
        light,
        f"@media (prefers-color-scheme:dark){{{dark}}}",
        "</style>",
        f'<rect class="frame" width="{width}" height="{height}" rx="8"/>',
        f'<rect class="paper" x="1" y="1" width="{width - 2}" height="{height - 2}" rx="7"/>',
        *rows,
        "</svg>",
        "",
    ])  # fmt: skip


def _shown(page: str, command: str) -> Iterator[str]:
    """Yield a command and its output, as they stand on the page."""
    found = re.search(rf"^\$ {re.escape(command)}\n((?!```|\$ ).*\n)*", page, re.MULTILINE)
    if found is None:
        raise SystemExit(f"docs/tutorial.md does not run `{command}`")
    yield from found[0].splitlines()


def _colored(line: str, color: str) -> str:
    """Return a line as SVG text, every character in its column. `color` applies where no rule colors the text."""
    if line.startswith("$ "):
        return _span("$ ", "dim", 0) + _span(line[2:], "command", 2)
    for pattern, start in WORDS:
        if match := re.match(pattern, line):
            return _span(match[0], start, 0) + _span(line[match.end() :], color, match.end())
    return _span(line, color, 0)


def _span(text: str, color: str, column: int) -> str:
    if not text:
        return ""
    place = f'x="{MARGIN + column * CHARACTER:g}" textLength="{len(text) * CHARACTER:g}"'
    return f'<tspan class="{color}" {place}>{escape(text)}</tspan>'


if __name__ == "__main__":
    print(picture(), end="")
