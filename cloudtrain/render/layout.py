"""The layout of a document as lines of styled spans, for plain text, coloured text and rich output."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from cloudtrain.render.document import (
    Block,
    Cell,
    Command,
    Document,
    Heading,
    Lines,
    Notice,
    Pairs,
    Section,
    Span,
    Style,
    Table,
    Text,
)
from cloudtrain.render.escape import on_one_line, shell_word
from cloudtrain.render.wrap import fill, literals, width_of, wrap

Line = list[Span]

INDENT = 2
GAP = 2

LEVEL_STYLE: dict[str, Style] = {
    "error": "bad",
    "warning": "warn",
    "notice": "info",
    "hint": "info",
    "ok": "good",
    "optional": "dim",
}


def layout(document: Document, width: int | None) -> list[Line]:
    """Return the lines of a document. Paragraphs and cells are wrapped to `width`; None: no wrapping."""
    lines: list[Line] = []
    previous: Block | None = None
    for block in _flat(document.blocks):
        if previous is not None and not isinstance(previous, Heading):
            lines.append([])
        lines += _LAYOUTS[type(block)](block, width)
        previous = block
    return lines


def _flat(blocks: Iterable[Block]) -> Iterator[Block]:
    """Yield the blocks with each section replaced by its title and content."""
    for block in blocks:
        if isinstance(block, Section):
            yield Heading(block.title)
            yield from block.blocks
        else:
            yield block


def _heading(block: Heading, _: int | None) -> Iterator[Line]:
    yield [Span(on_one_line(block.text), "strong")]


def _text(block: Text, width: int | None) -> Iterator[Line]:
    for line in wrap(block.text, width):
        yield literals(line)


def _pairs(block: Pairs, width: int | None) -> Iterator[Line]:
    rows = [(on_one_line(label), _span(value)) for label, value in block.rows]
    label_width = max((width_of(label) for label, _ in rows), default=0)
    taken = INDENT + label_width + GAP
    for label, span in rows:
        for number, line in enumerate(wrap(span.text, width, first=taken, rest=taken)):
            name = label if number == 0 else ""
            yield [Span(" " * INDENT), Span(_pad(name, label_width + GAP), "dim"), Span(line, span.style)]


def _table(block: Table, width: int | None) -> Iterator[Line]:
    rows = [
        [Span(on_one_line(span.text.replace("\n", " ")), span.style) for span in map(_span, row)] for row in block.rows
    ]
    headers = [on_one_line(header) for header in block.headers]
    widths = [
        max([width_of(header), *(width_of(row[column].text) for row in rows)]) for column, header in enumerate(headers)
    ]
    if width is not None:
        widths[0] = min(widths[0], _room_for_key(headers, widths, width))
    yield _row([Span(header, "dim") for header in headers], widths)
    for row in rows:
        yield from _fit_row(row, widths, width)


def _room_for_key(headers: Sequence[str], widths: Sequence[int], width: int) -> int:
    """Return the largest possible width of the first column if the last column is wrapped to 24 characters, or to the
    width of its header if that is larger. The result is at least the width of the first column's header.
    """
    last = min(widths[-1], max(width_of(headers[-1]), 24)) if len(widths) > 1 else 0
    others = sum(widths[1:-1]) + last + GAP * (len(widths) - 1)
    return max(width - others, width_of(headers[0]))


def _fit_row(row: Sequence[Span], widths: Sequence[int], width: int | None) -> Iterator[Line]:
    """Yield the lines of one row. A first cell that is too long gets its own line; a last cell that is too long is
    wrapped.
    """
    key, *others = row
    if others and width_of(key.text) > widths[0]:
        yield [key]
        key = Span("")
    taken = sum(widths[:-1]) + GAP * (len(widths) - 1)
    last = wrap(row[-1].text, width, first=taken, rest=taken) if others else []
    if not others:
        yield [key]
        return
    yield _row([key, *others[:-1], Span(last[0], others[-1].style)], widths)
    for line in last[1:]:
        yield [Span(" " * taken), Span(line, others[-1].style)]


def _row(cells: Sequence[Span], widths: Sequence[int]) -> Line:
    padded = [Span(_pad(cell.text, size + GAP), cell.style) for cell, size in zip(cells[:-1], widths, strict=False)]
    return [*padded, cells[-1]]


def _lines(block: Lines, _: int | None) -> Iterator[Line]:
    for line in block.lines:
        yield [Span(" " * INDENT), Span(on_one_line(line))]


def _command(block: Command, width: int | None) -> Iterator[Line]:
    words = [shell_word(word) for word in block.argv]
    for number, line in enumerate(fill(words, width, indent=INDENT + 4)):
        yield [Span(" " * INDENT), Span("$ " if number == 0 else "    ", "dim"), Span(line)]
    for name, value in block.variables:
        yield [Span(" " * (INDENT + 2)), Span(f"{on_one_line(name)}=", "dim"), Span(on_one_line(value))]


def _notice(block: Notice, width: int | None) -> Iterator[Line]:
    label = f"{on_one_line(block.level)}: "
    text = f"{block.message} [{block.code}]" if block.code else block.message
    yield from _label_lines(label, text, LEVEL_STYLE.get(block.level, ""), width)
    if block.place:
        yield [Span(" " * INDENT), Span(on_one_line(block.place), "dim")]
    for detail in block.details:
        yield [Span(" " * INDENT), Span(on_one_line(detail))]
    if block.hint:
        yield []
        yield from _label_lines("hint: ", block.hint, "info", width)


def _label_lines(label: str, text: str, style: Style, width: int | None) -> Iterator[Line]:
    taken = len(label)
    for number, line in enumerate(wrap(text, width, first=taken, rest=taken)):
        yield [Span(label, style) if number == 0 else Span(" " * taken), *literals(line)]


def _span(cell: Cell) -> Span:
    return Span(cell) if isinstance(cell, str) else cell


def _pad(text: str, size: int) -> str:
    return text + " " * (size - width_of(text))


_LAYOUTS: dict[type, Callable[[Any, int | None], Iterator[Line]]] = {
    Heading: _heading,
    Text: _text,
    Pairs: _pairs,
    Table: _table,
    Lines: _lines,
    Command: _command,
    Notice: _notice,
}
