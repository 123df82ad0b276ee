"""Copy the output of all processes into one journal and one file per rank, and keep the last lines for the verdict.

The journal `output.jsonl` holds two kinds of records, one per line:

    {"time": 1763712000.123, "instance": 0, "rank": 1, "stream": "stdout", "attempt": 0, "text": "step 1"}
    {"file": "logs/...", "inode": 4711, "offset": 1024, "rank": 1, "size": 980}

The first kind also has `values`, such as `{"step": 1, "train:loss": 0.25}`, if the job's `metrics` match the line, so
that readers of the journal need no patterns. A record of the second kind ends each batch of lines from one file; its
`offset` is the number of bytes of the file that are in the journal, and `size` the size of the rank's own file. The
process that finishes a lost run continues at this offset, and cuts the rank's file to this size.
"""

# Paths are strings here, because this module must start and poll quickly.
# ruff: noqa: PTH123
from __future__ import annotations

import json
import os
import sys
import time
from collections import deque

from cloudtrain.system.private import open_private
from cloudtrain.targets.local.service.sources import Source, SourceFinder

TYPE_CHECKING = False  # as typing.TYPE_CHECKING, without importing typing
if TYPE_CHECKING:
    from typing import Any

    from cloudtrain.launch.specification import LaunchSpecification
    from cloudtrain.system.patterns import MetricPatterns
    from cloudtrain.targets.local.service.folder import RunFolder
    from cloudtrain.targets.local.service.sources import RankOf

_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT

_CHUNK = 1 << 20
"""Maximum number of bytes read from one file before the next file is read."""

_FIND_EVERY = 0.1
"""Seconds between two searches for new files."""

_REMEMBERED = 200
"""Number of lines kept for the verdict, per rank and stream."""

_text = json.encoder.encode_basestring_ascii


