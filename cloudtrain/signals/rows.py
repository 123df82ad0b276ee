"""Read the metrics files of a run. `cloudtrain/runtime/metrics_file.py` describes them.

The same metric may come from several sources and ranks, and a restarted rank repeats steps. Each
metric is taken from the first source of `SOURCES` that has it, there from the lowest rank, and of
several attempts from the newest that came to a step.
"""

from __future__ import annotations

import json
import math
import os
import re
from array import array
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from heapq import merge
from operator import itemgetter
from typing import Any, ClassVar, NamedTuple

from cloudtrain.documents import JsonMapping
from cloudtrain.errors import MissingExtra
from cloudtrain.plans.progress import PLACES
from cloudtrain.runtime.metrics_file import MACHINE, ROW, RUNTIME
from cloudtrain.signals.lines import PATTERNS, PRINTED, RECOGNISED, RECOGNISED_PROGRESS

SERVICE = "service"
"""The source of metrics that the target's service itself has kept."""

LIBRARIES = ("tensorboard", "lightning", "wandb")

SOURCES = (RUNTIME, *LIBRARIES, PATTERNS, PRINTED, SERVICE, RECOGNISED)
"""All sources, those to be preferred first. The last one counts only if it is alone."""

_NAME = re.compile(r"(?P<source>[a-z]+)\.(?P<kind>[a-z]+)(?P<number>[0-9]+)\.(?P<attempt>[0-9]+)")

_CHUNK = 1 << 24


class Writer(NamedTuple):
    """Who writes a file: a source, and a rank, or the launcher of an instance."""

    source: str
    kind: str
    number: int

    @property
    def rank(self) -> int | None:
        return self.number if self.kind == "rank" else None

    @property
    def order(self) -> tuple[int, bool, int]:
        """The order in which writers are preferred."""
        source = (*SOURCES, self.source).index(self.source)
        return (source, self.kind != "rank", self.number)


