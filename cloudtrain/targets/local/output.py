"""Copy the output of all processes into the run's journal, and keep the last lines for the verdict.

The processes write into files of their own, which are read here until they end. At the end of the
run these are removed, because the journal has everything (`cloudtrain/signals/journal.py`).

The metrics in the lines go into the run's metrics files.
"""

# Paths are strings here, because this module must start and poll quickly.
from __future__ import annotations

import os
import time
from collections import deque
from contextlib import suppress

from cloudtrain.signals.journal import JournalWriter, OutputSource

TYPE_CHECKING = False  # like typing.TYPE_CHECKING, without importing typing
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from cloudtrain.signals.lines import LineMetrics
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
        self.pending: bytes = b""
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
    """One output file, with the position `offset` up to which it was read, and the position
    `copied` up to which its lines are in the journal. `folder` is the run's."""

    def __init__(self, path: str, folder: str, source: OutputSource) -> None:
        """`source` says who writes the file."""
        self.path = path
        self.lines: LineSplitter = LineSplitter()
        self.offset: int = 0
        self.copied: int = 0
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        inode = os.fstat(self._descriptor).st_ino
        file = os.path.relpath(path, folder)
        self.source: OutputSource = source._replace(file=file, inode=inode)

    @property
    def consumed(self) -> int:
        """The position in the file up to which all lines were returned."""
        return self.offset - len(self.lines.pending)

    def rewind(self) -> None:
        """Read again what is not in the journal."""
        self.offset = self.copied
        self.lines.pending = b""

    def read(self, limit: int) -> bytes:
        """Read up to `limit` bytes more; none at the present end of the file."""
        chunk = os.pread(self._descriptor, limit, self.offset)
        self.offset += len(chunk)
        return chunk

    def erase(self, secrets: Iterable[bytes]) -> None:
        """Overwrite secrets with stars in the file, between the positions `copied` and
        `consumed`."""
        original = data = os.pread(self._descriptor, self.consumed - self.copied, self.copied)
        for secret in secrets:
            data = data.replace(secret, b"*" * len(secret))
        if data != original:
            with open(self.path, "r+b", buffering=0) as file:
                os.pwrite(file.fileno(), data, self.copied)

    def remove(self) -> None:
        """Remove the file if all of it was read. Another file at the same path stays."""
        status = os.fstat(self._descriptor)
        if status.st_size != self.consumed:
            return
        with suppress(OSError):  # torchrun has removed it, or it cannot be removed
            if os.path.samestat(os.stat(self.path), status):
                os.unlink(self.path)

    def close(self) -> None:
        os.close(self._descriptor)


class SourceFinder:
    """Finds new output files: those of launched processes, and those of every attempt of the ranks.

    Ranks of mpirun write `logs/instance_0/rank_<r>.stdout.log`. Ranks of torchrun and forked ranks
    write `logs/instance_<i>/<random>/attempt_<n>/<local rank>/stdout.log`. When another instance
    makes torchrun repeat an attempt, torchrun removes that attempt's folder and creates it again.
    So a file is identified by path and inode together.
    """

    def __init__(self, folder: str, spec: LaunchSpecification, rank_of: RankOf) -> None:
        self._folder = folder
        self._logs = f"{folder}/logs"
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
                    source = OutputSource(process.instance, process.rank, stream)
                    file = OutputFile(path, self._folder, source)
                    self._known[path] = file.source.inode
                    yield file

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
                source = OutputSource(instance, rank, stream, attempt)
                file = OutputFile(path, self._folder, source)
            except FileNotFoundError:
                continue
            self._attempts[key] = attempt + 1
            self._known[path] = file.source.inode
            yield file

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


_CHUNK = 1 << 15
"""Maximum number of bytes that are read at once. It limits the lines of a batch."""

_AT_ONCE = 32
"""Maximum number of times that one file is read before the next file is read."""

_FIND_EVERY = 0.1
"""Seconds between two searches for new files."""

_REMEMBERED = 200
"""Number of lines kept for the verdict, per rank and stream."""


