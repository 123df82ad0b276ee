"""A document as HTML for notebooks: one `div` with its own style for light and dark themes. All text is escaped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

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
from cloudtrain.plans.status import run_document

if TYPE_CHECKING:
    from cloudtrain.plans.states import RunStatus

_STYLE = """<style>
.cloudtrain{font-size:13px;line-height:1.5;max-width:72em}
.cloudtrain.cloudtrain h4{margin:.9em 0 .2em;font-size:1.05em;font-weight:bold}
.cloudtrain details{margin:.6em 0}
.cloudtrain details>:not(summary){margin-left:1.1em}
.cloudtrain summary{cursor:pointer;font-weight:bold}
.cloudtrain pre,.cloudtrain code,.cloudtrain .ct-place{
 font-family:var(--jp-code-font-family,var(--vscode-editor-font-family,ui-monospace,Menlo,Consolas,monospace))}
.cloudtrain.cloudtrain table{border-collapse:collapse;margin:.3em 0;table-layout:auto;border:0;font-size:inherit}
.cloudtrain.cloudtrain tbody tr:nth-child(n){background:none;border:0}
.cloudtrain.cloudtrain td,.cloudtrain.cloudtrain th{text-align:left;vertical-align:top;padding:.15em 1.2em .15em 0;
 border:0;white-space:pre-wrap;overflow-wrap:anywhere}
.cloudtrain.cloudtrain th{font-weight:normal;opacity:.65;white-space:nowrap}
.cloudtrain.cloudtrain pre{margin:.3em 0;padding:.5em .7em;overflow:auto;max-height:24em;color:inherit;
 background:none;border:1px solid rgba(128,128,128,.35);white-space:pre}
.cloudtrain.cloudtrain code{background:rgba(128,128,128,.15);color:inherit;padding:0 .25em;border-radius:3px}
.cloudtrain .ct-notice{margin:.5em 0;padding:.2em .8em;border-left:3px solid currentColor}
.cloudtrain .ct-place{opacity:.65}
.cloudtrain .ct-strong{font-weight:bold}.cloudtrain .ct-dim{opacity:.65}
.cloudtrain .ct-good{color:var(--jp-success-color0,var(--vscode-charts-green,#1a7f37))}
.cloudtrain .ct-bad{color:var(--jp-error-color1,var(--vscode-errorForeground,#cf222e))}
.cloudtrain .ct-warn{color:var(--jp-warn-color0,var(--vscode-charts-yellow,#9a6700))}
.cloudtrain .ct-info{color:var(--jp-info-color0,var(--vscode-charts-blue,#0969da))}
</style>"""
"""JupyterLab styles the content of cells: tables are right-aligned and striped, with equal columns. The doubled class
overrides these rules. Colours are those of the JupyterLab or VS Code theme, if there is one."""

_LEFT = ' style="text-align:left"'
"""The style of each cell. JupyterLab removes `_STYLE` from a notebook that you have not run yourself."""


def to_html(document: Document) -> str:
    """Return the document as one `<div class="cloudtrain">`, which loads no external files."""
    body = "\n".join(_BLOCKS[type(block)](block) for block in document.blocks)
    return f'<div class="cloudtrain">\n{_STYLE}\n{body}\n</div>\n'


def run_html(name: str, ref: str, status: RunStatus) -> str:
    return to_html(run_document(name, ref, status))


def _pairs(block: Pairs) -> str:
    rows = "".join(
        f"<tr><th{_LEFT}>{_escape(label)}</th><td{_LEFT}>{_cell(value)}</td></tr>" for label, value in block.rows
    )
    return f"<table>{rows}</table>"


def _table(block: Table) -> str:
    head = "".join(f"<th{_LEFT}>{_escape(header)}</th>" for header in block.headers)
    rows = "".join("<tr>" + "".join(f"<td{_LEFT}>{_cell(cell)}</td>" for cell in row) + "</tr>" for row in block.rows)
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
