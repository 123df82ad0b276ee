"""The code cells of a notebook as plain Python, without IPython's magics and shell lines."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from cloudtrain.documents.document import Unreadable
from cloudtrain.documents.reading import read_bytes
from cloudtrain.errors import UsageError

_MOST = 64 << 20

_SHELL = re.compile(r"\s*(?:\w+\s*=\s*)?[!%]")

_AROUND_PYTHON = ("%%time", "%%timeit", "%%capture", "%%prun")
"""Cell magics after which the cell's other lines are Python."""


def cells_of(notebook: Path) -> list[str]:
    """Return the code cells of a notebook as Python. `%%writefile` becomes code that writes the file. Other magics and
    shell lines are left out; a cell of another language becomes empty.

    Raises:
        UsageError: the file is not a notebook.
    """
    try:
        data = json.loads(read_bytes(notebook, _MOST))
        cells = [cell for cell in data["cells"] if cell.get("cell_type") == "code"]
        return [_plain("".join(cell.get("source", ""))) for cell in cells]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, Unreadable):
        raise UsageError(f"`{notebook}` is not a notebook", hint="name an `.ipynb` file", code="CT981") from None


_WRITES = re.compile(r"%%(?:writefile|file)[ \t]+(?P<append>-a[ \t]+)?(?P<name>[^\n]+?)[ \t]*\n(?P<text>.*)", re.DOTALL)


def _plain(cell: str) -> str:
    written = _WRITES.fullmatch(cell.lstrip())
    if written is not None:
        name, mode = written["name"].strip("\"'"), "a" if written["append"] else "w"
        return f"with open(f{name!r}, {mode!r}, encoding='utf-8') as file:\n    file.write({written['text']!r})"
    lines = cell.strip().splitlines()
    while lines and lines[0].startswith("%%"):
        if lines[0].split()[0] not in _AROUND_PYTHON:
            return ""
        lines = lines[1:]
    return "\n".join(_line(line) for line in _joined(lines))


def _joined(lines: list[str]) -> Iterator[str]:
    """Yield the lines, with each shell line that ends in a backslash joined with the line after it."""
    shell = ""
    for line in lines:
        if shell or _SHELL.match(line):
            shell += line
            if line.endswith("\\"):
                continue
            line, shell = shell, ""
        yield line


def _line(line: str) -> str:
    start = line.lstrip()
    indent = line[: len(line) - len(start)]
    if start.startswith(("%", "!", "?", "pip install ", "conda install ")) or start.rstrip().endswith("?"):
        return f"{indent}pass"
    name, equals, rest = start.partition("=")
    if equals and name.strip().isidentifier() and rest.lstrip().startswith(("!", "%")):
        return f"{indent}{name.strip()} = []"
    return line
