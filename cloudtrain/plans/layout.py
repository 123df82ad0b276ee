"""The layout of a document as lines of styled spans, for plain text, coloured text and rich output."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cloudtrain.job.model import format_duration
from cloudtrain.plans.document import (
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
    fill,
    literals,
    on_one_line,
    shell_word,
    width_of,
    wrap,
)
from cloudtrain.plans.states import RunState, RunStatus, Transition

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult


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


# A document as plain text, as text with terminal colours, or as an object for rich.

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


# A run and its status as a document.

STATE_STYLE: dict[RunState, Style] = {
    RunState.PENDING: "dim",
    RunState.QUEUED: "dim",
    RunState.PREPARING: "dim",
    RunState.RUNNING: "info",
    RunState.STOPPING: "warn",
    RunState.SUCCEEDED: "good",
    RunState.FAILED: "bad",
    RunState.STOPPED: "warn",
    RunState.LOST: "bad",
}


def state_cell(state: RunState, queue_place: int | None = None) -> Span:
    """Return a coloured cell with the state and the place in the queue, such as `queued 3`."""
    return Span(str(state) if queue_place is None else f"{state} {queue_place}", STATE_STYLE[state])


def run_document(name: str, ref: str, status: RunStatus, more: Mapping[str, str] | None = None) -> Document:
    """Return a page with all known facts about a run. `more` adds label-value pairs after the reference."""
    rows: list[tuple[str, Cell]] = [("state", state_cell(status.state))]
    rows += [("reason", status.reason)] if status.reason else []
    rows += [("queue", f"place {status.queue_place}")] if status.queue_place is not None else []
    rows += [("reference", ref), *(more or {}).items()]
    rows += [("page", status.page)] if status.page else []
    rows += [("started", _moment(status.started))] if status.started else []
    rows += [("duration", duration_of(status))] if status.started else []
    rows += [("restarts", str(status.restarts))] if status.restarts else []
    rows += [("cost", cost_text(status))] if status.billable_seconds is not None else []
    rows += [("progress", progress)] if (progress := progress_text(status)) else []
    rows += [("metrics", metrics_text(status.metrics))] if status.metrics else []
    blocks: list[Block] = [Heading(name), Pairs(rows)]
    if status.transitions:
        blocks += [
            Heading("Phases"),
            Table(("PHASE", "STARTED", "TOOK", ""), [_phase(item) for item in status.transitions]),
        ]
    if status.details:
        blocks += [Heading("Last output"), Lines(status.details)]
    return Document(blocks)


def duration_of(status: RunStatus, now: float | None = None) -> str:
    """Return how long the run took or has been running, such as `1h 2m`; empty before it starts."""
    if status.started is None:
        return ""
    ended = status.ended if status.ended is not None else (time.time() if now is None else now)
    return format_duration(max(0.0, ended - status.started))


def cost_text(status: RunStatus) -> str:
    """Return a text such as `1h 2m billed on each instance, $12.34 by list price, 64% saved by spot capacity`."""
    parts = [f"{format_duration(status.billable_seconds or 0.0)} billed on each instance"]
    parts += [f"${status.cost:,.2f} by list price"] if status.cost is not None else []
    parts += [f"{status.saved:.0%} saved by spot capacity"] if status.saved is not None else []
    return ", ".join(parts) + ("" if status.state.is_final else " so far")


def _phase(item: Transition) -> tuple[Cell, ...]:
    took = "" if item.ended is None else format_duration(max(0.0, item.ended - item.started))
    message = item.message if item.message != item.phase else None
    return (item.phase, _moment(item.started), took, message or "")


PROGRESS = ("total", "seconds_left")
"""Values that `runtime.report(step=, total=)` adds to the measured values."""


def progress_text(status: RunStatus) -> str:
    """Return a text such as `45%, step 207 of 460, 3m left`; empty if the script reports no total. For an ended run,
    the time left is omitted."""
    step, total = status.metrics.get("step"), status.metrics.get("total")
    if step is None or not total:
        return ""
    parts = [f"{min(1.0, step / total):.0%}", f"step {number(step)} of {number(total)}"]
    left = status.metrics.get("seconds_left")
    if left is not None and not status.state.is_final:
        parts.append(f"{format_duration(left)} left")
    return ", ".join(parts)


def metrics_text(metrics: Mapping[str, float]) -> str:
    """Return a text such as `loss 0.25, accuracy 0.98 (step 100)`. The step or epoch of the measurement comes last."""
    places = [f"{name} {number(metrics[name])}" for name in ("epoch", "step") if name in metrics]
    values = [f"{name} {number(value)}" for name, value in metrics.items() if name not in ("epoch", "step", *PROGRESS)]
    text = ", ".join(values)
    return f"{text} ({', '.join(places)})" if values and places else text or ", ".join(places)


def number(value: float) -> str:
    """Format a metric's value with four significant digits. Integers keep all digits."""
    return str(int(value)) if abs(value) < 1e15 and value == int(value) else f"{value:.4g}"


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(seconds))
