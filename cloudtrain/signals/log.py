"""Read the output of a run by the numbers of its lines. `cloudtrain/signals/journal.py` describes
the files of a run on this machine."""

from __future__ import annotations

import os
import re
from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence, Sized
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple, Protocol, TypeVar

from cloudtrain.plans.progress import LogLine
from cloudtrain.signals.journal import INDEX, ROW, SOURCES, KnownSource, OutputSource, known_sources

_BLOCK = 1 << 16
"""Bytes of a text file that are read at once."""


class LogBatch(NamedTuple):
    """Lines of one process that arrived together. The fields are those of a `LogLine`."""

    time: float
    instance: int
    rank: int | None
    stream: str
    texts: Sequence[str]

    def lines(self) -> Iterator[LogLine]:
        for text in self.texts:
            yield LogLine(self.time, self.instance, self.rank, self.stream, text)


def batch_of(line: LogLine) -> LogBatch:
    """Return a line as a batch of its own."""
    return LogBatch(line.time, line.instance, line.rank, line.stream, (line.text,))


L = TypeVar("L", covariant=True)


class Log(Protocol[L]):
    """A job's output, line by line or in batches. Each call of `new_lines` continues where the
    previous one stopped."""

    @property
    def streams(self) -> Sized:
        return ()

    @property
    def mark(self) -> Any:
        """Where the reading has stopped, as JSON, once all new lines were taken. A log that is made
        with it goes on there, and has the rest of lines that were not complete."""
        return None

    def new_lines(self) -> Iterator[L]:
        """Yield the lines since the last call. After an error, no line is lost or repeated."""
        ...

    def rest(self) -> Iterator[L]:
        """Yield last lines that do not end in a newline, after the job has ended."""
        return iter(())


class CountedLog(Log[LogLine]):
    """Lines of which an earlier reading has taken the first ones."""

    def __init__(self, lines: Iterable[LogLine], mark: int | None) -> None:
        self._count = mark or 0
        self._lines = islice(lines, self._count, None)

    @property
    def mark(self) -> int:
        return self._count

    def new_lines(self) -> Iterator[LogLine]:
        for line in self._lines:
            self._count += 1
            yield line


class LogIndex:
    """The lines of a log so far, numbered from 0."""

    _is_in_order = False
    """Whether no line is older than the one before."""

    def __init__(self, lines: Iterable[LogLine] = ()) -> None:
        self._lines = list(lines)
        self._ends = array("Q", range(1, len(self._lines) + 1))
        """The number of lines up to the end of each batch."""

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def update(self) -> None:
        """Look for new lines. Only the log of a run on this machine gets any."""

    def window(self, first: int, count: int) -> list[LogLine]:
        """Return `count` lines from the number `first` on, or as many as there are."""
        lines: list[LogLine] = []
        for start, batch in self.batches(first):
            skipped = max(0, first - start)
            lines += islice(batch.lines(), skipped, skipped + count - len(lines))
            if len(lines) >= count:
                break
        return lines

    def find(self, pattern: str | re.Pattern[str], first: int = 0) -> int | None:
        """Return the number of the next line that the regular expression matches, from the number
        `first` on; None if there is none."""
        search = re.compile(pattern).search
        for start, batch in self.batches(first):
            for number, text in enumerate(batch.texts, start):
                if number >= first and search(text):
                    return number
        return None

    def batches(self, first: int = 0) -> Iterator[tuple[int, LogBatch]]:
        """Yield the batches, from the one with the line number `first` on, each with the number of
        its first line."""
        for position in range(bisect_right(self._ends, first), len(self._ends)):
            start = self._ends[position - 1] if position else 0
            yield start, self._batch(position)

    def newest(self, since: float | None = None) -> Iterator[LogBatch]:
        """Yield the batches, the newest first, without those before the time `since`. Only what is
        taken is read."""
        for position in reversed(range(len(self._ends))):
            batch = self._batch(position)
            if since is None or batch.time >= since:
                yield batch
            elif self._is_in_order:
                return

    def _batch(self, position: int) -> LogBatch:
        return batch_of(self._lines[position])


class JournalIndex(LogIndex, Log[LogBatch]):
    """The lines in the journal of a run: those of one rank, of one instance or of all. Text is read
    when it is asked for."""

    _is_in_order = True

    def __init__(
        self, folder: str, *, rank: int | None = None, instance: int | None = None, first: int = 0
    ) -> None:
        """`new_lines` begins at the line with the number `first`."""
        super().__init__()
        self._folder = folder
        self._rank = rank
        self._instance = instance
        self._next = first
        self._sources: list[KnownSource] = []
        self._read = 0
        """The bytes of the index that were read."""
        self._sizes: dict[str, int] = defaultdict(int)
        """The bytes of each text file up to the newest batch."""
        self._rows = bytearray()
        """The rows of the batches that are wanted."""
        self._starts = array("Q")
        """Where the text of each of these batches begins."""
        self._ends = array("Q")
        self._blocks: dict[str, tuple[int, bytes]] = {}

    def update(self) -> None:
        try:
            with open(f"{self._folder}/{INDEX}", "rb", buffering=0) as file:
                file.seek(self._read)
                data = file.readall()
            with open(f"{self._folder}/{SOURCES}", "rb") as file:
                self._sources = known_sources(file.read())
        except FileNotFoundError:
            return
        whole = len(data) - len(data) % ROW.size
        self._read += whole
        sources = [(source.text, self._is_wanted(source)) for source, _ in self._sources]
        count = len(self)
        for offset in range(0, whole, ROW.size):
            _, number, lines, length, _ = ROW.unpack_from(data, offset)
            if number >= len(sources):  # of a power failure
                continue
            text, is_wanted = sources[number]
            start = self._sizes[text]
            self._sizes[text] = start + length
            if lines and is_wanted:
                count += lines
                self._ends.append(count)
                self._starts.append(start)
                self._rows += data[offset : offset + ROW.size]

    @property
    def mark(self) -> int:
        """The number of the first line that `new_lines` has not yielded."""
        return self._next

    def new_lines(self) -> Iterator[LogBatch]:
        self.update()
        for start, batch in self.batches(self._next):
            skipped = self._next - start
            self._next = start + len(batch.texts)
            yield batch._replace(texts=batch.texts[skipped:]) if skipped else batch

    def _is_wanted(self, source: OutputSource) -> bool:
        is_rank = self._rank in (None, source.rank)
        return is_rank and self._instance in (None, source.instance)

    def _batch(self, position: int) -> LogBatch:
        moment, number, count, length, _ = ROW.unpack_from(self._rows, position * ROW.size)
        source, time = self._sources[number]
        data = self._text(source.text, self._starts[position], length)
        texts = data.decode("utf-8", "replace").split("\n")[:-1]
        # a power failure may have lost text whose row it has not lost
        texts += [""] * (count - len(texts))
        return LogBatch(time + moment / 1000, source.instance, source.rank, source.stream, texts)

    def _text(self, name: str, start: int, length: int) -> bytes:
        """Return a part of a text file. The block around it is kept for the batches beside it."""
        first, block = self._blocks.get(name, (0, b""))
        if not first <= start <= start + length <= first + len(block):
            first = start - start % _BLOCK
            end = max(start + length, first + _BLOCK)
            # what is behind the newest batch may still be cut off
            size = min(end, self._sizes[name]) - first
            with suppress(FileNotFoundError), open(f"{self._folder}/{name}", "rb", 0) as file:
                block = os.pread(file.fileno(), size, first)
            self._blocks[name] = (first, block)
        return block[start - first : start - first + length]
