"""Values of `metrics.csv`, which Lightning's CSVLogger writes: a row for each step.

The logger writes the file anew when a metric is new, with the old rows first; so the rows that were
read are counted, and the header says whether an offset is still right.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import NamedTuple

from .fields import Scalar


class Position(NamedTuple):
    """How far the file was read."""

    offset: int = 0
    rows: int = 0
    header: str = ""


def read(path: Path, position: Position = Position()) -> tuple[list[Scalar], Position]:
    """Return the values after a position, and the next position. A last line without its end is
    left for the next time."""
    offset, rows, known = position
    with path.open("rb") as file:
        header = file.readline().decode("utf-8", "replace")
        if not header.endswith("\n"):
            return [], position
        size = file.seek(0, io.SEEK_END)
        seen = 0
        if header != known or size < offset:
            offset = len(header.encode())
            seen = rows
        file.seek(offset)
        data = file.read()
    text = data[: data.rfind(b"\n") + 1]
    scalars = []
    names = next(csv.reader([header]))
    lines = list(csv.reader(io.StringIO(text.decode("utf-8", "replace"))))
    for cells in lines[seen:]:
        scalars += _values(dict(zip(names, cells, strict=False)))
    return scalars, Position(offset + len(text), rows + len(lines[seen:]), header)


def _values(row: dict[str, str]) -> list[Scalar]:
    numbers = {}
    for name, cell in row.items():
        try:
            numbers[name] = float(cell)
        except ValueError:
            continue
    step = numbers.pop("step", None)
    return [Scalar(name, step, None, value) for name, value in numbers.items()]
