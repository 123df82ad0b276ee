"""The metrics files of a run: rows of fixed length, which readers of any language can map.

    metrics/SOURCE.PLACE.ATTEMPT.rows    32 bytes a row, little-endian: uint32 name, uint32 call,
                                         float64 step (NaN without one), float64 seconds since
                                         1970, float64 value
    metrics/SOURCE.PLACE.ATTEMPT.names   JSON lines; a row's name is the number of a line, from 0

A pair of files has one writer, such as `runtime.rank0.0`; a restarted process writes the next
attempt. The rows of one call of `report` have the same `call`. Names are written before the first
row that uses them. A reader ignores what follows the last whole row or line.
"""

from __future__ import annotations

import errno
import json
import os
import struct
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from itertools import chain, count, repeat
from threading import Lock

FOLDER = "metrics"
"""The folder inside a run's folder."""

RUNTIME = "runtime"
"""The source of what a script reports with `report`."""

MACHINE = "machine"
"""The source of what the machines of a run do. Its rows are no metrics of the training."""

MACHINE_LINE = "[machine]"
"""The beginning of a line with such values, where a run has no folder."""

ROW = struct.Struct("<IIddd")

NOWHERE = float("nan")
"""The step of a row that has none."""

_MOST_WAITING = 100_000
"""Calls that wait for a file that cannot be written. Further calls are dropped."""


VARIABLE = "CLOUDTRAIN_METRICS_DIR"


def metrics_folder() -> str | None:
    """Return the folder for metrics of the run that this process belongs to; None without one."""
    folder = os.environ.get(VARIABLE)
    run = os.environ.get("CLOUDTRAIN_RUN_DIR")
    return folder or (f"{run}/{FOLDER}" if run else None)


def make_folder(folder: str) -> None:
    """Make the folder for metrics. The folder above must exist: a run's folder that was removed
    must not appear again. Raises `OSError`."""
    if not os.path.isdir(folder):
        with suppress(FileExistsError):  # another process was faster
            os.mkdir(folder, 0o700)


_CREATE = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC


class MetricWriter:
    """Writes one pair of files. `add` only remembers the rows; `flush` writes them, and may run in
    another thread. The files are created with the first rows."""

    def __init__(self, folder: str, source: str, place: str, *, attempt: int | None = None) -> None:
        """With `attempt`, go on behind what an earlier writer has written as this attempt."""
        self._folder = folder
        self._attempt = attempt
        self._stem = f"{folder}/{source}.{place}"
        self._names: dict[str, int] = {}
        self._naming = Lock()
        self._calls = count()
        self._waiting: deque[bytes] = deque()
        self._flushing = Lock()
        self._rest = b""
        self._files: tuple[_Appended, _Appended] | tuple[()] = ()
        """Of the names and of the rows, once they are open."""
        self._named = 0
        if attempt is not None and os.path.exists(f"{self._stem}.{attempt}.rows"):
            self._resume(f"{self._stem}.{attempt}")

    def _resume(self, stem: str) -> None:
        """Open the files of an earlier writer, which are whole."""
        with open(f"{stem}.names", "rb") as file:
            for line in file:
                self._number(json.loads(line)["name"])
        self._named = len(self._names)
        names = _Appended(os.open(f"{stem}.names", _CREATE))
        rows = _Appended(os.open(f"{stem}.rows", _CREATE))
        self._files = (names, rows)
        # each call must have a number of its own, and wrote at least one row
        self._calls = count(rows.size // ROW.size)

    def add(self, values: Mapping[str, float], moment: float) -> None:
        """Add the values of one call, measured at `moment`, seconds since 1970. The value named
        `step` is the step of all others; alone, it is a row of its own."""
        if len(self._waiting) >= _MOST_WAITING:
            return
        call = next(self._calls) & 0xFFFFFFFF
        step = values.get("step", NOWHERE)
        rows = []
        for name, value in values.items():
            if name != "step" or len(values) == 1:
                rows.append(ROW.pack(self._number(name), call, step, moment, value))
        self._waiting.append(b"".join(rows))

    def add_calls(
        self, columns: Mapping[str, list[float]], steps: list[float], moments: list[float]
    ) -> None:
        """Add the values of many calls, which have the same names."""
        calls = [next(self._calls) & 0xFFFFFFFF for _ in steps]
        rows = []
        for name, values in columns.items():
            numbers = repeat(self._number(name))
            rows.append(map(ROW.pack, numbers, calls, steps, moments, values))
        interleaved = zip(*rows)  # noqa: B905 - Python 3.8 has no `strict`
        self._waiting.append(b"".join(chain.from_iterable(interleaved)))

    def _number(self, name: str) -> int:
        number = self._names.get(name)
        if number is None:
            with self._naming:
                number = self._names.setdefault(name, len(self._names))
        return number

    def flush(self) -> None:
        """Write what was added. What cannot be written is kept for the next call. Raises
        `OSError`."""
        with self._flushing:
            while self._rest or self._waiting:
                if not self._rest:
                    # the names of these rows are known by now
                    calls = [self._waiting.popleft() for _ in range(len(self._waiting))]
                    self._rest = b"".join(calls)
                self._write()

    def _write(self) -> None:
        """Write what is left, after the names that it needs."""
        files = self._files or self._create()
        self._files = files
        names = list(self._names)
        lines = [json.dumps({"name": name}) + "\n" for name in names[self._named :]]
        files[0].append("".join(lines).encode("ascii"))
        self._named = len(names)
        self._rest = files[1].append(self._rest, ROW.size)

    def _create(self) -> tuple[_Appended, _Appended]:
        """Create the files of the next attempt."""
        make_folder(self._folder)
        for attempt in count() if self._attempt is None else (self._attempt,):
            stem = f"{self._stem}.{attempt}"
            with suppress(FileExistsError):
                names = os.open(f"{stem}.names", _CREATE | os.O_EXCL, 0o600)
                rows = os.open(f"{stem}.rows", _CREATE | os.O_TRUNC, 0o600)
                return _Appended(names), _Appended(rows)
        raise AssertionError

    def close(self) -> None:
        """Close the files, without writing what is left."""
        for file in self._files:
            os.close(file.descriptor)
        self._files = ()


class _Appended:
    """A file that grows by whole units. A full disk can leave a part of a unit behind, which is cut
    off before anything follows it."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.size = os.fstat(descriptor).st_size

    def append(self, data: bytes, unit: int = 0) -> bytes:
        """Append `data` in one write, and return the units that were not written. Without `unit`,
        the data is one unit. Raises `OSError`, at the latest if not one unit was written."""
        if not data:
            return b""
        if os.fstat(self.descriptor).st_size != self.size:
            os.ftruncate(self.descriptor, self.size)
        written = os.write(self.descriptor, data)
        whole = written - written % (unit or len(data))
        if not whole:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.size += whole
        return data[whole:]
