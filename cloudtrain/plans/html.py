"""A document as HTML for notebooks: one `div` with its own style for light and dark themes. All
text is escaped."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudtrain.errors import CloudtrainError, MissingExtra
from cloudtrain.plans.chart import picture_of
from cloudtrain.plans.document import (
    LEVEL_STYLE,
    Block,
    Cell,
    CommandLine,
    Document,
    Heading,
    Lines,
    Notice,
    Pairs,
    Section,
    Table,
    Text,
    as_span,
    literals,
    shell_word,
    visible,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLE = f"<style>\n{Path(__file__).with_name('notebook.css').read_text('utf-8')}</style>"
"""JupyterLab styles the content of cells: tables are right-aligned and striped, with equal columns.
The repeated class overrides these rules, and those of a site made with Material for MkDocs. Colours
are those of the JupyterLab or VS Code theme, if there is one."""

_LEFT = ' align="left" style="text-align:left"'
"""Of each cell: JupyterLab removes `_STYLE` from a notebook that you have not run, and GitHub all
styles."""


def to_html(document: Document) -> str:
    """Return the document as one `<div class="cloudtrain">`, which loads no external files."""
    return f'<div class="cloudtrain">\n{_STYLE}\n{_body(document.blocks)}\n</div>\n'


def picture(draw: Callable[[], Figure], words: str) -> str:
    """Return a figure as an image, whose styles have no effect on the page. `words` are read out
    instead of it. Without matplotlib, return what to install; if there is nothing to draw or it
    cannot be read, return an empty text."""
    try:
        svg = picture_of(draw(), "svg")
    except MissingExtra as error:
        return to_html(Document([Notice("notice", error.message, hint=error.hint)]))
    except (CloudtrainError, OSError):
        return ""
    data = b64encode(svg).decode()
    return f'<img alt="{_escape(words)}" src="data:image/svg+xml;base64,{data}">\n'


def _body(blocks: Sequence[Block]) -> str:
    return "\n".join(_BLOCKS[type(block)](block) for block in blocks)


def _pairs(block: Pairs) -> str:
    rows = ""
    for label, value in block.rows:
        header = f"<th{_LEFT}>{_escape(label)}</th>"
        rows += f"<tr>{header}<td{_LEFT}>{_cell(value)}</td></tr>"
    return f"<table>{rows}</table>"


def _table(block: Table) -> str:
    rows = "<tr>"
    for header in block.headers:
        rows += f"<th{_LEFT}>{_escape(header)}</th>"
    rows += "</tr>"
    for row in block.rows:
        rows += "<tr>"
        for cell in row:
            rows += f"<td{_LEFT}>{_cell(cell)}</td>"
        rows += "</tr>"
    return f"<table>{rows}</table>"


def _command(block: CommandLine) -> str:
    words = " ".join(map(shell_word, block.argv))
    lines = [f"$ {words}"]
    for name, value in block.variables:
        lines.append(f"  {name}={value}")
    return _pre(lines)


def _section(block: Section) -> str:
    title = _inline(block.title)
    return f"<details><summary>{title}</summary>\n{_body(block.blocks)}\n</details>"


def _notice(block: Notice) -> str:
    style = LEVEL_STYLE.get(block.level, "")
    label = f'<span class="ct-{style}">{_escape(block.level)}:</span>'
    text = f"{label} {_inline(block.message)}"
    if block.code:
        text += f" [{_escape(block.code)}]"
    if block.place:
        text += f'<div class="ct-place">{_escape(block.place)}</div>'
    if block.details:
        text += _pre(block.details)
    if block.hint:
        text += f'<div><span class="ct-info">hint:</span> {_inline(block.hint)}</div>'
    return f'<div class="ct-notice">{text}</div>'


def _pre(lines: Sequence[str]) -> str:
    text = "\n".join(lines)
    return f"<pre>{_escape(text)}</pre>"


def _cell(cell: Cell) -> str:
    span = as_span(cell)
    text = _inline(span.text).replace("\n", "<br/>")
    if not span.style:
        return text
    return f'<span class="ct-{span.style}">{text}</span>'


def _inline(text: str) -> str:
    """Return the text escaped for HTML, with its backticked literals as `<code>`."""
    parts = []
    for span in literals(text):
        if span.style == "code":
            parts.append(f"<code>{_escape(span.text[1:-1])}</code>")
        else:
            parts.append(_escape(span.text))
    return "".join(parts)


def _escape(text: str) -> str:
    return escape(visible(text))


_BLOCKS: dict[type[Block], Callable[[Any], str]] = {
    Heading: lambda block: f"<h4>{_inline(block.text)}</h4>",
    Text: lambda block: f"<p>{_inline(block.text)}</p>",
    Pairs: _pairs,
    Table: _table,
    Lines: lambda block: _pre(block.lines),
    CommandLine: _command,
    Notice: _notice,
    Section: _section,
}