class Output:
    """Follows all output files of a run. `metrics` holds the newest value of each metric."""

    def __init__(self, folder: RunFolder, spec: LaunchSpecification, rank_of: RankOf) -> None:
        self.metrics: dict[str, float] = {}
        self.hidden: tuple[str, ...] = ()
        """Texts to mask in every line: the values of the job's secrets."""
        self._folder = folder
        self._finder = SourceFinder(folder.logs, spec, rank_of)
        self._sources: list[Source] = []
        self._find_at = 0.0
        self._tails: dict[tuple[int, int | None, str], deque[str]] = {}
        self._rank_files: dict[int, int] = {}
        self._rank_sizes: dict[int, int | None] | None = None
        self._places: dict[str, dict[str, Any]] = {}
        self._lowest: dict[str, int] = {}
        self._patterns: MetricPatterns | None = None
        if spec.metrics:
            from cloudtrain.system.patterns import MetricPatterns

            self._patterns = MetricPatterns(spec.metrics)
        self._journal = open_private(folder.journal, _APPEND)

    @property
    def restarts(self) -> int:
        """Return how often the ranks were restarted."""
        return self._finder.restarts

    def resume(self) -> None:
        """Continue after the last complete batch in the journal of a dead supervisor. Remove an incomplete batch, also
        from the ranks' own files, which are written first."""
        size = whole = 0
        self._rank_sizes = {}
        with open(self._folder.journal, "rb") as journal:
            for line in journal:
                size += len(line)
                if line.startswith(b'{"file"') and line.endswith(b"}\n"):
                    record = json.loads(line)
                    self._places[record["file"]] = record
                    self._rank_sizes[record["rank"]] = record.get("size")  # earlier versions wrote none
                    whole = size
        os.ftruncate(self._journal, whole)

    def pump(self, *, at_once: bool = False) -> bool:
        """Read a limited amount of the available output. Return True if more is available. `at_once`: look for new
        files in this call, and read them even if their ranks are not known yet.

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
        """Read all files to their end, including last lines without a newline. Call this after all processes have
        ended."""
        while self.pump(at_once=True):
            pass
        for source in self._sources:
            before, lines = source.consumed, source.lines.flush()
            self._hide(source, before, lines)
            self._write(source, lines, time.time())

    def tail(self, instance: int, rank: int | None, stream: str) -> list[str]:
        """Return the last lines that a rank wrote. If `rank` is None, return the last lines of the instance's
        launcher."""
        return list(self._tails.get((-1 if rank is not None else instance, rank, stream), ()))

    def close(self) -> None:
        """Close the journal and all output files."""
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
        before, chunk = source.consumed, source.read(_CHUNK)
        if chunk:
            lines = source.lines.feed(chunk, now)
            self._hide(source, before, lines)
            self._write(source, lines, now)
        return len(chunk) == _CHUNK

    def _hide(self, source: Source, start: int, lines: list[str]) -> None:
        """Mask secrets in `lines`, and in the file of `source` from the position `start`, where these lines begin."""
        if not self.hidden:
            return
        from cloudtrain.runtime.secret_values import masked

        lines[:] = [masked(line, self.hidden) for line in lines]
        source.erase(start, [form.encode() for form in self.hidden])

    def _write(self, source: Source, lines: list[str], now: float) -> None:
        if not lines:
            return
        records = self._records(source, lines, now)
        place: dict[str, Any] = {
            "file": self._relative(source), "inode": source.inode, "offset": source.consumed, "rank": source.rank
        }  # fmt: skip
        if source.rank is not None:
            place["size"] = os.fstat(self._rank_file(source.rank)).st_size
        records.append(json.dumps(place) + "\n")
        _write_all(self._journal, "".join(records).encode("ascii"))

    def _records(self, source: Source, lines: list[str], now: float) -> list[str]:
        """Return the journal records for the lines. Also add the lines to their rank's own file, and remember the last
        lines for `tail`."""
        rank, stream = source.rank, source.stream
        key = (-1 if rank is not None else source.instance, rank, stream)
        if key not in self._tails:
            self._tails[key] = deque(maxlen=_REMEMBERED)
        self._tails[key].extend(lines[-_REMEMBERED:])
        values = self._values(lines, rank)
        if rank is not None:
            _write_all(self._rank_file(rank), ("\n".join(lines) + "\n").encode("utf-8", "replace"))
        head = (
            f'{{"time": {now:.3f}, "instance": {source.instance}, "rank": {json.dumps(rank)}, '
            f'"stream": "{stream}", "attempt": {source.attempt}, "text": '
        )
        if self._patterns is None:
            return [f"{head}{_text(line)}}}\n" for line in lines]
        records = []
        for number, line in enumerate(lines):
            found = f', "values": {json.dumps(values[number])}' if number in values else ""
            records.append(f"{head}{_text(line)}{found}}}\n")
        return records + self._complaints(now)

    def _complaints(self, now: float) -> list[str]:
        """Return warnings about the metric patterns as journal records, as if the first instance's launcher had written
        them."""
        assert self._patterns is not None
        said, self._patterns.complaints = self._patterns.complaints, []
        head = {"time": round(now, 3), "instance": 0, "rank": None, "stream": "stderr", "attempt": 0}
        return [json.dumps({**head, "text": text}) + "\n" for text in said]

    def _rank_file(self, rank: int) -> int:
        if rank not in self._rank_files:
            path = f"{self._folder.logs}/rank_{rank}.log"
            self._rank_files[rank] = open_private(path, _APPEND)
            whole = None if self._rank_sizes is None else self._rank_sizes.get(rank, 0)
            if whole is not None and os.fstat(self._rank_files[rank]).st_size > whole:
                os.ftruncate(self._rank_files[rank], whole)
        return self._rank_files[rank]

    def _values(self, lines: list[str], rank: int | None) -> dict[int, dict[str, float]]:
        """Search lines with the job's patterns. Map each index in `lines` to its values, and update `metrics`. The
        runtime's own `[metrics]` lines are not searched; their values only update `metrics`."""
        found: dict[int, dict[str, float]] = {}
        for number, line in enumerate(lines):
            if "[metrics]" in line:
                from cloudtrain.runtime.metrics import parse_metrics

                if (values := parse_metrics(line)) is not None:
                    self.metrics.update(values)
                    continue
            if self._patterns is not None and (values := self._patterns.read(line)) is not None:
                found[number] = values
                self.metrics.update(self._of_lowest(values, rank))
        return found

    def _of_lowest(self, values: dict[str, float], rank: int | None) -> dict[str, float]:
        """Return the items of `values` whose metric no lower rank has printed, as `core.states.Metrics` does."""
        own = sys.maxsize if rank is None else rank
        kept = {name: value for name, value in values.items() if own <= self._lowest.setdefault(name, own)}
        self._lowest.update(dict.fromkeys(kept, own))
        return kept


def _write_all(descriptor: int, data: bytes) -> None:
    """Append all data to a file. On a full disk, append only complete lines, so that the next record never follows an
    incomplete one."""
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(descriptor, view) :]
    except OSError:
        written = len(data) - len(view)
        whole = data.rfind(b"\n", 0, written) + 1
        os.ftruncate(descriptor, os.fstat(descriptor).st_size - (written - whole))
        raise
