"""The output of a run's processes over all restarts. Each call reads on from where the last one stopped."""

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
"""Most bytes read of one file at a time."""

_AT_ONCE = 16 * 2**20
"""Most bytes read of all files at a time."""

_MOST_FILES = 400
"""Most files named in one command line."""

_LONGEST = 32 * 1024
"""Most bytes of a line. A longer line is split."""


@dataclass
class _File:
    """One file, and the position up to which it was read."""

    name: str
    restart: int
    node: int
    rank: int | None
    stream: str
    read: int = 0
    pending: bytes = b""

    @property
    def order(self) -> tuple[int, int, int, str]:
        """Sort key: restarts in order, and ranks within each restart."""
        return (self.restart, self.node, -1 if self.rank is None else self.rank, self.stream)


@dataclass
class RunLog:
    """The log of one run. The time of a line is the last time at which its file was written."""

    runner: Runner
    folder: str
    rank: int | None = None
    instance: int | None = None
    streams: dict[str, _File] = field(default_factory=dict)

    def new_lines(self) -> Iterator[LogLine]:
        """Yield the lines since the last call. An error in between neither loses nor repeats a line."""
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
        """Yield the text after the last end of a line, once nothing is written any more."""
        for file in sorted(self.streams.values(), key=lambda one: one.order):
            if file.pending:
                text, file.pending = _text(file.pending), b""
                yield _line(file, text, self._times.get(file.name, 0.0))

    def __post_init__(self) -> None:
        self._times: dict[str, float] = {}

    def _grown(self) -> list[tuple[_File, int, float]]:
        """Return the files with unread bytes, with their size and time."""
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
    """Return a line as a terminal would show it: the last state of a progress bar."""
    return line.decode("utf-8", "replace").rstrip("\r").rpartition("\r")[2]


def _line(file: _File, text: str, time: float) -> LogLine:
    return LogLine(time, file.node, file.rank, file.stream, text)
