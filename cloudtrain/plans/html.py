"""A document as HTML for notebooks: one `div` with its own style for light and dark themes. All
text is escaped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any

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
    literals,
    shell_word,
    visible,
)

_STYLE = f"<style>\n{Path(__file__).with_name('notebook.css').read_text('utf-8')}</style>"
"""JupyterLab styles the content of cells: tables are right-aligned and striped, with equal columns.
The repeated class overrides these rules, and those of a site made with Material for MkDocs. Colours
are those of the JupyterLab or VS Code theme, if there is one."""

_LEFT = ' align="left" style="text-align:left"'
"""Of each cell: JupyterLab removes `_STYLE` from a notebook that you have not run, and GitHub all
styles."""


def to_html(document: Document) -> str:
    """Return the document as one `<div class="cloudtrain">`, which loads no external files."""
    body = "\n".join(_BLOCKS[type(block)](block) for block in document.blocks)
    return f'<div class="cloudtrain">\n{_STYLE}\n{body}\n</div>\n'


def _pairs(block: Pairs) -> str:
    rows = "".join(
        f"<tr><th{_LEFT}>{_escape(label)}</th><td{_LEFT}>{_cell(value)}</td></tr>"
        for label, value in block.rows
    )
    return f"<table>{rows}</table>"


def _table(block: Table) -> str:
    head = "".join(f"<th{_LEFT}>{_escape(header)}</th>" for header in block.headers)
    rows = "".join(
        "<tr>" + "".join(f"<td{_LEFT}>{_cell(cell)}</td>" for cell in row) + "</tr>"
        for row in block.rows
    )
    return f"<table><tr>{head}</tr>{rows}</table>"


def _command(block: CommandLine) -> str:
    variables = [f"  {name}={value}" for name, value in block.variables]
    return _pre([f"$ {' '.join(map(shell_word, block.argv))}", *variables])


def _section(block: Section) -> str:
    body = "\n".join(_BLOCKS[type(inner)](inner) for inner in block.blocks)
    return f"<details><summary>{_inline(block.title)}</summary>\n{body}\n</details>"


def _notice(block: Notice) -> str:
    code = f" [{_escape(block.code)}]" if block.code else ""
    style = LEVEL_STYLE.get(block.level, "")
    parts = [
        f'<span class="ct-{style}">{_escape(block.level)}:</span> {_inline(block.message)}{code}'
    ]
    if block.place:
        parts.append(f'<div class="ct-place">{_escape(block.place)}</div>')
    if block.details:
        parts.append(_pre(block.details))
    if block.hint:
        parts.append(f'<div><span class="ct-info">hint:</span> {_inline(block.hint)}</div>')
    return f'<div class="ct-notice">{"".join(parts)}</div>'


def _pre(lines: Sequence[str]) -> str:
    return f"<pre>{_escape(chr(10).join(lines))}</pre>"


def _cell(cell: Cell) -> str:
    text = _inline(cell if isinstance(cell, str) else cell.text).replace("\n", "<br/>")
    return (
        text
        if isinstance(cell, str) or not cell.style
        else f'<span class="ct-{cell.style}">{text}</span>'
    )


def _inline(text: str) -> str:
    """Return the text escaped for HTML, with its backticked literals as `<code>`."""
    return "".join(
        f"<code>{_escape(span.text[1:-1])}</code>" if span.style == "code" else _escape(span.text)
        for span in literals(text)
    )


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
