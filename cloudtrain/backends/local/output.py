"""Every process's output, followed into one journal, into one file per rank, and kept at hand for the verdict.

The journal `output.jsonl` holds two kinds of records, one per line:

    {"time": 1763712000.123, "instance": 0, "rank": 1, "stream": "stdout", "attempt": 0, "text": "step 1"}
    {"file": "logs/...", "inode": 4711, "offset": 1024, "rank": 1}

The second kind closes each batch: so much of that file is in the journal. Whoever finishes a lost run goes on there.
"""

# Paths are strings here: this has to start, and to poll, in no time.
# ruff: noqa: PTH123
from __future__ import annotations

import json
import os
import time
from collections import deque

from cloudtrain.backends.local.sources import Source, SourceFinder

TYPE_CHECKING = False  # as typing.TYPE_CHECKING, without importing typing
if TYPE_CHECKING:
    from typing import Any

    from cloudtrain.backends.local.folder import RunFolder
    from cloudtrain.backends.local.sources import RankOf

_CHUNK = 1 << 20
"""Bytes read from one file before the others have their turn."""

_FIND_EVERY = 0.1
"""Seconds between two looks for new files."""

_REMEMBERED = 200
"""Lines per rank and stream that the verdict may look at."""

_text = json.encoder.encode_basestring_ascii


class Output:
    """Follows all files of a run. `metrics` holds the newest values of the metric lines."""

    def __init__(self, folder: RunFolder, spec: dict[str, Any], rank_of: RankOf) -> None:
        self.metrics: dict[str, float] = {}
        self._folder = folder
        self._finder = SourceFinder(folder.logs, spec, rank_of)
        self._sources: list[Source] = []
        self._find_at = 0.0
        self._tails: dict[tuple[int, int | None, str], deque[str]] = {}
        self._rank_files: dict[int, int] = {}
        self._places: dict[str, dict[str, Any]] = {}
        self._journal = os.open(folder.journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    @property
    def restarts(self) -> int:
        """How often ranks were started again."""
        return self._finder.restarts

    def resume(self) -> None:
        """Go on behind the last whole batch in the journal of a dead supervisor. What it wrote of another one goes."""
        size = whole = 0
        with open(self._folder.journal, "rb") as journal:
            for line in journal:
                size += len(line)
                if line.startswith(b'{"file"') and line.endswith(b"}\n"):
                    record = json.loads(line)
                    self._places[record["file"]] = record
                    whole = size
        os.ftruncate(self._journal, whole)

    def pump(self, *, at_once: bool = False) -> bool:
        """Read what is there, a bounded amount. True when there is more.

        Raises:
            OSError: the journal cannot be written.
        """
        now = time.time()
        if at_once or now >= self._find_at:
            self._find_at = now + _FIND_EVERY
            for source in (*self._finder.launched(), *self._finder.new_ranks(at_once=at_once)):
                self._adopt(source)
        return any([self._read(source, now) for source in self._sources])  # noqa: C419 - every source has its turn

    def drain(self) -> None:
        """Read everything to its end, last lines without a newline too. Nobody may be writing any more."""
        while self.pump(at_once=True):
            pass
        for source in self._sources:
            self._write(source, source.lines.flush(), time.time())

    def tail(self, instance: int, rank: int | None, stream: str) -> list[str]:
        """The last lines that a rank wrote, or with None the launcher of an instance."""
        return list(self._tails.get((-1 if rank is not None else instance, rank, stream), ()))

    def close(self) -> None:
        """Let all files go."""
        for source in self._sources:
            source.close()
        for descriptor in (*self._rank_files.values(), self._journal):
            os.close(descriptor)

    def _adopt(self, source: Source) -> None:
        place = self._places.get(self._relative(source))
        if place is not None and place["inode"] == source.inode:
            source.offset, source.rank = place["offset"], place["rank"]
        self._sources.append(source)

    def _relative(self, source: Source) -> str:
        return os.path.relpath(source.path, self._folder.path)

    def _read(self, source: Source, now: float) -> bool:
        chunk = source.read(_CHUNK)
        if chunk:
            self._write(source, source.lines.feed(chunk, now), now)
        return len(chunk) == _CHUNK

    def _write(self, source: Source, lines: list[str], now: float) -> None:
        if not lines:
            return
        records = self._records(source, lines, now)
        place = {
            "file": self._relative(source), "inode": source.inode, "offset": source.consumed, "rank": source.rank
        }  # fmt: skip
        records.append(json.dumps(place) + "\n")
        _write_all(self._journal, "".join(records).encode("ascii"))

    def _records(self, source: Source, lines: list[str], now: float) -> list[str]:
        """The journal's records of some lines; the lines go into their rank's own file and tail on the way."""
        rank, stream = source.rank, source.stream
        key = (-1 if rank is not None else source.instance, rank, stream)
        if key not in self._tails:
            self._tails[key] = deque(maxlen=_REMEMBERED)
        self._tails[key].extend(lines[-_REMEMBERED:])
        self._note_metrics(lines)
        if rank is not None:
            _write_all(self._rank_file(rank), ("\n".join(lines) + "\n").encode("utf-8", "replace"))
        head = (
            f'{{"time": {now:.3f}, "instance": {source.instance}, "rank": {json.dumps(rank)}, '
            f'"stream": "{stream}", "attempt": {source.attempt}, "text": '
        )
        return [f"{head}{_text(line)}}}\n" for line in lines]

    def _rank_file(self, rank: int) -> int:
        if rank not in self._rank_files:
            path = f"{self._folder.logs}/rank_{rank}.log"
            self._rank_files[rank] = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        return self._rank_files[rank]

    def _note_metrics(self, lines: list[str]) -> None:
        for line in lines:
            if "[metrics]" in line:
                from cloudtrain.runtime.metrics import parse_metrics

                self.metrics.update(parse_metrics(line) or {})


def _write_all(descriptor: int, data: bytes) -> None:
    """Append all of it; on a full disk the lines that fit, so that no half record stays in front of the next one."""
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(descriptor, view) :]
    except OSError:
        written = len(data) - len(view)
        whole = data.rfind(b"\n", 0, written) + 1
        os.ftruncate(descriptor, os.fstat(descriptor).st_size - (written - whole))
        raise
