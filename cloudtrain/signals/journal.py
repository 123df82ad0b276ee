"""The journal of a run's output: the text in files of plain lines, and an index of its batches.

    logs/rank_<r>.log       the lines of one rank: all attempts, stdout and stderr, as they arrive
    logs/instance_<i>.log   the lines of the launcher of an instance
    output.sources          JSON lines: each source of lines, and the text file that they go into
    output.index            16 bytes a batch, little-endian: uint32 milliseconds since the `time` of
                            its source, uint16 source (the number of a line, from 0), uint16 lines,
                            uint32 bytes in the text file, uint32 bytes that were read of the source

The batches stand in the order in which they arrived. The text of a batch begins where the batch
before it in the same text file ends. The row of a batch is written last: without a whole row, the
batch does not exist, and a reader ignores what follows the last row in a file. The process that
finishes a lost run cuts the files to what the rows have, and continues each source behind the bytes
that were read of it.

The supervisor of a run imports this module, which must load quickly.
"""

# Paths are strings here, because the supervisor must start and poll quickly.
from __future__ import annotations

import json
import os
from collections import defaultdict
from struct import Struct
from typing import NamedTuple

from cloudtrain.system.private import open_private

INDEX = "output.index"
SOURCES = "output.sources"
"""The names of the files in the run's folder."""

ROW = Struct("<IHHII")

_LONGEST = 0xFFFFFFFF
"""The most milliseconds in a row. After them a source is named again, with a new `time`."""

_APPEND = os.O_RDWR | os.O_APPEND | os.O_CREAT


class OutputSource(NamedTuple):
    """A source of lines: a file into which a process writes. A restarted process has another one,
    which can have the same path."""

    instance: int
    rank: int | None
    """None for the launcher of an instance."""
    stream: str
    attempt: int = 0
    file: str = ""
    inode: int = 0

    @property
    def text(self) -> str:
        """The path of the text file, relative to the run's folder."""
        if self.rank is None:
            return f"logs/instance_{self.instance}.log"
        return f"logs/rank_{self.rank}.log"


class KnownSource(NamedTuple):
    """A source, and the second since 1970 from which the times of its batches count."""

    source: OutputSource
    time: int


def known_sources(data: bytes) -> list[KnownSource]:
    """Return the sources in the whole lines of a file. Raises ValueError for damaged lines."""
    known = []
    for line in data.split(b"\n")[:-1]:
        record = json.loads(line)
        time = record.pop("time")
        known.append(KnownSource(OutputSource(**record), time))
    return known


class JournalWriter:
    """Appends to the journal of the run in `folder`."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._index = open_private(f"{folder}/{INDEX}", _APPEND)
        self._sources = open_private(f"{folder}/{SOURCES}", _APPEND)
        self._texts: dict[str, int] = {}
        self._sizes: dict[str, int] = defaultdict(int)
        """The sizes of the text files before they are opened."""
        self._known: dict[OutputSource, tuple[int, int]] = {}
        """The number and the time of each source."""
        self._count = 0

    def resume(self) -> list[tuple[OutputSource, int]]:
        """Cut off what a killed writer left incomplete. Return the sources, and how many bytes of
        each are in the journal. Raises ValueError or LookupError if the journal is damaged."""
        data = _contents(self._sources)
        os.ftruncate(self._sources, data.rfind(b"\n") + 1)
        known = known_sources(data)
        self._count = len(known)

        rows = _contents(self._index)
        whole = len(rows) - len(rows) % ROW.size
        os.ftruncate(self._index, whole)
        read: dict[OutputSource, int] = defaultdict(int)
        for _, number, _, length, consumed in ROW.iter_unpack(rows[:whole]):
            source = known[number].source
            read[source] += consumed
            self._sizes[source.text] += length
        return list(read.items())

    def append(self, source: OutputSource, lines: list[str], consumed: int, now: float) -> None:
        """Append lines, for which `consumed` bytes of the source were read. Raises `OSError`; the
        files are then as before."""
        text = "".join([f"{line}\n" for line in lines]).encode("utf-8", "replace")
        number, start = self._known.get(source, (0, 0))
        moment = int((now - start) * 1000)
        record = b""
        if not 0 <= moment <= _LONGEST:
            number = self._count
            start = int(now)
            moment = int((now - start) * 1000)
            record = json.dumps({**source._asdict(), "time": start}).encode() + b"\n"

        row = ROW.pack(moment, number, len(lines), len(text), consumed)
        _append((self._sources, record), (self._text(source.text), text), (self._index, row))
        if record:
            self._known[source] = (number, start)
            self._count += 1

    def close(self) -> None:
        for descriptor in (*self._texts.values(), self._sources, self._index):
            os.close(descriptor)

    def _text(self, path: str) -> int:
        """Return the descriptor of a text file, which is cut to what the journal has of it."""
        if path not in self._texts:
            descriptor = open_private(f"{self._folder}/{path}", _APPEND)
            self._texts[path] = descriptor
            # longer after a power failure, because later batches must not begin before its end
            os.ftruncate(descriptor, self._sizes[path])
        return self._texts[path]


def _append(*parts: tuple[int, bytes]) -> None:
    """Append data to files, in this order. If an error is raised, no file has more than before."""
    sizes = [(descriptor, os.fstat(descriptor).st_size) for descriptor, _ in parts]
    try:
        for descriptor, data in parts:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
    except OSError:
        for descriptor, size in sizes:
            os.ftruncate(descriptor, size)
        raise


def _contents(descriptor: int) -> bytes:
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0)
