"""Draw docs/assets/chart.svg: what `make bench` measured, beside the tools that it was measured against.

The figures, the machine and the date are those of docs/development/measurements.md, which has the output of `make bench`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import wrap
from typing import NamedTuple
from xml.sax.saxutils import escape

PAGE = Path(__file__).parents[2] / "docs" / "development" / "measurements.md"

ROWS = {
    ("plan for SageMaker", "SDK v2"): "the request for a SageMaker job",
    ("plan for Azure ML", "azure-ai-ml"): "the request for an Azure ML job",
    ("bundle 200 MB", "SDK's gzip tar"): "an archive of 200 MB of code",
    ("first step", "bare torchrun"): "the first step of a run here",
}
"""What is drawn: row and reference of the output, and what to call it."""

COLORS = {  # of light and dark paper
    "paper": ("#ffffff", "#0d1117"),
    "text": ("#1f2328", "#e6edf3"),
    "dim": ("#59636e", "#9198a1"),
    "ours": ("#0550ae", "#79c0ff"),
    "theirs": ("#afb8c1", "#484f58"),
}

WIDTH, LEFT, BAR, GROUP, TOP = 560, 140, 16, 66, 12
LONGEST = WIDTH - LEFT - 84


class Pair(NamedTuple):
    """A measured time beside its reference, in seconds."""

    title: str
    ours: float
    reference: str
    theirs: float


def pairs(page: str) -> Iterator[Pair]:
    """Yield the measured pairs of ROWS."""
    for (name, reference), title in ROWS.items():
        found = re.search(
            rf"^{re.escape(name)} +([\d.]+)s +{re.escape(reference)} +([\d.]+)s", page, re.MULTILINE
        )
        if found is None:
            raise SystemExit(
                f"docs/development/measurements.md has no row `{name}` beside `{reference}`"
            )
        yield Pair(title, float(found[1]), reference, float(found[2]))


def caption(page: str) -> str:
    """Return machine and date, as the page's first sentence has them."""
    found = re.search(r"on (\d+ cores) \((.*?)\), (\d{4}-\d\d-\d\d)", page, re.DOTALL)
    assert found
    return f"make bench, {found[3]}, {found[1]}: " + " ".join(found[2].split())


def chart() -> str:
    """Return the SVG. Each pair has a scale of its own, in which the longer bar is as long as it can be."""
    page = PAGE.read_text("utf-8")
    drawn = [*pairs(page)]
    height = TOP + len(drawn) * GROUP + 44
    light, dark = (
        " ".join(f".{name}{{fill:{shades[index]}}}" for name, shades in COLORS.items())
        for index in (0, 1)
    )
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">',
        "<title>Times of cloudtrain beside those of other tools; a short bar is good</title>",
        "<style>",
        "text{font:13px system-ui,-apple-system,'Segoe UI','DejaVu Sans',sans-serif}",
        light,
        f"@media (prefers-color-scheme:dark){{{dark}}}",
        "</style>",
        f'<rect class="paper" width="{WIDTH}" height="{height}" rx="8"/>',
    ]
    for number, pair in enumerate(drawn):
        top = TOP + number * GROUP
        lines.append(_text(pair.title, "text", LEFT, top + 12))
        longest = max(pair.ours, pair.theirs)
        for place, (name, seconds, color) in enumerate((
            ("cloudtrain", pair.ours, "ours"),
            (pair.reference, pair.theirs, "theirs"),
        )):  # fmt: skip
            y = top + 18 + place * (BAR + 3)
            length = LONGEST * seconds / longest
            lines.append(
                f'<rect class="{color}" x="{LEFT}" y="{y}" width="{length:.1f}" height="{BAR}" rx="2"/>'
            )
            lines.append(
                _text(name, "text" if color == "ours" else "dim", LEFT - 8, y + 12, anchor="end")
            )
            lines.append(_text(f"{seconds:.2f} s", "text", LEFT + round(length) + 8, y + 12))
    words = wrap(caption(page), 80)
    lines += [
        _text(text, "dim", 12, height - 10 - 16 * (len(words) - 1 - row))
        for row, text in enumerate(words)
    ]
    lines += ["</svg>", ""]
    return "\n".join(lines)


def _text(text: str, color: str, x: int, y: int, anchor: str = "start") -> str:
    return f'<text class="{color}" x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'


if __name__ == "__main__":
    print(chart(), end="")
