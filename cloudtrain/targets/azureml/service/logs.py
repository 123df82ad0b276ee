"""Read a job's log files, one for each process, while the processes are still writing.

The run history lists the files with addresses that are valid for some hours. If an address is
missing or storage refuses it, the file is read from the artifact store, the datastore
`workspaceartifactstore`. Only new bytes are requested; for an unchanged file, storage sends no
data. Lines have no time of their own: each line gets the time of its file's last change.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from threading import RLock
from typing import Any, NamedTuple

from cloudtrain.documents import JsonMapping
from cloudtrain.errors import UsageError
from cloudtrain.plans.progress import LogLine
from cloudtrain.signals.log import Log
from cloudtrain.targets.azureml.launch import tasks
from cloudtrain.targets.azureml.reading import Body, DatastorePlace
from cloudtrain.targets.azureml.service.blobs import Blobs, Piece, Result, read
from cloudtrain.targets.common.services import Denied, Expired, NotThere, line_text

# Find the rank that wrote a log file from the file's name, and split a growing file into lines.
#
# Azure ML keeps a log file for each process; the lines do not name the process. azure-ai-ml 1.35.2
# and its tests contain these file names:
#
#     user_logs/std_log.txt                                   a single process
#     user_logs/std_log_process_03.txt                        one of several processes
#     std_log_node_00_ps.txt, std_log_node_01_worker.txt      processes of TensorFlow
#     azureml-logs/70_driver_log_3.txt                        a process of the older runtime
#     70_driver_log-worker-0.txt                              a TensorFlow process of the older
#                                                             runtime
#     mpi_log.txt                                             mpirun's own messages
#
# In the logs of one retried job, the files of an attempt were in `user_logs/retry_001/`.

_FILE = (
    r"(?:user_logs/(?:retry_\d+/)?std_log|azureml-logs/70_driver_log)(?:[-_](?:process|node|rank))?"
    r"(?:[-_](?P<before>ps|worker|chief))?(?:[-_](?P<number>\d+))?(?:[-_](?P<behind>ps|worker|"
    r"chief))?\.txt"
)
_LAUNCHERS_OWN = r"user_logs/(?:retry_\d+/)?mpi_log\.txt"


class Writer(NamedTuple):
    """The process that writes a log file. `rank` is None for a launcher, whose lines may come from
    several ranks."""

    instance: int
    rank: int | None


def writer_of(body: Body, file: str) -> Writer | None:
    """Return the process that writes a log file; None for files that are not a process's output."""
    if re.fullmatch(_LAUNCHERS_OWN, file):
        return Writer(0, None)
    match = re.fullmatch(_FILE, file)
    if match is None:
        return None

    number = int(match["number"] or 0)
    if body.has_launcher:
        return Writer(number, None)
    if body.kind != "TensorFlow":
        return Writer(number // body.processes_per_instance, number)

    # Servers have the ranks behind the workers.
    if "ps" in (match["before"], match["behind"]):
        number += body.workers
    for task in tasks(body):
        if task.rank == number:
            return Writer(task.instance, number)
    return Writer(0, number)


def check_selection(body: Body, rank: int | None, instance: int | None) -> None:
    """Refuse a rank or instance that cannot be selected: the empty log of a missing rank would look
    like the log of a rank without output."""
    if rank is not None and body.has_launcher:
        raise UsageError(
            "you cannot select a rank, because the log mixes the lines of all ranks of an instance",
            hint="use `--instance N`",
            code="CT937",
        )
    chosen = (("rank", rank, body.ranks), ("instance", instance, body.instances))
    for noun, number, count in chosen:
        if number is not None and number >= count:
            hint = f"the job has the {noun}s 0 to {count - 1}"
            if count == 1:
                hint = f"the job has one {noun}, 0"
            raise UsageError(f"the job has no {noun} {number}", hint=hint, code="CT937")


class Cutter:
    """Splits arriving bytes into lines. It keeps incomplete lines and characters, `pending`, until
    the rest arrives."""

    pending: bytes = b""

    def feed(self, data: bytes) -> Iterator[str]:
        """Add bytes, and yield the lines that are now complete."""
        *complete, pending = (self.pending + data).split(b"\n")
        # A progress bar returns to the start of its line; only its last state is kept.
        start = pending.rstrip(b"\r").rfind(b"\r") + 1
        self.pending = pending[start:]
        return map(line_text, complete)

    def rest(self) -> Iterator[str]:
        """Yield the last line if it has no newline."""
        pending = self.pending
        self.pending = b""
        if pending:
            yield line_text(pending)


ARTIFACTS = "workspaceartifactstore"
"""The datastore for files that the service keeps for every job."""

_AT_ONCE = 8
"""The number of files that are read at the same time."""

_OVERLAP = 256
"""The number of bytes that tell whether a rewritten file still begins with the text that was read
before."""

_SYSTEM = ("system_logs/", "azureml-logs/20_image_build_log")

_FINAL = ("Completed", "Failed", "Canceled")


def artifact_place(workspace: str, run: str, path: str = "") -> DatastorePlace:
    return DatastorePlace(workspace, ARTIFACTS, f"ExperimentRun/dcid.{run}/{path}")


class LogFile:
    """A log file. Its lines are kept until `take` yields them, so that no line is lost if an error
    occurs."""

    def __init__(self, name: str, writer: Writer, mark: Sequence[Any] | None = None) -> None:
        offset, etag, created, last = mark or (0, None, None, "")
        self.name = name
        self.writer = writer
        self.offset: int = offset
        self._etag: str | None = etag
        self._created = datetime.fromisoformat(created) if created else None
        self._last_modified = 0.0
        self._last = bytes.fromhex(last)
        self._cutter = Cutter()
        self._lines: deque[LogLine] = deque()

    @property
    def mark(self) -> list[Any]:
        """Where the last complete line ends, as JSON, for another reading."""
        pending = len(self._cutter.pending)
        last = self._last[: max(0, len(self._last) - pending)]
        created = self._created.isoformat() if self._created else None
        return [self.offset - pending, None if pending else self._etag, created, last.hex()]

    def read(self, blob: Any) -> bool:
        """Read the next part of the file; return whether the file has more."""
        piece = read(blob, self.offset, unless=self._etag)
        if piece is None:
            return False
        if self._is_another(piece, blob):
            self._keep(self._cutter.rest())
            self.offset = 0
            self._etag = None
            self._last = b""
            return True

        self._created = piece.created
        self._last_modified = piece.last_modified
        self.offset += len(piece.data)
        self._last = (self._last + piece.data)[-_OVERLAP:]
        self._keep(self._cutter.feed(piece.data))
        has_more = self.offset < piece.size
        # The ETag tells whether the file has changed since its end was read.
        self._etag = None if has_more else piece.etag
        return has_more

    def take(self) -> Iterator[LogLine]:
        """Yield the lines that were read since the last call."""
        while self._lines:
            yield self._lines.popleft()

    def rest(self) -> Iterator[LogLine]:
        """Yield the lines that `take` would, and the last one, which has no newline."""
        self._keep(self._cutter.rest())
        return self.take()

    def _is_another(self, piece: Piece, blob: Any) -> bool:
        """Return whether the file was replaced: it is shorter, or it was created again with
        different content."""
        if piece.size < self.offset:
            return True
        if not self.offset or piece.created == self._created:
            return False
        length = len(self._last)
        if not length:
            return True
        before = read(blob, self.offset - length, length=length)
        return before is None or before.data != self._last

    def _keep(self, texts: Iterator[str]) -> None:
        instance, rank = self.writer
        for text in texts:
            self._lines.append(LogLine(self._last_modified, instance, rank, "stdout", text))


class RunLog(Log[LogLine]):
    """All log files of one run, or only those of one rank or instance."""

    def __init__(
        self,
        blobs: Blobs,
        run: str,
        body: Body,
        *,
        rank: int | None = None,
        instance: int | None = None,
        mark: Mapping[str, Any] | None = None,
    ) -> None:
        check_selection(body, rank, instance)
        self._marks = mark or {}
        self._blobs = blobs
        self._run = run
        self._body = body
        self._rank = rank
        self._instance = instance
        self.details: JsonMapping = {}
        """What the run history said about the run when it was last asked."""
        self._files: dict[str, LogFile] = {}
        self._addresses: dict[str, str] = {}
        self._refused: set[str] = set()
        """Files of which storage does not take the address that the run history gives."""
        self._lock = RLock()

    @property
    def streams(self) -> list[LogFile]:
        """The log files so far, in the order of their ranks, with the launchers' at the end."""

        def order(file: LogFile) -> tuple[bool, int, str]:
            writer = file.writer
            return writer.rank is None, writer.rank or writer.instance, file.name

        files = [file for name, file in self._files.items() if not name.startswith(_SYSTEM)]
        return sorted(files, key=order)

    @property
    def mark(self) -> dict[str, Any]:
        return {file.name: file.mark for file in self.streams}

    @property
    def names(self) -> list[str]:
        """The names of all files that the run history lists, including the service's own."""
        return sorted(self._addresses)

    @property
    def system_files(self) -> list[LogFile]:
        """The service's own logs, such as those of the image build and the start of the job."""
        return [self._files[name] for name in sorted(self._files) if name.startswith(_SYSTEM)]

    def new_lines(self) -> Iterator[LogLine]:
        """Yield the lines since the last call. Raises `TargetError` if a file could not be read,
        after the lines of the files read at the same time."""
        self.discover()
        files = self.streams
        with ThreadPoolExecutor(max_workers=_AT_ONCE) as pool:
            for start in range(0, len(files), _AT_ONCE):
                group = files[start : start + _AT_ONCE]
                readings = [pool.submit(self._read, file) for file in group]
                first_error = None
                for file, reading in zip(group, readings, strict=True):
                    error = reading.exception()
                    first_error = first_error or error
                    has_more = error is None and reading.result()
                    yield from file.take()
                    while has_more:
                        has_more = self._read(file)
                        yield from file.take()
                if first_error is not None:
                    raise first_error

    def rest(self) -> Iterator[LogLine]:
        """Yield the last lines that do not end with a newline. Call this when nothing more will be
        read."""
        for file in self.streams:
            yield from file.rest()

    def discover(self) -> None:
        """Look for new files, and for new addresses of known files."""
        for name, address in self._list_files().items():
            self._addresses[name] = address
            writer = writer_of(self._body, name)
            is_wanted = name.startswith(_SYSTEM)
            if writer is not None:
                is_wanted = self._rank in (None, writer.rank)
                is_wanted &= self._instance in (None, writer.instance)
            if is_wanted:
                file = LogFile(name, writer or Writer(0, None), self._marks.get(name))
                self._files.setdefault(name, file)

    def tail(self, file: LogFile, count: int) -> tuple[float, list[str]]:
        """Return the time of a file's last change, and the lines in its last `count` bytes; the
        first may be incomplete."""

        def last(blob: Any) -> tuple[float, list[str]]:
            size = blob.get_blob_properties().size
            piece = read(blob, max(size - count, 0), length=count)
            assert piece is not None, "no ETag was named"
            cutter = Cutter()
            lines = list(cutter.feed(piece.data))
            lines += cutter.rest()
            return piece.last_modified, lines

        try:
            return self.use_file(file.name, last)
        except NotThere:
            return 0.0, []

    def use_file(self, name: str, operation: Callable[[Any], Result]) -> Result:
        """Return `operation(blob)`. The blob is opened by its address in the run history. If
        storage refuses it, it is opened by a new address, or else in the artifact store."""
        address = self._addresses.get(name, "")
        if address and name not in self._refused:
            for is_second in (False, True):
                try:
                    with self._blobs.translating(name):
                        url = self._renew(name, address) if is_second else address
                        return operation(self._blobs.at(url))
                except (Denied, Expired):
                    continue
            self._refused.add(name)

        where = artifact_place(self._blobs.client.place.workspace_id, self._run, name)
        container = self._blobs.container(where)
        return container.use(name, lambda client: operation(client.get_blob_client(where.path)))

    def _list_files(self) -> Mapping[str, str]:
        """Map names of files to addresses; an address may be empty. If the run history lists no
        files although the run has begun, the names come from the artifact store."""
        try:
            self.details = details = self._blobs.client.history(f"runs/{self._run}/details")
        except NotThere:
            return {}  # the run history shows a new job with a delay

        files: dict[str, str] = details.get("logFiles") or {}
        if files or not details.get("startTimeUtc"):
            return files
        try:
            return dict.fromkeys(self._in_store(), "")
        except (Denied, Expired):
            if details.get("status") in _FINAL:
                raise
            return {}  # the files may still be listed later

    def _in_store(self) -> list[str]:
        """Return the names of the run's log files in the artifact store."""
        where = artifact_place(self._blobs.client.place.workspace_id, self._run)
        container = self._blobs.container(where)
        names: list[str] = []
        for folder in ("user_logs/", "azureml-logs/", "system_logs/"):
            names += container.sizes(where.path + folder)
        return [name.removeprefix(where.path) for name in names]

    def _read(self, file: LogFile) -> bool:
        """Read the next part of a file; return whether it has more."""
        try:
            return self.use_file(file.name, file.read)
        except NotThere:
            return False  # the file is listed before its first byte is written

    def _renew(self, name: str, address: str) -> str:
        """Return a new address instead of an expired one; another thread may have fetched it
        already."""
        with self._lock:
            if self._addresses[name] == address:
                self.discover()
            return self._addresses[name]