class RunOutput:
    """Follows all output files of a run."""

    def __init__(self, folder: RunFolder, spec: LaunchSpecification, rank_of: RankOf) -> None:
        self.hidden: tuple[str, ...] = ()
        """Texts to mask in every line: the values of the job's secrets."""
        self._folder = folder
        self._finder = SourceFinder(folder.path, spec, rank_of)
        self._files: list[OutputFile] = []
        self._find_at = 0.0
        self._tails: dict[tuple[int, int | None, str], deque[str]] = {}
        self._places: dict[tuple[str, int], tuple[int | None, int]] = {}
        """Rank and position of the files in a resumed journal, by path and inode."""
        self._patterns = spec.metrics
        self._metrics: LineMetrics | None = None
        self._journal = JournalWriter(folder.path)

    @property
    def restarts(self) -> int:
        return self._finder.restarts

    @property
    def metrics(self) -> dict[str, float]:
        """The newest value of each metric in the output."""
        return {} if self._metrics is None else dict(self._metrics.latest)

    def resume(self) -> None:
        """Continue behind what a dead supervisor has copied."""
        for source, consumed in self._journal.resume():
            _, before = self._places.get((source.file, source.inode), (None, 0))
            self._places[source.file, source.inode] = (source.rank, before + consumed)

    def pump(self, *, at_once: bool = False) -> bool:
        """Read a limited amount of the available output. Return True if more is available.
        `at_once`: look for new files in this call, and read them even if their ranks are not known
        yet. Raises `OSError` if the journal cannot be written."""
        now = time.time()
        if at_once or now >= self._find_at:
            self._find_at = now + _FIND_EVERY
            for file in (*self._finder.launched(), *self._finder.new_ranks(at_once=at_once)):
                # follow it from the position that a resumed journal names
                source = file.source
                place = (source.file, source.inode)
                rank, file.copied = self._places.get(place, (source.rank, 0))
                file.source = source._replace(rank=rank)
                file.rewind()
                self._files.append(file)
        # a list, because `any` would stop at the first file with more, and starve the others
        return any([self._read(file, now) for file in self._files])  # noqa: C419

    def drain(self) -> None:
        """Read all files to their end, also last lines without a newline, after all processes have
        ended. Then remove them."""
        while self.pump(at_once=True):
            pass
        for file in self._files:
            self._write(file, file.lines.flush(), time.time())
            file.remove()

    def tail(self, instance: int, rank: int | None, stream: str) -> list[str]:
        """Return the last lines that a rank wrote, or the instance's launcher if `rank` is None."""
        return list(self._tails.get(_tail_key(instance, rank, stream), ()))

    def close(self) -> None:
        for file in self._files:
            file.close()
        self._journal.close()
        if self._metrics is not None:
            self._metrics.close()

    def _read(self, file: OutputFile, now: float) -> bool:
        """Copy the next bytes of a file. Return True if there may be more."""
        for _ in range(_AT_ONCE):
            chunk = file.read(_CHUNK)
            if chunk:
                self._write(file, file.lines.feed(chunk, now), now)
            if len(chunk) < _CHUNK:
                return False
        return True

    def _write(self, file: OutputFile, lines: list[str], now: float) -> None:
        """Write a batch of lines to the journal, with secrets masked there and in the file that
        they are from. Remember the last lines for `tail`."""
        if not lines:
            return
        if self.hidden:
            from cloudtrain.runtime.secret_values import masked

            lines = [masked(line, self.hidden) for line in lines]
            file.erase([form.encode() for form in self.hidden])
        source = file.source
        try:
            self._journal.append(source, lines, file.consumed - file.copied, now)
        except OSError:
            file.rewind()
            raise
        file.copied = file.consumed

        key = _tail_key(source.instance, source.rank, source.stream)
        tail = self._tails.setdefault(key, deque(maxlen=_REMEMBERED))
        tail.extend(lines[-_REMEMBERED:])
        if self._patterns or "[metrics]" in "\n".join(lines):
            self._note_metrics(source, lines, now)

    def _note_metrics(self, source: OutputSource, lines: list[str], now: float) -> None:
        """Write the metrics in these lines. Complaints about the job's patterns appear as if the
        first instance's launcher had written them."""
        if self._metrics is None:
            from cloudtrain.signals.lines import LineMetrics

            self._metrics = LineMetrics(self._folder.metrics, self._patterns)
        self._metrics.take(lines, source.rank, source.instance, now)
        with suppress(OSError):  # a full disk stops the metrics, not the run
            self._metrics.flush()
        complaints = self._metrics.complaints()
        if complaints:
            self._journal.append(_COMPLAINTS, complaints, 0, now)


_COMPLAINTS = OutputSource(0, None, "stderr")


def _tail_key(instance: int, rank: int | None, stream: str) -> tuple[int, int | None, str]:
    """Return the key of the last lines of a rank, which may change its instance at a restart, or of
    the instance's launcher."""
    return (-1 if rank is not None else instance, rank, stream)
