"""Output of commands: data on stdout, everything else on stderr, colours only on a terminal."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO

from cloudtrain.render.document import Document, Text
from cloudtrain.render.escape import on_one_line, shell_word, visible_json


def show(document: Document, stream: TextIO, *, width: int | None = None) -> None:
    """Print a document with the width and colours of the stream. `width` is for a stream that is not a terminal."""
    from cloudtrain.render.text import to_text

    stream.write(to_text(document, width=width_of(stream) or width, color=has_color(stream)))
    stream.flush()


def say(*lines: str) -> None:
    """Print a message for the user on stderr, one line per argument. Literals are in backticks."""
    show(Document([Text("\n".join(map(on_one_line, lines)))]), sys.stderr)


def typed(*words: str) -> str:
    """Return a command line in backticks, quoted so that it can be copied into a shell."""
    return f"`{' '.join(map(shell_word, words))}`"


def print_lines(lines: Iterable[str]) -> None:
    """Print data on stdout, one item per line, with invisible characters escaped. `--json` prints the exact data."""
    sys.stdout.writelines(f"{on_one_line(line)}\n" for line in lines)


def print_json(value: Any, *, indent: int | None = 2) -> None:
    """Print one JSON document on stdout, with `indent=None` on one line. NaN and infinity become null."""
    import json

    text = json.dumps(_finite(value), indent=indent, ensure_ascii=False, allow_nan=False)
    sys.stdout.write(visible_json(text) + "\n")


def print_csv(rows: Sequence[Mapping[str, Any]], columns: Iterable[str]) -> None:
    """Print CSV with a header on stdout. Invisible characters are escaped, and a cell that looks like a formula gets a
    leading `'`. `--json` prints the exact data."""
    from csv import DictWriter

    shown = {name: _cell(name) for name in columns}
    writer = DictWriter(sys.stdout, list(shown.values()), lineterminator="\n")
    writer.writeheader()
    writer.writerows({shown[name]: _cell(value) for name, value in row.items()} for row in rows)


def _cell(value: Any) -> Any:
    if not isinstance(value, (str, dict, list, tuple)):
        return value
    text = on_one_line(str(value))
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def width_of(stream: TextIO) -> int | None:
    """Return `COLUMNS` if it is set, else the columns of the terminal; None if the stream is not a terminal."""
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and len(given) < 7 and int(given) > 0:
        return int(given)
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except (OSError, ValueError):  # not a terminal
        return None


def has_color(stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether to print colours: True if the stream is a terminal that is not dumb, and NO_COLOR is not set
    (https://no-color.org)."""
    return stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
