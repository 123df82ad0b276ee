"""A document as HTML for notebooks: one `div` with its own style, readable on light and dark themes, all escaped."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from cloudtrain.render.document import Block, Cell, Command, Document, Heading, Lines, Notice, Pairs, Table, Text
from cloudtrain.render.layout import LEVEL_STYLE
from cloudtrain.render.wrap import literals, visible

if TYPE_CHECKING:
    from cloudtrain.states import RunStatus

_STYLE = """<style>
.cloudtrain{font-size:13px;line-height:1.5;max-width:60em}
.cloudtrain h4{margin:.9em 0 .2em;font-size:1.05em}
.cloudtrain table{border-collapse:collapse;margin:.3em 0}
.cloudtrain td,.cloudtrain th{text-align:left;vertical-align:top;padding:.15em 1.2em .15em 0}
.cloudtrain th{font-weight:normal;opacity:.65}
.cloudtrain pre{margin:.3em 0;padding:.5em .7em;overflow:auto;max-height:24em;border:1px solid rgba(128,128,128,.35)}
.cloudtrain .ct-notice{margin:.5em 0;padding:.2em .8em;border-left:3px solid currentColor}
.cloudtrain .ct-place{opacity:.65;font-family:monospace}
.cloudtrain .ct-strong{font-weight:bold}.cloudtrain .ct-dim{opacity:.65}
.cloudtrain .ct-good{color:#1a7f37}.cloudtrain .ct-bad{color:#cf222e}
.cloudtrain .ct-warn{color:#9a6700}.cloudtrain .ct-info{color:#0969da}
</style>"""


def to_html(document: Document) -> str:
    """The document as one `<div class="cloudtrain">`. Nothing in it is fetched from anywhere."""
    body = "\n".join(_BLOCKS[type(block)](block) for block in document.blocks)
    return f'<div class="cloudtrain">\n{_STYLE}\n{body}\n</div>\n'


def run_html(name: str, ref: str, status: RunStatus) -> str:
    """A run in a notebook."""
    from cloudtrain.render.status import run_document

    return to_html(run_document(name, ref, status))


def _heading(block: Heading) -> str:
    return f"<h4>{_inline(block.text)}</h4>"


def _text(block: Text) -> str:
    return f"<p>{_inline(block.text)}</p>"


def _pairs(block: Pairs) -> str:
    rows = "".join(f"<tr><th>{_escape(label)}</th><td>{_cell(value)}</td></tr>" for label, value in block.rows)
    return f"<table>{rows}</table>"


def _table(block: Table) -> str:
    head = "".join(f"<th>{_escape(header)}</th>" for header in block.headers)
    rows = "".join("<tr>" + "".join(f"<td>{_cell(cell)}</td>" for cell in row) + "</tr>" for row in block.rows)
    return f"<table><tr>{head}</tr>{rows}</table>"


def _lines(block: Lines) -> str:
    return _pre(block.lines)


def _command(block: Command) -> str:
    variables = [f"  {name}={value}" for name, value in block.variables]
    return _pre([f"$ {shlex.join(block.argv)}", *variables])


def _notice(block: Notice) -> str:
    code = f" [{_escape(block.code)}]" if block.code else ""
    style = LEVEL_STYLE.get(block.level, "")
    parts = [f'<span class="ct-{style}">{_escape(block.level)}:</span> {_inline(block.message)}{code}']
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
    if isinstance(cell, str):
        return _inline(cell)
    return f'<span class="ct-{cell.style}">{_inline(cell.text)}</span>' if cell.style else _inline(cell.text)


def _inline(text: str) -> str:
    """Escaped text, its backticked literals as code."""
    return "".join(
        f"<code>{_escape(span.text[1:-1])}</code>" if span.style == "code" else _escape(span.text)
        for span in literals(text)
    )


def _escape(text: str) -> str:
    return escape(visible(text))


_BLOCKS: dict[type[Block], Callable[[Any], str]] = {
    Heading: _heading,
    Text: _text,
    Pairs: _pairs,
    Table: _table,
    Lines: _lines,
    Command: _command,
    Notice: _notice,
}
