"""Copy the output of all processes into one journal and one file per rank, and keep the last lines
for the verdict.

The journal `output.jsonl` holds two kinds of records, one per line:

    {"time": 1763712000.123, "instance": 0, "rank": 1, "stream": "stdout", "attempt": 0,
     "text": "step 1"}
    {"file": "logs/...", "inode": 4711, "offset": 1024, "rank": 1, "size": 980}

The first kind also has `values`, such as `{"step": 1, "train:loss": 0.25}`, if the job's `metrics`
match the line, so that readers of the journal need no patterns. A record of the second kind ends
each batch of lines from one file; its `offset` is the number of bytes of the file that are in the
journal, and `size` the size of the rank's own file. The process that finishes a lost run continues
at this offset, and cuts the rank's file to this size.
"""

# Paths are strings here, because this module must start and poll quickly.
from __future__ import annotations

import json
import os
import sys
import time
from collections import deque

from cloudtrain.system.private import open_private

TYPE_CHECKING = False  # like typing.TYPE_CHECKING, without importing typing
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    from cloudtrain.system.patterns import MetricPatterns
    from cloudtrain.targets.common.specification import LaunchSpecification, StartedProcess
    from cloudtrain.targets.local.folder import RunFolder


# Split the bytes of one stream into lines of text, as a terminal would show them.

LONGEST = 32 * 1024
"""Maximum length of a line in bytes. A longer line is split."""

PROGRESS_EVERY = 5.0
"""Seconds between two recorded states of a progress bar that is still running."""


class LineSplitter:
    """Splits one stream into lines. `pending` holds the bytes after the last complete line. Invalid
    UTF-8 is replaced. If a line contains carriage returns, only the text after the last one is
    kept. While a progress bar runs, its current text is added as a line every few seconds."""

    def __init__(self) -> None:
        self.pending = b""
        self._progress_at = 0.0

    def feed(self, chunk: bytes, now: float) -> list[str]:
        """Return the lines that `chunk` completes. `now` is the current time in seconds, by any
        clock."""
        data = self.pending + chunk
        end = data.rfind(b"\n") + 1
        lines = _texts(data[:end]) if end else []
        self.pending = data[end:]
        if b"\r" in self.pending:
            lines += self._progress(now)

        # a line without an end must not grow for ever
        *pieces, self.pending = _pieces(self.pending)
        return lines + [piece.decode("utf-8", "replace") for piece in pieces]

    def flush(self) -> list[str]:
        """At the end of the stream, return the incomplete last line as a list; empty if there is
        none."""
        rest = self.pending
        self.pending = b""
        return _texts(rest + b"\n") if rest.strip(b"\r") else []

    def _progress(self, now: float) -> list[str]:
        """Drop all but the newest states of a progress bar. If none was recorded lately, return its
        newest complete state."""
        states = self.pending.split(b"\r")
        # the newest state, and the one before it, for when the newest is empty
        self.pending = b"\r".join(states[-2:])
        complete = [state for state in states[:-1] if state]
        if not complete or now - self._progress_at < PROGRESS_EVERY:
            return []
        self._progress_at = now
        return _texts(complete[-1] + b"\n")


def _texts(data: bytes) -> list[str]:
    """Split `data`, which ends with a newline, into lines."""
    lines = data.decode("utf-8", "replace").split("\n")
    lines.pop()  # the empty text after the last newline
    if b"\r" in data:
        lines = [line.rstrip("\r").rpartition("\r")[2] for line in lines]
    # a character has at most four bytes, so shorter lines are surely not too long
    if len(data) > LONGEST and max(map(len, lines)) > LONGEST // 4:
        return [
            piece.decode("utf-8", "replace") for line in lines for piece in _pieces(line.encode())
        ]
    return lines


def _pieces(data: bytes) -> list[bytes]:
    """Cut `data` into pieces that are not too long. A cut is where a UTF-8 character begins."""
    pieces = []
    while len(data) > LONGEST:
        cut = LONGEST
        while cut > LONGEST - 3 and data[cut] & 0xC0 == 0x80:
            cut -= 1
        pieces.append(data[:cut])
        data = data[cut:]
    return [*pieces, data]


# The files that receive the output of a run's processes, and which process writes each file.

if TYPE_CHECKING:
    RankOf = Callable[[int, int], int | None]
    """Maps an instance and a local rank to the global rank; None if it is not yet known."""

STREAMS = ("stdout", "stderr")

_KNOWN_SOON = 10.0
"""Seconds to wait until the process that writes a new file is found. Its environment has the
rank."""


def launched_log(logs: str, process: StartedProcess, index: int, stream: str) -> str:
    """Return the path of the output file of a process that the supervisor starts. `index` is the
    process's position in the launch specification."""
    return f"{logs}/instance_{process.instance}/{process.role}_{index}.{stream}.log"


