"""Output of commands: data on stdout, everything else on stderr, colours only on a terminal.

Every command imports this module first, so it loads the layout of documents only when there is
something to print.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import math
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from cloudtrain.documents import JsonMapping, JsonObject
from cloudtrain.errors import CloudtrainError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from cloudtrain.plans.document import Cell, Document


def show(document: Document, stream: TextIO, *, width: int | None = None) -> None:
    """Print a document with the width and colours of the stream. `width` is for a stream that is
    not a terminal."""
    from cloudtrain.plans.document import to_text

    columns = width_of(stream) or width
    text = to_text(document, width=columns, color=has_color(stream), fold=stream.isatty())
    stream.write(text)
    stream.flush()


def show_table(headers: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
    """Print a table on stdout."""
    from cloudtrain.plans.document import Document, Table

    show(Document([Table(headers, list(rows))]), sys.stdout)


def say(*lines: str) -> None:
    """Print a message for the user on stderr, one line per argument. Literals are in backticks."""
    from cloudtrain.plans.document import Document, Text, on_one_line

    text = "\n".join(map(on_one_line, lines))
    show(Document([Text(text)]), sys.stderr)


def command_line(*words: str) -> str:
    """Return a command line, quoted so that it can be copied into a shell."""
    from cloudtrain.plans.document import shell_word

    return " ".join(map(shell_word, words))


def typed(*words: str) -> str:
    """Return a command line in backticks, quoted so that it can be copied into a shell."""
    return f"`{command_line(*words)}`"


def print_lines(lines: Iterable[str]) -> None:
    """Print data on stdout, one item per line, with invisible characters escaped. `--json` prints
    the exact data."""
    from cloudtrain.plans.document import on_one_line

    for line in lines:
        sys.stdout.write(f"{on_one_line(line)}\n")


def print_text(text: str) -> None:
    """Print a text of several lines on stdout. Invisible characters are escaped on a terminal; a
    file gets every byte."""
    from cloudtrain.plans.document import visible

    sys.stdout.write(visible(text) if sys.stdout.isatty() else text)


def print_json(value: object, *, short: bool = False) -> None:
    """Print one JSON document on stdout. NaN and infinity become null. With `short`, it is on one
    line, without empty values, and long lists of objects are counted."""
    text = json_text(without_empty(value)) if short else json_text(value, indent=2)
    sys.stdout.write(f"{text}\n")


_LONG_LIST = 5
"""Items of a list inside an object, above which `--short` writes only how many there are."""


@contextlib.contextmanager
def writing(file: Path, hint: str = "name another file") -> Iterator[None]:
    """Raise UsageError if the file cannot be written."""
    try:
        yield
    except OSError as error:
        message = f"cannot write `{file}`: {error.strerror or error}"
        raise UsageError(message, hint=hint, code="CT903") from None


def without_empty(value: Any) -> Any:
    """Return JSON data without empty values in objects, and with `{"count": N}` in place of a long
    list in an object."""
    if isinstance(value, (list, tuple)):
        return list(map(without_empty, value))
    if not isinstance(value, dict):
        return value
    kept = {}
    for key, item in value.items():
        if isinstance(item, (list, tuple)) and len(item) > _LONG_LIST:
            kept[key] = {"count": len(item)}
        elif item not in (None, "", [], (), {}):
            kept[key] = without_empty(item)
    return kept


def json_text(value: object, *, indent: int | None = None) -> str:
    """Return one JSON document, on one line without `indent`. NaN and infinity become null."""
    import json

    from cloudtrain.plans.document import visible_json

    text = json.dumps(_finite(value), indent=indent, ensure_ascii=False, allow_nan=False)
    return visible_json(text)


def print_csv(rows: Sequence[JsonMapping], columns: Iterable[str]) -> None:
    """Print CSV with a header on stdout. Invisible characters are escaped, and a cell that looks
    like a formula gets a leading `'`. `--json` prints the exact data."""
    from csv import DictWriter

    from cloudtrain.plans.document import on_one_line

    def cell(value: Any) -> Any:
        if not isinstance(value, (str, dict, list, tuple)):
            return value
        text = on_one_line(str(value))
        if text.startswith(_FORMULA):
            text = f"'{text}"
        return text

    headers = {name: cell(name) for name in columns}
    writer = DictWriter(sys.stdout, list(headers.values()), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({headers[name]: cell(value) for name, value in row.items()})


_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""Beginnings of cells that a spreadsheet computes."""


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return list(map(_finite, value))
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def width_of(stream: TextIO) -> int | None:
    """Return `COLUMNS` if it is set, else the columns of the terminal; None if the stream is not a
    terminal."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and len(columns) < 7:  # no terminal is wider
        width = int(columns)
        if width > 0:
            return width
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except (OSError, ValueError):  # not a terminal
        return None


def has_color(stream: TextIO) -> bool:
    """Return whether to print colours: True if the stream is a terminal that is not dumb, and
    NO_COLOR is not set (https://no-color.org)."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return stream.isatty()


# stdout and stderr of every command: always open, able to print any character, and prepared for a
# full disk.

_ESCAPED = "cloudtrain.escaped"


class OutputError(CloudtrainError):
    """stdout cannot be written, for example on a full disk. The rest of the output is lost."""

    exit_code = 74
    code = "CT907"


def mend_streams() -> None:
    """Replace stdout and stderr by streams that escape characters they cannot encode. Write errors,
    for example on a full disk, end the command on stdout and are ignored on stderr."""
    codecs.register_error(_ESCAPED, _escape)
    sys.stdout = _Stdout(**_as_given(sys.stdout, 1))
    sys.stderr = _Stderr(**_as_given(sys.stderr, 2))


def discard(stream: TextIO) -> None:
    """Redirect a stream to /dev/null, so that the interpreter's last flush cannot fail."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _as_given(stream: Any, number: int) -> JsonObject:
    """Return arguments for `io.TextIOWrapper` that make a stream like `stream`. If the user closed
    the stream (`>&-`), `stream` is None, and /dev/null is opened as file descriptor `number`, so
    that no other file gets this number."""
    if stream is None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)
        return {"buffer": open(number, "wb"), "encoding": "utf-8", "errors": _ESCAPED}
    names = ("buffer", "encoding", "line_buffering", "write_through")
    arguments = {name: getattr(stream, name) for name in names}
    return arguments | {"errors": _ESCAPED}


def _escape(error: UnicodeError) -> tuple[str, int]:
    """Return JSON escapes (`\\u00e9`) for the characters that the encoding lacks, and the offset
    after these characters. With such escapes, `--json` stays valid JSON."""
    assert isinstance(error, UnicodeEncodeError), "only output is escaped"
    import json  # `cloudtrain --help` does not need it

    characters = error.object[error.start : error.end]
    return json.dumps(characters)[1:-1], error.end


class _Stderr(io.TextIOWrapper):
    """A stream that ignores write errors, so that the command continues."""

    def write(self, text: str, /) -> int:
        with self._watch():
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with self._watch():
            super().flush()

    def failed(self, error: OSError) -> None:
        """The stream has been redirected to /dev/null."""

    @contextlib.contextmanager
    def _watch(self) -> Iterator[None]:
        """After a write error, redirect the stream to /dev/null and call `failed`."""
        try:
            yield
        except OSError as error:
            discard(self)
            self.failed(error)


class _Stdout(_Stderr):
    """A stream whose write errors end the command. A reader that closes the pipe, as `| head` does,
    causes no message."""

    def failed(self, error: OSError) -> NoReturn:
        """A broken pipe is raised unchanged. The stream has been redirected to /dev/null."""
        if isinstance(error, BrokenPipeError):
            raise error
        hint = "free disk space, or redirect the output to another disk"
        raise OutputError(f"stdout cannot be written: {error.strerror}", hint=hint) from error
