"""The output of a run's processes over all restarts. Each call of `RunLog.new_lines` yields only new lines."""

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
"""Maximum number of bytes read from one file in one step."""

_AT_ONCE = 16 * 2**20
"""Maximum number of bytes read from all files in one step."""

_MOST_FILES = 400
"""Maximum number of files in one command line."""

_LONGEST = 32 * 1024
"""Maximum length of a line in bytes. A longer line is split."""


@dataclass
class _File:
    """One log file, and how many of its bytes were read."""

    name: str
    restart: int
    node: int
    rank: int | None
    stream: str
    read: int = 0
    pending: bytes = b""

    @property
    def order(self) -> tuple[int, int, int, str]:
        """Return the sort key, which orders files by restart, then by node, then by rank."""
        return (self.restart, self.node, -1 if self.rank is None else self.rank, self.stream)


@dataclass
class RunLog:
    """The log of one run. The time of a line is the modification time of its file."""

    runner: Runner
    folder: str
    rank: int | None = None
    instance: int | None = None
    streams: dict[str, _File] = field(default_factory=dict)

    def new_lines(self) -> Iterator[LogLine]:
        """Yield the lines written since the last call. No line is lost or repeated, even after an error."""
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
        """Yield the last line of each file whose last line has no newline. Call this after the run has ended."""
        for file in sorted(self.streams.values(), key=lambda one: one.order):
            if file.pending:
                text, file.pending = _text(file.pending), b""
                yield _line(file, text, self._times.get(file.name, 0.0))

    def __post_init__(self) -> None:
        self._times: dict[str, float] = {}

    def _grown(self) -> list[tuple[_File, int, float]]:
        """Return the files with unread bytes, each with its size and modification time."""
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
                "a log file became shorter while it was read",
                hint="run `cloudtrain logs` again to read it from the beginning",
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
    """Decode a line. If a progress bar overwrote the line, return only the last state."""
    return line.decode("utf-8", "replace").rstrip("\r").rpartition("\r")[2]


def _line(file: _File, text: str, time: float) -> LogLine:
    return LogLine(time, file.node, file.rank, file.stream, text)