class OutputFile:
    """One output file, with the position `offset` up to which it was read."""

    def __init__(
        self, path: str, *, instance: int, rank: int | None, stream: str, attempt: int = 0
    ) -> None:
        self.path = path
        self.instance = instance
        self.rank = rank
        self.stream = stream
        self.attempt = attempt
        self.lines = LineSplitter()
        self.offset = 0
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.inode = os.fstat(self._descriptor).st_ino

    @property
    def consumed(self) -> int:
        """The position in the file up to which all lines were returned."""
        return self.offset - len(self.lines.pending)

    def read(self, limit: int) -> bytes:
        """Read up to `limit` bytes more; none at the present end of the file."""
        chunk = os.pread(self._descriptor, limit, self.offset)
        self.offset += len(chunk)
        return chunk

    def erase(self, start: int, secrets: Iterable[bytes]) -> None:
        """Overwrite secrets with stars in the file, between the positions `start` and
        `consumed`."""
        original = data = os.pread(self._descriptor, self.consumed - start, start)
        for secret in secrets:
            data = data.replace(secret, b"*" * len(secret))
        if data != original:
            with open(self.path, "r+b", buffering=0) as file:
                os.pwrite(file.fileno(), data, start)

    def close(self) -> None:
        os.close(self._descriptor)


class SourceFinder:
    """Finds new output files: those of launched processes, and those of every attempt of the ranks.

    Ranks of mpirun write `logs/instance_0/rank_<r>.stdout.log`. Ranks of torchrun and forked ranks
    write `logs/instance_<i>/<random>/attempt_<n>/<local rank>/stdout.log`. When another instance
    makes torchrun repeat an attempt, torchrun removes that attempt's folder and creates it again.
    So a file is identified by path and inode together.
    """

    def __init__(self, logs: str, spec: LaunchSpecification, rank_of: RankOf) -> None:
        self._logs = logs
        self._spec = spec
        self._rank_of = rank_of
        self._known: dict[str, int] = {}
        self._attempts: dict[tuple[int, int, str], int] = {}
        self._waiting: dict[str, float] = {}

    @property
    def restarts(self) -> int:
        """How often the ranks were restarted: the number of a rank's files of one stream, less
        one."""
        return max(self._attempts.values(), default=1) - 1

    def launched(self) -> Iterator[OutputFile]:
        """Yield the new output files of the processes that the supervisor starts."""
        for index, process in enumerate(self._spec.processes):
            for stream in STREAMS:
                path = launched_log(self._logs, process, index, stream)
                if path not in self._known and os.path.exists(path):
                    source = OutputFile(
                        path, instance=process.instance, rank=process.rank, stream=stream
                    )
                    self._known[path] = source.inode
                    yield source

    def new_ranks(self, *, at_once: bool = False) -> Iterator[OutputFile]:
        """Yield the output files of ranks that appeared since the last call. Without `at_once`,
        leave out files whose rank is not known yet, but may be soon."""
        if self._spec.launcher == "mpirun":
            for number in range(self._spec.world_size):
                stem = f"{self._logs}/instance_0/rank_{number}."
                yield from self._streams(stem, 0, number, number)
        if self._spec.launcher not in ("torchrun", "fork"):
            return
        for instance in range(self._spec.instances):
            for local_rank, folder in rank_folders(f"{self._logs}/instance_{instance}"):
                rank = self._rank(instance, local_rank, folder, at_once)
                if rank is not None:
                    yield from self._streams(f"{folder}/", instance, local_rank, rank)

    def _streams(
        self, stem: str, instance: int, local_rank: int, rank: int
    ) -> Iterator[OutputFile]:
        """Yield the new files of one rank. `stem` is their path up to the name of the stream."""
        for stream in STREAMS:
            path = f"{stem}{stream}.log"
            try:
                if self._known.get(path) == os.stat(path).st_ino:
                    continue
                key = (instance, local_rank, stream)
                attempt = self._attempts.get(key, 0)
                source = OutputFile(
                    path, instance=instance, rank=rank, stream=stream, attempt=attempt
                )
            except FileNotFoundError:
                continue
            self._attempts[key] = attempt + 1
            self._known[path] = source.inode
            yield source

    def _rank(self, instance: int, local_rank: int, folder: str, at_once: bool) -> int | None:
        """Return the global rank of the process whose output is in `folder`; None if it is not
        known yet, but may be soon. With `at_once`, or after a short wait, return the most likely
        rank instead. Only ranks of torchrun on several instances can be unknown: torchrun assigns
        global ranks at each rendezvous."""
        per_instance = self._spec.world_size // self._spec.instances
        likely_rank = instance * per_instance + local_rank
        if self._spec.instances == 1 or self._spec.launcher == "fork":
            return likely_rank

        rank = self._rank_of(instance, local_rank)
        if rank is not None:
            return rank
        since = self._waiting.setdefault(folder, time.monotonic())
        has_waited = time.monotonic() - since > _KNOWN_SOON
        return likely_rank if at_once or has_waited else None


