"""Draw the README's picture: the loss of the tutorial's run, above what `rehearse` says of an interruption.

`python tools/docs.py` writes docs/assets/picture.svg from the outputs in docs/start/tutorial.md, which the tutorial's test compares
with what the commands print. The picture is dark where the reader's browser is, and light where that is. It has at most
62 columns and 18 lines, so that it can be read on a phone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import wrap
from xml.sax.saxutils import escape

PAGE = Path(__file__).parents[2] / "docs" / "start" / "tutorial.md"

TRAINING = "cloudtrain submit job.yaml --nproc 1"
REHEARSAL = "cloudtrain rehearse job.yaml --nproc 2 --grace-period 2m"

COLORS = {  # of light and dark paper
    "paper": ("#ffffff", "#0d1117"),
    "frame": ("#d1d9e0", "#3d444d"),
    "text": ("#1f2328", "#e6edf3"),
    "command": ("#0550ae", "#79c0ff"),
    "dim": ("#59636e", "#9198a1"),
    "good": ("#116329", "#56d364"),
}

COLUMNS, LINES, CURVE = 62, 18, 7
"""The size of the picture in characters, and how many of the lines the curve has."""

LABEL = 13
"""Columns of the words at the left of the verdict."""

LINE, CHARACTER, MARGIN = 20, 8.43, 16  # pixels


def picture() -> str:
    """Return the SVG."""
    page = PAGE.read_text("utf-8")
    width = round(COLUMNS * CHARACTER) + 2 * MARGIN
    drawn = [*_command(TRAINING, 0), *_curve(_shown(page, TRAINING))]
    verdict = [*_verdict(_shown(page, REHEARSAL))]
    first = CURVE + 2
    drawn += _command(REHEARSAL, first)
    for number, (label, text) in enumerate(verdict, start=first + 1):
        color = (
            "good" if any(name == "verdict" for name, _ in verdict[: number - first]) else "text"
        )
        drawn.append(_text(label, "dim", 0, number) + _text(text, color, LABEL, number))
    lines = first + 1 + len(verdict)
    assert lines <= LINES, lines
    height = lines * LINE + 2 * MARGIN
    light, dark = (
        " ".join(f".{name}{{fill:{shades[index]}}}" for name, shades in COLORS.items())
        for index in (0, 1)
    )
    stroke = [f".line{{stroke:{shade};fill:none;stroke-width:2.5}}" for shade in COLORS["command"]]
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        "<title>A loss goes down, and a rehearsed interruption changes none of its values</title>",
        "<style>",
        "text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace}",
        light + stroke[0],
        f"@media (prefers-color-scheme:dark){{{dark}{stroke[1]}}}",
        "</style>",
        f'<rect class="frame" width="{width}" height="{height}" rx="8"/>',
        f'<rect class="paper" x="1" y="1" width="{width - 2}" height="{height - 2}" rx="7"/>',
        *drawn,
        "</svg>",
        "",
    ])  # fmt: skip


def _shown(page: str, command: str) -> str:
    """Return the output of a command, as it stands on the page."""
    found = re.search(rf"^\$ {re.escape(command)}\n(((?!```|\$ ).*\n)*)", page, re.MULTILINE)
    if found is None:
        raise SystemExit(f"docs/start/tutorial.md does not run `{command}`")
    return found[1]


def _command(command: str, line: int) -> Iterator[str]:
    yield _text("$", "dim", 0, line) + _text(command, "command", 2, line)


def _curve(output: str) -> Iterator[str]:
    """Yield the curve of the losses that a run has printed, with its two ends as text."""
    points = [
        (int(step), float(loss))
        for step, loss in re.findall(r"step=(\d+) .*?loss=([\d.]+)", output)
    ]
    (first, high), (last, low) = points[0], points[-1]
    low = min(loss for _, loss in points)
    left, right = LABEL * CHARACTER + MARGIN, (COLUMNS - 12) * CHARACTER + MARGIN
    top, bottom = MARGIN + 1.6 * LINE, MARGIN + (CURVE + 0.4) * LINE
    places = [
        (
            left + (right - left) * (step - first) / (last - first),
            top + (bottom - top) * (high - loss) / (high - low),
        )
        for step, loss in points
    ]
    yield f'<polyline class="line" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in places)}"/>'
    yield from (f'<circle class="command" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>' for x, y in places)
    yield _text(f"loss {high:.2f}", "dim", 2, 1)
    ends = round((places[-1][1] - MARGIN) / LINE - 0.5)
    yield _text(f"{points[-1][1]:.2f}", "text", COLUMNS - 11, ends)
    yield _text(f"step {last}", "dim", COLUMNS - 11, ends - 1)


def _verdict(output: str) -> Iterator[tuple[str, str]]:
    """Yield label and text of each line of the verdict, in the picture's width."""
    rows = re.findall(r"^  (\w+)  +(.*(?:\n {8,}.*)*)", output, re.MULTILINE)
    for label, text in rows:
        short = re.sub(r"tiny-gpt-rehearsal-[0-9a-f]{8}-\d: ", "", " ".join(text.split()))
        for number, part in enumerate(wrap(short, COLUMNS - LABEL)):
            yield "" if number else label, part


def _text(text: str, color: str, column: int, line: int) -> str:
    if not text:
        return ""
    assert column + len(text) <= COLUMNS, text
    place = f'x="{MARGIN + column * CHARACTER:g}" y="{MARGIN + LINE * line + 14}"'
    length = f'textLength="{len(text) * CHARACTER:.2f}"'
    return f'<text class="{color}" {place} {length} xml:space="preserve">{escape(text)}</text>'


if __name__ == "__main__":
    print(picture(), end="")
