"""The document: a list of blocks, and its text. `html.py` makes HTML from the same blocks."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

Style = Literal["", "strong", "dim", "good", "bad", "warn", "info", "code"]
"""The meaning of a piece of text. Each output format has its own table of colours and styles."""


class Span(NamedTuple):
    """A piece of text with a style."""

    text: str
    style: Style = ""


Cell = str | Span


class Heading(NamedTuple):
    """The title of the blocks that follow."""

    text: str


class Text(NamedTuple):
    """A paragraph, wrapped to the width of the output. Literals are in backticks."""

    text: str


class Pairs(NamedTuple):
    """Rows of a label and a value. The values are aligned in a column."""

    rows: Sequence[tuple[str, Cell]]


class Table(NamedTuple):
    """Rows under headers. The first column identifies the row and is never shortened. Only the last
    column is wrapped, or with `is_cut` shortened to one line, and left out where it has no room."""

    headers: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    is_cut: bool = False


class Lines(NamedTuple):
    """Lines that are shown unchanged and never wrapped, such as data, output or a request."""

    lines: Sequence[str]


class CommandLine(NamedTuple):
    """A command line to copy into a shell. A long command line is split into lines that end in a
    backslash."""

    argv: Sequence[str]
    variables: Sequence[tuple[str, str]] = ()


class Notice(NamedTuple):
    """An error, warning or notice, with its code, its position, and a hint."""

    level: str
    message: str
    code: str | None = None
    place: str | None = None
    details: Sequence[str] = ()
    hint: str | None = None


class Section(NamedTuple):
    """Blocks under a title. A notebook shows them folded."""

    title: str
    blocks: Sequence[Heading | Text | Pairs | Table | Lines | CommandLine | Notice]


Block = Heading | Text | Pairs | Table | Lines | CommandLine | Notice | Section


class Document(NamedTuple):
    """Blocks in reading order. rich can print them, for example with `rich.print(plan)` or in a
    panel."""

    blocks: Sequence[Block]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        for line in layout(self, options.max_width):
            parts = [(text, _RICH.get(style, "")) for text, style in _trim(line)]
            yield Text.assemble(*parts, overflow="fold")


# Escaping of external text, so that it is safe to print on a terminal.
#
# Log lines, names, reasons, file names, variables and a service's messages may contain characters
# that control a terminal or are invisible: control characters, marks that reverse the text
# direction, characters without width. Such characters can forge output, for example a line that was
# never written, or a command that differs from the one you read. They are escaped as in Python and
# JSON: `\x1b`, `\u202e`. Everything that cloudtrain prints passes through this module.

_CHARACTERS = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters
    # characters without a glyph
    "\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\uffa0"
    # width, line ends, direction, annotations
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff0-\ufffb"
    "\ud800-\udfff"  # undecodable bytes
    # more format characters; tags (hidden text)
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)


@cache
def _unseen(layout: str = "") -> re.Pattern[str]:
    """Return the pattern of a character that controls a terminal or is invisible, except tab and
    line feed, which are `layout`. Compiling it takes longer than most commands print, and few texts
    need it."""
    return re.compile(f"[{_CHARACTERS}{layout}]")


def _is_plain(text: str) -> bool:
    return text.isascii() and text.replace("\n", "").isprintable()


_REDRAWS = r"\x1b\[(?:[012]?K|\d*A|\?25[hl])"
"""Escapes that progress bars write besides carriage returns: erase the line, move up, hide and show
the cursor."""

_COLOUR = (
    r"(\x1b\[(?:(?:0?[0-479]|2[1-9]|[34][0-79]|9[0-7]|10[0-7]|[34]8[;:]5[;:]\d{1,3}"
    r"|[34]8[;:]2(?:[;:]\d{1,3}){3})(?:;(?=\d)|(?=m)))*m)"
)
"""Colours and weights (ECMA-48, SGR), except hidden (8) and blinking (5, 6) text."""

_RESET = "\x1b[0m"


def visible(text: str) -> str:
    """Escape every invisible character in a text except line breaks. Tabs become spaces."""
    if _is_plain(text):
        return text
    return _unseen().sub(_escape_match, text.expandtabs(4))


def on_one_line(text: str) -> str:
    """Escape every invisible character in a text, including line breaks and tabs, so that it fits
    into one line."""
    if text.isascii() and text.isprintable():
        return text
    return _unseen("\t\n").sub(_escape_match, text)


def visible_json(text: str) -> str:
    """Escape invisible characters in a JSON document. The result parses to the same data."""
    if _is_plain(text):
        return text
    return _unseen().sub(_in_json, text)


def visible_yaml(text: str) -> str:
    """Escape invisible characters in a YAML document. Every string with such characters must
    already be in double quotes."""
    if _is_plain(text):
        return text
    return _unseen().sub(_in_shell, text)


def visible_output(text: str, *, color: bool) -> str:
    """Escape a line of a program's output for display. Tabs are kept, and with `color`, colours as
    well. If a progress bar was redrawn on the line, only its last state is kept."""
    if text.isascii() and text.isprintable():
        return text
    last_state = text.rstrip("\r").rpartition("\r")[2]
    text = re.sub(_REDRAWS, "", last_state)
    pieces = re.split(_COLOUR, text)  # text and colours alternate
    for index in range(0, len(pieces), 2):
        pieces[index] = _unseen().sub(_escape_match, pieces[index])
    if not color or len(pieces) == 1:
        return "".join(pieces[::2])
    return "".join(pieces) + _RESET


def shell_word(text: str) -> str:
    """Quote a word for a shell. Invisible characters are escaped between `$'` and `'` (bash,
    zsh)."""
    if on_one_line(text) == text:
        return shlex.quote(text)
    quoted = text.replace("\\", "\\\\").replace("'", "\\'")
    return "$'" + _unseen("\t\n").sub(_in_shell, quoted) + "'"


def _escape_match(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()


def _in_json(match: re.Match[str]) -> str:
    """Return a character as JSON escapes: two of them if it is above U+FFFF."""
    digits = match[0].encode("utf-16-be", "surrogatepass").hex()
    return re.sub("....", r"\\u\g<0>", digits)


def _in_shell(match: re.Match[str]) -> str:
    """Return a character as an escape that a shell reads in `$'...'`, and YAML in double quotes."""
    code = ord(match[0])
    # The surrogates are bytes that are not UTF-8, as `os.fsdecode` returns them.
    if 0xDC80 <= code <= 0xDCFF or code < 0x80:
        return f"\\x{code & 0xFF:02x}"
    if code < 0x10000:
        return f"\\u{code:04x}"
    return f"\\U{code:08x}"


# Width and wrapping of text. Literals in backticks are never broken.

_WORD = r"(?:`[^`]*`|[^\s`]|`)+"
_LITERAL = r"(`[^`]*`)"


def width_of(text: str) -> int:
    """Return the number of terminal columns of `text`: two for wide East Asian characters, none for
    combining marks."""
    if text.isascii():
        return len(text)

    import unicodedata

    width = 0
    for character in text:
        if not unicodedata.combining(character):
            width += 1
            if unicodedata.east_asian_width(character) in "WF":
                width += 1
    return width


def wrap(text: str, width: int | None, *, indent: int = 0) -> list[str]:
    """Wrap `text` into lines of at most `width` columns; None: no limit. `indent` columns of each
    line are already used. Words and literals are never broken; one that is too long overflows on
    its own line. Newlines in `text` are kept."""
    paragraphs = visible(text).split("\n")
    if width is None:
        return paragraphs

    lines: list[str] = []
    for paragraph in paragraphs:
        line = ""
        for word in re.findall(_WORD, paragraph):
            if line and indent + width_of(f"{line} {word}") > width:
                lines.append(line)
                line = ""
            line = f"{line} {word}" if line else word
        lines.append(line)
    return lines


def literals(text: str) -> list[Span]:
    """Return `text` as spans. Backticked literals have the style of code."""
    spans = []
    for part in re.split(_LITERAL, text):
        if part:
            is_literal = part.startswith("`") and len(part) > 1
            spans.append(Span(part, "code" if is_literal else ""))
    return spans


def fill(words: Sequence[str], width: int | None, *, indent: int) -> list[str]:
    """Join the words of a shell command into lines that fit into `width` columns after an indent of
    `indent` columns, which the caller adds. Each line except the last ends in a backslash. An
    option stays on a line with its value."""
    room = None if width is None else width - indent - 2  # for the backslash
    lines: list[str] = []
    for word in _with_values(words):
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and (room is None or width_of(longer) <= room):
            lines[-1] = longer
        else:
            lines.append(word)
    continued = [f"{line} \\" for line in lines[:-1]]
    return continued + lines[-1:]


def _with_values(words: Sequence[str]) -> list[str]:
    """Return the words, each option joined with the value that follows it."""
    units: list[str] = []
    option = ""
    for word in words:
        is_option = word.startswith("-")
        if option and not is_option:
            units[-1] += f" {word}"
            option = ""
        else:
            units.append(word)
            option = word if is_option and " " not in word else ""
    return units


# The layout of a document: lines of styled spans, for plain text, coloured text and rich output.

Line = list[Span]

INDENT = 2
GAP = 2
_INDENTED = Span(" " * INDENT)

LEVEL_STYLE: dict[str, Style] = {
    "error": "bad",
    "warning": "warn",
    "notice": "info",
    "hint": "info",
    "ok": "good",
    "optional": "dim",
}


def layout(document: Document, width: int | None) -> list[Line]:
    """Return the lines of a document. Paragraphs and cells are wrapped to `width`; None: no
    wrapping."""
    lines: list[Line] = []
    previous: Block | None = None
    for block in _flat(document.blocks):
        if previous is not None and not isinstance(previous, Heading):
            lines.append([])
        lines += _LAYOUTS[type(block)](block, width)
        previous = block
    return lines


def _flat(blocks: Iterable[Block]) -> Iterator[Block]:
    """Yield the blocks, and in place of a section its title and its blocks."""
    for block in blocks:
        if isinstance(block, Section):
            yield Heading(block.title)
            yield from block.blocks
        else:
            yield block


# Each function lays out one kind of block.


def _pairs(block: Pairs, width: int | None) -> Iterator[Line]:
    labels = [on_one_line(label) for label, _ in block.rows]
    label_width = max(map(width_of, labels), default=0) + GAP
    for label, cell in block.rows:
        span = as_span(cell)
        name = on_one_line(label)
        for line in wrap(span.text, width, indent=INDENT + label_width):
            yield [_INDENTED, Span(_pad(name, label_width), "dim"), Span(line, span.style)]
            name = ""


def _table(block: Table, width: int | None) -> Iterator[Line]:
    headers = [on_one_line(header) for header in block.headers]
    widths = [width_of(header) for header in headers]
    rows = []
    for row in block.rows:
        cells = []
        for cell in row:
            text, style = as_span(cell)
            cells.append(Span(on_one_line(text.replace("\n", " ")), style))
        widths = list(map(max, widths, [width_of(cell.text) for cell in cells]))
        rows.append(cells)

    if width is not None:
        least = 12 if block.is_cut else 24
        shortened = min(widths[-1], least)
        if block.is_cut and _total([*widths[:-1], shortened]) > width:
            headers.pop()
            widths.pop()
            rows = [row[:-1] for row in rows]

        # The first column leaves the least width to the last one, or the width of its header if
        # that is larger.
        least = max(width_of(headers[-1]), least)
        others = widths[1:]
        if others:
            others[-1] = min(others[-1], least)
        room = width - _total([0, *others])
        widths[0] = min(widths[0], max(room, width_of(headers[0])))

    yield _row([Span(header, "dim") for header in headers], widths)
    for row in rows:
        yield from _fit_row(row, widths, width, is_cut=block.is_cut)


def _total(widths: Sequence[int]) -> int:
    """Return the width of columns with the gaps between them."""
    return sum(widths) + GAP * (len(widths) - 1)


def _fit_row(
    row: Sequence[Span], widths: Sequence[int], width: int | None, *, is_cut: bool
) -> Iterator[Line]:
    """Yield the lines of one row. A first cell that is too long gets its own line; a last cell that
    is too long is wrapped or cut."""
    key, *others = row
    if others and width_of(key.text) > widths[0]:
        yield [key]
        key = Span("")
    if not others:
        yield [key]
        return

    *between, (text, style) = others
    indent = _total(widths[:-1]) + GAP
    if not is_cut:
        first, *more = wrap(text, width, indent=indent)
    else:
        first = text
        more = []
        if width is not None and indent + width_of(text) > width:
            room = max(0, width - indent - 3)
            first = text[:room].rstrip(" ,;(") + "..."

    yield _row([key, *between, Span(first, style)], widths)
    for line in more:
        yield [Span(" " * indent), Span(line, style)]


def _row(cells: Sequence[Span], widths: Sequence[int]) -> Line:
    """Return a line of cells, all but the last padded to the width of their columns."""
    *others, last = cells
    line = []
    for cell, size in zip(others, widths, strict=False):
        line.append(Span(_pad(cell.text, size + GAP), cell.style))
    return [*line, last]


_PROMPTS = (Span("$ ", "dim"), Span("    ", "dim"))
"""What stands before the first line of a command, and before the others."""


def _command(block: CommandLine, width: int | None) -> Iterator[Line]:
    words = [shell_word(word) for word in block.argv]
    prompt, later = _PROMPTS
    for line in fill(words, width, indent=INDENT + 4):
        yield [_INDENTED, prompt, Span(line)]
        prompt = later
    for name, value in block.variables:
        label = Span(f"{on_one_line(name)}=", "dim")
        yield [Span(" " * (INDENT + 2)), label, Span(on_one_line(value))]


def _notice(block: Notice, width: int | None) -> Iterator[Line]:
    label = f"{on_one_line(block.level)}: "
    text = block.message
    if block.code:
        text += f" [{block.code}]"
    yield from _label_lines(label, text, LEVEL_STYLE.get(block.level, ""), width)
    if block.place:
        yield [_INDENTED, Span(on_one_line(block.place), "dim")]
    yield from _lines(block.details)
    if block.hint:
        yield []
        yield from _label_lines("hint: ", block.hint, "info", width)


def _lines(lines: Iterable[str]) -> Iterator[Line]:
    for line in lines:
        yield [_INDENTED, Span(on_one_line(line))]


def _label_lines(label: str, text: str, style: Style, width: int | None) -> Iterator[Line]:
    """Yield the lines of a text after its label. They are aligned below the first one."""
    indent = len(label)
    start = Span(label, style)
    for line in wrap(text, width, indent=indent):
        yield [start, *literals(line)]
        start = Span(" " * indent)


def as_span(cell: Cell) -> Span:
    return Span(cell) if isinstance(cell, str) else cell


def _pad(text: str, size: int) -> str:
    return text + " " * (size - width_of(text))


_LAYOUTS: dict[type, Callable[[Any, int | None], Iterable[Line]]] = {
    Heading: lambda block, _: [[Span(on_one_line(block.text), "strong")]],
    Text: lambda block, width: map(literals, wrap(block.text, width)),
    Pairs: _pairs,
    Table: _table,
    Lines: lambda block, _: _lines(block.lines),
    CommandLine: _command,
    Notice: _notice,
}


# A document as plain text, as text with terminal colours, or as an object for rich.

_SGR: dict[Style, str] = {
    "strong": "1", "dim": "2", "good": "32", "bad": "1;31", "warn": "33", "info": "36", "code": "36"
}  # fmt: skip
"""ECMA-48 parameters. The sixteen basic colours are readable in every theme."""

_RICH: dict[Style, str] = {
    "strong": "bold", "dim": "dim", "good": "green", "bad": "bold red", "warn": "yellow",
    "info": "cyan",
    "code": "cyan",
}  # fmt: skip


def to_text(
    document: Document, *, width: int | None = 80, color: bool = False, fold: bool = False
) -> str:
    """Return the document as text that ends with a newline. `color` adds terminal colours. `fold`
    breaks a path or list that is wider than the terminal after a `/` or `,`; elsewhere, whoever
    searches the text finds it whole."""
    lines: Iterable[Line] = layout(document, width)
    if fold and width is not None:
        lines = _folded(lines, width)
    texts = []
    for line in lines:
        if color:
            text = "".join(paint(text, style) for text, style in _trim(line))
        else:
            text = "".join(span.text for span in line).rstrip()
        texts.append(f"{text}\n")
    return "".join(texts)


def _folded(lines: Iterable[Line], width: int) -> Iterator[Line]:
    """Yield lines. If the path or list at the end of one is too long, it is yielded in parts that
    fit. Each part stands below the first one. What a reader types stays whole."""
    for line in lines:
        *before, last = line or [Span("")]
        item = last.text.lstrip()
        lead = last.text.removesuffix(item)
        indent = sum(width_of(span.text) for span in before) + len(lead)
        room = max(width - indent, 20)  # a name can be longer than a line

        pieces = [item]
        is_command = before and before[-1] in _PROMPTS
        if not is_command and "`" not in last.text:
            # A piece ends after `/` or `,`, or where it fills the room.
            pieces = re.findall(rf"[^/,]{{0,{room - 1}}}[/,]+|[^/,]{{1,{room}}}", item)

        parts = [lead]
        for piece in pieces:
            longer = parts[-1] + piece
            is_too_long = indent + width_of(longer.strip()) > width
            if is_too_long and parts[-1].strip():
                parts.append(piece)
            else:
                parts[-1] = longer

        yield [*before, Span(parts[0], last.style)]
        for part in parts[1:]:
            yield [Span(" " * indent), Span(part, last.style)]


def paint(text: str, style: Style) -> str:
    """Return the text in the terminal colour of a style."""
    if not style or not text:
        return text
    return f"\x1b[{_SGR[style]}m{text}{_RESET}"


def _trim(line: Line) -> Line:
    """Return a line without the white space at its end."""
    spans = list(line)
    while spans:
        text, style = spans.pop()
        if text.rstrip():
            return [*spans, Span(text.rstrip(), style)]
    return []
