"""The output of a run's processes, read on from where it stopped, over all of its restarts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from cloudtrain.core.states import LogLine
from cloudtrain.errors import TargetError
from cloudtrain.targets.slurm.service import scripts
from cloudtrain.targets.slurm.service.runner import Runner

_FILE = re.compile(
    r"(?P<restart>\d+)/node_(?P<node>\d+)\.(?:rank_(?P<rank>\d+)|launcher)\.(?P<stream>stdout|stderr)\.log"
)

_MOST = 4 * 2**20
"""Bytes that are read of a file at a time."""

_AT_ONCE = 16 * 2**20
"""Bytes that are read of all files at a time."""

_MOST_FILES = 400
"""Files that are named in one command line."""

_LONGEST = 32 * 1024
"""Bytes of a line; a longer one goes on in further lines."""


@dataclass
class _File:
    """One file, and how far it was read."""

    name: str
    restart: int
    node: int
    rank: int | None
    stream: str
    read: int = 0
    pending: bytes = b""

    @property
    def order(self) -> tuple[int, int, int, str]:
        """Restarts in their order, and ranks within each."""
        return (self.restart, self.node, -1 if self.rank is None else self.rank, self.stream)


@dataclass
class RunLog:
    """The log of one run. Lines have the time at which their file was written last."""

    runner: Runner
    folder: str
    rank: int | None = None
    instance: int | None = None
    streams: dict[str, _File] = field(default_factory=dict)

    def new_lines(self) -> Iterator[LogLine]:
        """The lines since the last call. An error in between loses none and repeats none."""
        while True:
            grown = self._grown()
            wanted = [(file, min(size - file.read, _MOST), time) for file, size, time in grown]
            wanted = wanted[: max(1, _AT_ONCE // max((length for _, length, _ in wanted), default=1))][:_MOST_FILES]
            if not wanted:
                return
            pieces = self._read([(file.name, file.read, length) for file, length, _ in wanted])
            for (file, length, time), piece in zip(wanted, pieces, strict=True):
                lines = _take_lines(file, piece)
                file.read += length
                yield from (_line(file, text, time) for text in lines)

    def rest(self) -> Iterator[LogLine]:
        """What stands after the last end of a line, once nothing is written any more."""
        for file in sorted(self.streams.values(), key=lambda one: one.order):
            if file.pending:
                text, file.pending = _text(file.pending), b""
                yield _line(file, text, self._times.get(file.name, 0.0))

    def __post_init__(self) -> None:
        self._times: dict[str, float] = {}

    def _grown(self) -> list[tuple[_File, int, float]]:
        """The files that have more than was read, with their size and time."""
        found = []
        for line in self.runner.run(scripts.SIZES, self.folder).decode("utf-8", "replace").splitlines():
            size, time, name = line.split(" ", 2)
            match = _FILE.fullmatch(name)
            if match is None or not self._is_wanted(match):
                continue
            rank = match["rank"]
            file = self.streams.setdefault(
                name,
                _File(name, int(match["restart"]), int(match["node"]), int(rank) if rank else None, match["stream"]),
            )
            self._times[name] = float(time)
            if int(size) > file.read:
                found.append((file, int(size), float(time)))
        return sorted(found, key=lambda item: item[0].order)

    def _is_wanted(self, match: re.Match[str]) -> bool:
        if self.instance is not None and int(match["node"]) != self.instance:
            return False
        return self.rank is None or match["rank"] == str(self.rank)

    def _read(self, pieces: list[tuple[str, int, int]]) -> list[bytes]:
        words = [str(word) for piece in pieces for word in piece]
        answer = self.runner.run(scripts.READ, self.folder, *words)
        found, start = [], 0
        for _, _, length in pieces:
            found.append(answer[start : start + length])
            start += length
        if start != len(answer):
            raise TargetError(
                "a log file is shorter than it was", hint="`cloudtrain logs` again reads it from the beginning"
            )
        return found


def _take_lines(file: _File, piece: bytes) -> list[str]:
    *whole, file.pending = (file.pending + piece).split(b"\n")
    lines = [_text(line) for line in whole]
    while len(file.pending) > _LONGEST:
        lines.append(_text(file.pending[:_LONGEST]))
        file.pending = file.pending[_LONGEST:]
    return lines


def _text(line: bytes) -> str:
    """A line as a terminal would show it: of a progress bar, the last state."""
    return line.decode("utf-8", "replace").rstrip("\r").rpartition("\r")[2]


def _line(file: _File, text: str, time: float) -> LogLine:
    return LogLine(time, file.node, file.rank, file.stream, text)
