"""A document as plain text, as text with terminal colours, or as an object for rich."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudtrain.render.document import Document, Span, Style
from cloudtrain.render.layout import Line, layout

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

_SGR: dict[Style, str] = {
    "strong": "1", "dim": "2", "good": "32", "bad": "1;31", "warn": "33", "info": "36", "code": "36"
}  # fmt: skip
"""ECMA-48 parameters. The sixteen basic colours are readable in every theme."""

_RICH: dict[Style, str] = {
    "strong": "bold", "dim": "dim", "good": "green", "bad": "bold red", "warn": "yellow", "info": "cyan",
    "code": "cyan",
}  # fmt: skip


def to_text(document: Document, *, width: int | None = 80, color: bool = False) -> str:
    """Return the document as text that ends with a newline. `color` adds terminal colours."""
    paint = _paint_line if color else _plain
    return "".join(f"{paint(line)}\n" for line in layout(document, width))


def paint(text: str, style: Style) -> str:
    """Return `text` with terminal colours."""
    return f"\x1b[{_SGR[style]}m{text}\x1b[0m" if style and text else text


class RichDocument:
    """A document that rich can print, for example with `rich.print(plan)` or in a panel."""

    def __init__(self, document: Document) -> None:
        self.document = document

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        for line in layout(self.document, options.max_width):
            yield Text.assemble(*((text, _RICH.get(style, "")) for text, style in _trim(line)), overflow="fold")


def _plain(line: Line) -> str:
    return "".join(span.text for span in line).rstrip()


def _paint_line(line: Line) -> str:
    return "".join(paint(text, style) for text, style in _trim(line))


def _trim(line: Line) -> Line:
    """Return the line without trailing padding."""
    spans = list(line)
    while spans and not spans[-1].text.rstrip():
        spans.pop()
    return [*spans[:-1], Span(spans[-1].text.rstrip(), spans[-1].style)] if spans else []