class MetricFile:
    """One pair of files, as far as it was read."""

    def __init__(self, folder: str, match: re.Match[str]) -> None:
        self.writer: Writer = Writer(match["source"], match["kind"], int(match["number"]))
        self.attempt: int = int(match["attempt"])
        self.names: list[str] = []
        self.rows: bytearray = bytearray()
        self._offset = 0
        self._stem = f"{folder}/{match[0]}"

    def read(self) -> bool:
        """Read the rows that were added since the last call. Return whether there were any."""
        before = self._offset
        with open(f"{self._stem}.rows", "rb", buffering=0) as file:
            file.seek(before)
            while data := file.read(_CHUNK):
                self.rows += data
                self._offset += len(data)
        torn = self._offset % ROW.size
        if torn:
            del self.rows[-torn:]
            self._offset -= torn
        if self._offset == before:
            return False

        with open(f"{self._stem}.names", "rb") as file:
            lines = file.read().split(b"\n")[:-1]
        self.names += [json.loads(line)["name"] for line in lines[len(self.names) :]]
        return True

    @property
    def newest_step(self) -> float:
        """The step of the last row, read from the end of the file; NaN without one. Raises
        OSError."""
        with open(f"{self._stem}.rows", "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - size % ROW.size - ROW.size))
            data = file.read(ROW.size)
        return float(ROW.unpack(data)[2]) if len(data) == ROW.size else math.nan

    @property
    def first_step(self) -> float:
        """The first step in the rows; infinite if there is none."""
        steps = memoryview(self.rows).cast("d")[1::4]
        return next((step for step in steps if not math.isnan(step)), math.inf)


def list_files(folder: str) -> list[MetricFile]:
    """Return the files in a folder, unread and in the order in which they are preferred; none if
    the folder is missing."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    files = []
    for name in names:
        match = _NAME.fullmatch(name.removesuffix(".rows"))
        if match is not None:
            files.append(MetricFile(folder, match))
    return sorted(files, key=lambda file: (file.writer.order, file.attempt))


def read_files(folder: str) -> list[MetricFile]:
    """Return the files in a folder that have rows, read."""
    files = []
    for file in list_files(folder):
        with suppress(OSError, ValueError):  # removed meanwhile, or of something else
            if file.read():
                files.append(file)
    return files


class NewRows:
    """Reads what is added to the files of a folder, of these sources. Of several ranks, the lowest
    that has a metric so far counts."""

    def __init__(self, folder: str, sources: Sequence[str]) -> None:
        self._folder = folder
        self._sources = sources
        self._files: dict[tuple[Writer, int], MetricFile] = {}
        self._owners: dict[str, Writer] = {}

    def read(self) -> Iterator[tuple[float, dict[str, float]]]:
        """Yield the time and the values of each call since the last time."""
        for file in list_files(self._folder):
            if file.writer.source in self._sources:
                self._files.setdefault((file.writer, file.attempt), file)
        for file in self._files.values():
            with suppress(OSError, ValueError):  # removed meanwhile, or of something else
                if file.read():
                    yield from _calls([_Part(file, self._names_of(file), math.inf)])
                    file.rows.clear()

    def _names_of(self, file: MetricFile) -> dict[int, str]:
        """Return the metrics that no preferred writer has, by their numbers."""
        names = {}
        for number, name in enumerate(file.names):
            owner = self._owners.get(name, file.writer)
            if file.writer.order <= owner.order:
                self._owners[name] = owner = file.writer
            if owner == file.writer or name in PLACES:
                names[number] = name
        return names


_NEWEST = 256
"""Rows at the end of a file that hold its newest call."""

_STALE = 300.0
"""Seconds after which the values of a machine tell nothing of the present."""


def newest_machines(files: Iterable[MetricFile], now: float) -> dict[int, dict[str, float]]:
    """Map each instance to what its machine does now, as far as it is known."""
    machines: dict[int, dict[str, float]] = {}
    for file in files:
        if file.writer.source != MACHINE:
            continue
        rows = list(ROW.iter_unpack(file.rows[-_NEWEST * ROW.size :]))
        _, newest, _, moment, _ = rows[-1]
        if now - moment < _STALE:
            values = {file.names[row[0]]: row[4] for row in rows if row[1] == newest}
            machines[file.writer.number] = values
    return dict(sorted(machines.items()))


def machine_rows(files: Iterable[MetricFile], instance: int | None = None) -> MetricRows:
    """Return what the machines of a run did, or one of them. If there are several, `instance0/` and
    so on stands before the names."""
    own = [file for file in files if file.writer.source == MACHINE]
    if instance is not None:
        own = [file for file in own if file.writer.number == instance]
    elif len({file.writer.number for file in own}) > 1:
        for file in own:
            file.names = [f"instance{file.writer.number}/{name}" for name in file.names]
    return MetricRows(own, sources=(MACHINE,))


def newest_steps(folder: str) -> dict[int, float]:
    """Map each rank to its newest step. Only ranks whose script reports steps are included."""
    steps: dict[int, float] = {}
    for file in list_files(folder):
        rank = file.writer.rank
        if file.writer.source != RUNTIME or rank is None:
            continue
        step = math.nan
        with suppress(OSError):
            step = file.newest_step
        if not math.isnan(step):
            steps[rank] = step  # a newer attempt comes later
    return steps


class Column(NamedTuple):
    """All values of one metric, with the step and the time of each. The step is NaN where the
    script named none; times are seconds since 1970. `rank` is None for lines of a launcher."""

    step: array[float]
    time: array[float]
    value: array[float]
    source: str
    rank: int | None


class _Part(NamedTuple):
    """The rows of one file that count: those of some metrics, before the step `end`."""

    file: MetricFile
    names: dict[int, str]
    end: float


class MetricRows(Sequence[dict[str, float]]):
    """What a run has reported: a sequence of one dictionary for each call or line, such as
    `{"step": 10.0, "loss": 0.25}`. `columns` needs a tenth of the memory."""

    def __init__(
        self,
        files: Iterable[MetricFile] = (),
        *,
        rank: int | None = None,
        superseded: bool = False,
        sources: Sequence[str] = SOURCES,
    ) -> None:
        """Take the values of one rank, or of the lowest rank that has a metric. With `superseded`,
        also take what an attempt wrote at steps that a newer attempt has repeated. Only
        values of `sources` are taken."""
        attempts: dict[Writer, list[MetricFile]] = defaultdict(list)
        self._progress: list[_Part] = []
        """What lines of output of no known form say about the progress."""
        for file in files:
            if file.writer.source in sources and rank in (None, file.writer.rank):
                attempts[file.writer].append(file)
            elif file.writer.source == RECOGNISED_PROGRESS:
                self._progress.append(_Part(file, dict(enumerate(file.names)), math.inf))

        self._parts: list[list[_Part]] = []
        """The parts of each writer."""
        is_alone = {writer.source for writer in attempts} == {RECOGNISED}
        taken: set[str] = set()
        for writer, written in attempts.items():
            if writer.source == RECOGNISED and not is_alone:
                continue
            own: set[str] = set()
            for file in written:
                own.update(file.names)
            if taken:
                own -= taken.union(PLACES)
            taken |= own
            if own:
                self._parts.append(_parts_of(written, own.union(PLACES[:1]), superseded))

    @cached_property
    def _list(self) -> list[dict[str, float]]:
        calls = merge(*map(_calls, self._parts), key=itemgetter(0))
        return [values for _, values in calls]

    def __len__(self) -> int:
        return len(self._list)

    def __getitem__(self, index: Any) -> Any:
        return self._list[index]

    def __iter__(self) -> Iterator[dict[str, float]]:
        return iter(self._list)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._list == list(other)

    __hash__: ClassVar[None]  # type: ignore[assignment]  # as of a list

    def __repr__(self) -> str:
        return repr(self._list)

    @property
    def names(self) -> list[str]:
        """The names of all metrics, without reading their values."""
        names: dict[str, None] = {}
        for parts in self._parts:
            for part in parts:
                names |= dict.fromkeys(part.names.values())
        return list(names)

    def columns(self, *names: str) -> dict[str, Column]:
        """Return the values of these metrics as arrays, by default of all. `numpy.asarray` makes
        NumPy arrays of them without a copy."""
        columns: dict[str, Column] = {}
        for parts in self._parts:
            for part in parts:
                _add_columns(part, columns, names or part.names.values())
        return columns

    @property
    def epochs(self) -> Column | None:
        """The epochs that the script has reported or printed; None without any."""
        columns = self.columns("epoch")
        for part in self._progress:
            if "epoch" not in columns:
                _add_columns(part, columns, ("epoch",))
        return columns.get("epoch")

    def to_pandas(self) -> Any:
        """Return a pandas table with one row for each dictionary. Needs pandas."""
        return data_frame(self._list)


def data_frame(rows: Sequence[JsonMapping], times: Sequence[str] = ()) -> Any:
    """Return rows as a pandas table. In the columns `times`, seconds since 1970 become timestamps.

    Raises:
        MissingExtra: pandas is not installed.
    """
    try:
        import pandas
    except ImportError as error:
        raise MissingExtra("pandas is not installed", hint="pip install pandas") from error
    table = pandas.DataFrame(rows)
    for name in table.columns.intersection(list(times)):
        table[name] = pandas.to_datetime(table[name], unit="s", utc=True)
    return table


def _parts_of(attempts: list[MetricFile], names: set[str], superseded: bool) -> list[_Part]:
    """Return the rows of these names in the attempts of one writer, oldest first."""
    parts: list[_Part] = []
    end = math.inf
    for file in reversed(attempts):
        kept = {number: name for number, name in enumerate(file.names) if name in names}
        parts.append(_Part(file, kept, end))
        if not superseded:
            end = min(end, file.first_step)
    return parts[::-1]


def _calls(parts: Iterable[_Part]) -> Iterator[tuple[float, dict[str, float]]]:
    """Yield the time and the values of each call."""
    for file, names, end in parts:
        name_of = names.get
        values: dict[str, float] = {}
        newest = -1
        written = 0.0
        for number, call, step, time, value in ROW.iter_unpack(file.rows):
            name = name_of(number)
            if name is None or step >= end:
                continue
            if call != newest:
                if values:
                    yield written, values
                newest = call
                written = time
                values = {} if step != step else {"step": step}
            values[name] = value
        if values:
            yield written, values


def _add_columns(part: _Part, columns: dict[str, Column], names: Collection[str]) -> None:
    """Add the values of a part to the columns of those of its metrics that have these names."""
    numbers = memoryview(part.file.rows).cast("I")[0::8].tolist()
    positions: dict[int, list[int]] = defaultdict(list)
    for position, number in enumerate(numbers):
        positions[number].append(position)
    del numbers

    words = memoryview(part.file.rows).cast("d")
    step, time, value = (array("d", words[first::4].tobytes()) for first in (1, 2, 3))
    writer = part.file.writer
    for number, name in part.names.items():
        if name not in names:
            continue
        places = positions.pop(number, [])
        if part.end < math.inf:
            places = [place for place in places if not step[place] >= part.end]
        if not places:
            continue
        if name not in columns:
            columns[name] = Column(array("d"), array("d"), array("d"), writer.source, writer.rank)
        column = columns[name]
        column.step.extend(map(step.__getitem__, places))
        column.time.extend(map(time.__getitem__, places))
        column.value.extend(map(value.__getitem__, places))