def rank_folders(folder: str) -> Iterator[tuple[int, str]]:
    """Yield each rank's local rank and the folder of its output, attempt by attempt. `folder` is
    the log folder of one instance."""
    attempts: list[str] = []
    for run in _names(folder):
        inside = f"{folder}/{run}"
        attempts += [f"{inside}/{name}" for name in _names(inside) if name.startswith("attempt_")]
    for attempt in sorted(attempts, key=lambda path: int(path.rpartition("_")[2])):
        for name in sorted(filter(str.isdecimal, _names(attempt)), key=int):
            yield int(name), f"{attempt}/{name}"


def _names(folder: str) -> list[str]:
    """Return the names in a folder; none if it is missing or a file."""
    try:
        return os.listdir(folder)
    except OSError:
        return []


_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT

_CHUNK = 1 << 20
"""Maximum number of bytes read from one file before the next file is read."""

_FIND_EVERY = 0.1
"""Seconds between two searches for new files."""

_REMEMBERED = 200
"""Number of lines kept for the verdict, per rank and stream."""

_text = json.encoder.encode_basestring_ascii


class RunOutput:
    """Follows all output files of a run. `metrics` holds the newest value of each metric."""

    def __init__(self, folder: RunFolder, spec: LaunchSpecification, rank_of: RankOf) -> None:
        self.metrics: dict[str, float] = {}
        self.hidden: tuple[str, ...] = ()
        """Texts to mask in every line: the values of the job's secrets."""
        self._folder = folder
        self._finder = SourceFinder(folder.logs, spec, rank_of)
        self._sources: list[OutputFile] = []
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
        return self._finder.restarts

    def resume(self) -> None:
        """Continue after the last complete batch in the journal of a dead supervisor. Remove an
        incomplete batch, also from the ranks' own files, which are written first."""
        size = 0
        complete_size = 0
        self._rank_sizes = {}
        with open(self._folder.journal, "rb") as journal:
            for line in journal:
                size += len(line)
                if line.startswith(b'{"file"') and line.endswith(b"}\n"):
                    record = json.loads(line)
                    self._places[record["file"]] = record
                    # earlier versions wrote none
                    self._rank_sizes[record["rank"]] = record.get("size")
                    complete_size = size
        os.ftruncate(self._journal, complete_size)

    def pump(self, *, at_once: bool = False) -> bool:
        """Read a limited amount of the available output. Return True if more is available.
        `at_once`: look for new files in this call, and read them even if their ranks are not known
        yet. Raises `OSError` if the journal cannot be written."""
        now = time.time()
        if at_once or now >= self._find_at:
            self._find_at = now + _FIND_EVERY
            for source in (*self._finder.launched(), *self._finder.new_ranks(at_once=at_once)):
                self._adopt(source)
        # a list, because `any` would stop at the first source with more, and starve the others
        return any([self._read(source, now) for source in self._sources])  # noqa: C419

    def drain(self) -> None:
        """Read all files to their end, also last lines without a newline, after all processes have
        ended."""
        while self.pump(at_once=True):
            pass
        for source in self._sources:
            before = source.consumed
            lines = source.lines.flush()
            self._hide(source, before, lines)
            self._write(source, lines, time.time())

    def tail(self, instance: int, rank: int | None, stream: str) -> list[str]:
        """Return the last lines that a rank wrote, or the instance's launcher if `rank` is None."""
        return list(self._tails.get(_tail_key(instance, rank, stream), ()))

    def close(self) -> None:
        for source in self._sources:
            source.close()
        for descriptor in (*self._rank_files.values(), self._journal):
            os.close(descriptor)

    def _adopt(self, source: OutputFile) -> None:
        """Follow a file, from the position that a resumed journal names."""
        place = self._places.get(self._relative(source))
        if place is not None and place["inode"] == source.inode:
            source.offset = place["offset"]
            source.rank = place["rank"]
        self._sources.append(source)

    def _relative(self, source: OutputFile) -> str:
        return os.path.relpath(source.path, self._folder.path)

    def _read(self, source: OutputFile, now: float) -> bool:
        """Copy the next bytes of a file. Return True if there may be more."""
        before = source.consumed
        chunk = source.read(_CHUNK)
        if chunk:
            lines = source.lines.feed(chunk, now)
            self._hide(source, before, lines)
            self._write(source, lines, now)
        return len(chunk) == _CHUNK

    def _hide(self, source: OutputFile, start: int, lines: list[str]) -> None:
        """Mask secrets in `lines`, and in the file of `source` from the position `start`, where
        these lines begin."""
        if not self.hidden:
            return
        from cloudtrain.runtime.secret_values import masked

        lines[:] = [masked(line, self.hidden) for line in lines]
        source.erase(start, [form.encode() for form in self.hidden])

    def _write(self, source: OutputFile, lines: list[str], now: float) -> None:
        """Write a batch of lines to the journal, with the record that ends it."""
        if not lines:
            return

        records = self._records(source, lines, now)
        place: dict[str, Any] = {
            "file": self._relative(source), "inode": source.inode, "offset": source.consumed,
            "rank": source.rank
        }  # fmt: skip
        if source.rank is not None:
            place["size"] = os.fstat(self._rank_file(source.rank)).st_size
        records.append(json.dumps(place) + "\n")
        _write_all(self._journal, "".join(records).encode("ascii"))

    def _records(self, source: OutputFile, lines: list[str], now: float) -> list[str]:
        """Return the journal's records of these lines. Also add the lines to their rank's own file,
        and remember the last lines for `tail`."""
        rank = source.rank
        stream = source.stream
        tail = self._tails.setdefault(
            _tail_key(source.instance, rank, stream), deque(maxlen=_REMEMBERED)
        )
        tail.extend(lines[-_REMEMBERED:])
        values = self._values(lines, rank)
        if rank is not None:
            text = "\n".join(lines) + "\n"
            _write_all(self._rank_file(rank), text.encode("utf-8", "replace"))

        # written by hand, because this runs for every line
        head = (
            f'{{"time": {now:.3f}, "instance": {source.instance}, "rank": {json.dumps(rank)}, '
            f'"stream": "{stream}", "attempt": {source.attempt}, "text": '
        )
        if self._patterns is None:
            return [f"{head}{_text(line)}}}\n" for line in lines]

        records = []
        for number, line in enumerate(lines):
            metrics = f', "values": {json.dumps(values[number])}' if number in values else ""
            records.append(f"{head}{_text(line)}{metrics}}}\n")

        # warnings about the patterns appear as if the first instance's launcher had written them
        first = {
            "time": round(now, 3),
            "instance": 0,
            "rank": None,
            "stream": "stderr",
            "attempt": 0,
        }
        records += [
            json.dumps({**first, "text": text}) + "\n" for text in self._patterns.complaints
        ]
        self._patterns.complaints = []
        return records

    def _rank_file(self, rank: int) -> int:
        """Return the descriptor of a rank's own file. After `resume`, the file is first cut to what
        the journal holds."""
        if rank in self._rank_files:
            return self._rank_files[rank]

        path = f"{self._folder.logs}/rank_{rank}.log"
        descriptor = open_private(path, _APPEND)
        self._rank_files[rank] = descriptor
        if self._rank_sizes is not None:
            size = self._rank_sizes.get(rank, 0)
            if size is not None and os.fstat(descriptor).st_size > size:
                os.ftruncate(descriptor, size)
        return descriptor

    def _values(self, lines: list[str], rank: int | None) -> dict[int, dict[str, float]]:
        """Search lines with the job's patterns. Map each index in `lines` to its values, and update
        `metrics`. The runtime's own `[metrics]` lines are not searched; their values only update
        `metrics`."""
        values_of: dict[int, dict[str, float]] = {}
        order = sys.maxsize if rank is None else rank  # a launcher counts after all ranks
        for number, line in enumerate(lines):
            if "[metrics]" in line:
                from cloudtrain.runtime.metrics import parse_metrics

                own_values = parse_metrics(line)
                if own_values is not None:
                    self.metrics.update(own_values)
                    continue
            values = None if self._patterns is None else self._patterns.read(line)
            if values is not None:
                values_of[number] = values
                # the lowest rank counts, as in plans.states.Metrics
                for name, value in values.items():
                    if order <= self._lowest.setdefault(name, order):
                        self._lowest[name] = order
                        self.metrics[name] = value
        return values_of


def _tail_key(instance: int, rank: int | None, stream: str) -> tuple[int, int | None, str]:
    """Return the key of the last lines of a rank, which may change its instance at a restart, or of
    the instance's launcher."""
    return (-1 if rank is not None else instance, rank, stream)


def _write_all(descriptor: int, data: bytes) -> None:
    """Append all data to a file. On a full disk, append only complete lines, so that the next
    record never follows an incomplete one."""
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(descriptor, view) :]
    except OSError:
        written = len(data) - len(view)
        complete = data.rfind(b"\n", 0, written) + 1
        os.ftruncate(descriptor, os.fstat(descriptor).st_size - (written - complete))
        raise
