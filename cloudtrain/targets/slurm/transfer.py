"""Copy the outputs of a run as one tar stream."""

from __future__ import annotations

import json
import os
import re
import shutil
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, NamedTuple

from cloudtrain.errors import TargetError, TargetUnreachable
from cloudtrain.plans.plan import Plan
from cloudtrain.plans.progress import LogLine
from cloudtrain.runtime.metrics_file import ROW
from cloudtrain.system.processes import tell
from cloudtrain.system.staging import Staging
from cloudtrain.targets.common.archives import find_places, landing, nothing_written
from cloudtrain.targets.common.services import line_text
from cloudtrain.targets.common.tracebacks import shorten_line
from cloudtrain.targets.contract import BundleWriter, ByteProgress
from cloudtrain.targets.slurm.runner import CommandFailed, Runner, rows_of

_NOTHING = 3
"""The script's exit code for a missing file or folder."""

_OUTSIDE = 4
"""The script's exit code for a place outside of the run, which its last message names."""


def download(runner: Runner, folder: str, path: str, destination: Path) -> list[Path]:
    """Copy an output, such as `model`, or a part of it, such as `model/weights.pt`, into
    `destination`. With an empty `path`, copy each output to its own folder. Links out of the run's
    folder and its outputs are left, and named."""
    places = {**_outputs(runner, folder), "logs": f"{folder}/logs"}
    # a link in the place of a folder of the run is no choice of the job's
    chosen = [place for place in places.values() if not place.startswith(f"{folder}/")]
    roots = (folder, *chosen)
    path = path.strip("/")
    with landing(destination, odd_names=True) as staging:
        if path:
            folders = {name: [Path(place)] for name, place in places.items()}
            (place,) = find_places(path, folders)
            if not _copy(runner, str(place), staging, "", roots):
                raise nothing_written(path, places)
        else:
            for name, source in places.items():
                _copy(runner, source, staging, f"{name}/", roots)
        return staging.move()


def fetch(runner: Runner, source: str, target: Path) -> bool:
    """Copy the file `source` of the cluster to `target`. Return False if the file does not
    exist."""
    with landing(target.parent, odd_names=True) as staging:
        exists = _copy(runner, source, staging, "")
        staging.move()
    return exists and target.exists()


def _outputs(runner: Runner, folder: str) -> dict[str, str]:
    """Return the folders that the run writes to, by name. A run of `--format sbatch` has no list of
    them: then they are those in the run's own folder."""
    answer = runner.run("outputs", folder).decode("utf-8", "surrogateescape")
    if answer.startswith("{"):
        outputs: dict[str, str] = json.loads(answer)
        return outputs
    return {name: f"{folder}/{name}" for name in answer.splitlines()}


def _copy(
    runner: Runner, source: str, staging: Staging, below: str, roots: Iterable[str] = ()
) -> bool:
    """Return False if `source` does not exist, or is outside of `roots`. The name of each copied
    file begins with `below`."""
    broken: list[str] = []

    def take(stream: IO[bytes]) -> None:
        try:
            with tarfile.open(fileobj=stream, mode="r|") as archive:
                for member in archive:
                    content = archive.extractfile(member) if member.isfile() else None
                    if content is not None:
                        place = staging.place(below + member.name.removeprefix("./"))
                        with place.open("wb") as file:
                            shutil.copyfileobj(content, file)
        except tarfile.ReadError as error:  # the script's exit code may say why
            broken.append(str(error))

    try:
        said = runner.read("tar", source, *roots, take=take)
    except CommandFailed as error:
        if error.exit_status not in (_NOTHING, _OUTSIDE):
            raise
        if error.exit_status == _OUTSIDE:
            tell(error.message)
        return False
    if broken:
        raise TargetUnreachable(
            f"the download of `{source}` was interrupted: {broken[0]}", hint="download it again"
        )
    for line in said.splitlines():
        word, _, rest = line.partition(": ")
        if word == _TELLER:
            tell(rest)
    return True


# Upload the bundle to the shared folder.

_CHUNK = 2**20


def upload(runner: Runner, plan: Plan, bundle: BundleWriter, on_bytes: ByteProgress | None) -> bool:
    """Upload the archive to the path in the plan, in one atomic step. Return False if the path
    already exists."""
    place = plan.uploads[0].destination
    if runner.run("exists", place).strip():
        return False
    with TemporaryDirectory(prefix="cloudtrain-") as folder:
        archive = Path(folder, "sourcedir.tar.gz")
        bundle.write(archive)
        size = archive.stat().st_size
        sent_size = 0

        def count(length: int) -> None:
            nonlocal sent_size
            sent_size += length
            if on_bytes is not None:
                on_bytes(sent_size, size)

        with archive.open("rb") as file:
            chunks = iter(lambda: file.read(_CHUNK), b"")
            runner.send("upload", place, str(size), chunks=chunks, on_sent=count)
    return True


# Build the environment of a job's requirements, once for all jobs with the same requirements.

_TELLER = "cloudtrain"
"""The word and the colon with which a script tells the user something. Those that report a failure
are `error` and `hint`."""


def provide(runner: Runner, environment: Mapping[str, str]) -> None:
    """Build an environment of a plan's request on the cluster, unless it exists. Waits while
    another command builds it. Raises `TargetError` with the reason if it cannot be built."""
    folder = environment["folder"]
    if runner.run("used", folder).strip():  # it exists
        return

    said: dict[str, str] = {}

    def take(stream: IO[bytes]) -> None:
        for line in stream:
            text = line.decode("utf-8", "replace").strip()
            word, colon, rest = text.partition(": ")
            if word == _TELLER:
                tell(rest)
            elif text:
                if colon:
                    said[word] = rest
                said["last"] = text

    script = environment["script"].encode()
    place = f"{folder}.sh"
    runner.send("upload", place, str(len(script)), chunks=[script], on_sent=lambda _: None)
    try:
        runner.read("provide", place, take=take)
    except CommandFailed as error:
        cause = said.get("error") or said.get("last", error.message)
        where = f" on `{runner.host}`" if runner.host else ""
        message = f"the job's environment cannot be built: {shorten_line(cause)}"
        hint = f"the installer's output is in `{folder}.log`{where}"
        if "hint" in said:
            hint = f"{said['hint']}; {hint}"
        raise TargetError(message, hint=hint, code="CT953") from None


# The output of a run's processes over all restarts. Each call of `ClusterLog.new_lines` yields only
# new lines.

_FILE = re.compile(
    r"(?P<restart>\d+)/node_(?P<node>\d+)\.(?:rank_(?P<rank>\d+)|launcher)\.(?P<stream>stdout|"
    r"stderr)\.log"
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
    """One log file, the time of its last change, its size, and how many of its bytes were read."""

    name: str
    order: tuple[int, int, int, str]
    """Its restart, node, rank and stream, by which files are sorted. A node's launcher has the rank
    -1."""
    read: int
    time: float = 0.0
    size: int = 0
    pending: bytes = b""

    @property
    def next_length(self) -> int:
        """The number of bytes to read in one step."""
        return min(self.size - self.read, _MOST)

    def log_line(self, text: str) -> LogLine:
        _, node, rank, stream = self.order
        return LogLine(self.time, node, None if rank < 0 else rank, stream, text)


@dataclass
class ClusterLog:
    """The log of one run. The time of a line is the modification time of its file."""

    runner: Runner
    folder: str
    rank: int | None = None
    instance: int | None = None
    before: Mapping[str, int] = field(default_factory=dict)
    """The `mark` of an earlier reading."""
    streams: dict[str, _File] = field(default_factory=dict)

    @property
    def mark(self) -> dict[str, int]:
        """How many bytes of each file are complete lines that were read."""
        return {name: file.read - len(file.pending) for name, file in self.streams.items()}

    def new_lines(self) -> Iterator[LogLine]:
        while True:
            files = self._grown()
            if not files:
                return
            # Each file adds at most the longest piece to the answer, whose size is limited.
            longest = max(file.next_length for file in files)
            count = min(max(1, _AT_ONCE // longest), _MOST_FILES)
            files = files[:count]
            pieces = [_Piece(file.name, file.read, file.next_length) for file in files]
            answer = _read_pieces(self.runner, self.folder, pieces)
            for file, piece in zip(files, answer, strict=True):
                lines = _take_lines(file, piece)
                file.read += len(piece)
                for text in lines:
                    yield file.log_line(text)

    def rest(self) -> Iterator[LogLine]:
        """Yield the last line of each file whose last line has no newline. Call this after the run
        has ended."""
        for file in sorted(self.streams.values(), key=lambda file: file.order):
            if file.pending:
                text = line_text(file.pending)
                file.pending = b""
                yield file.log_line(text)

    def _grown(self) -> list[_File]:
        """Return the files of the wanted processes with unread bytes."""
        files = []
        for size, rest in rows_of(self.runner.run("sizes", self.folder)):
            time, _, name = rest.partition(" ")
            match = _FILE.fullmatch(name)
            if match is None:
                continue
            node = int(match["node"])
            rank = int(match["rank"]) if match["rank"] else None
            if self.rank not in (None, rank) or self.instance not in (None, node):
                continue

            if name not in self.streams:
                order = (int(match["restart"]), node, int(match["rank"] or -1), match["stream"])
                self.streams[name] = _File(name, order, self.before.get(name, 0))
            file = self.streams[name]
            file.time = float(time)
            file.size = int(size)
            if file.size > file.read:
                files.append(file)
        return sorted(files, key=lambda file: file.order)


class _Piece(NamedTuple):
    """A part of a file, whose name is relative to the folder of the logs."""

    name: str
    start: int
    length: int


def _read_pieces(runner: Runner, folder: str, pieces: Sequence[_Piece]) -> list[bytes]:
    words: list[str] = []
    for piece in pieces:
        words += map(str, piece)
    answer = runner.run("read", folder, *words)

    parts = []
    start = 0
    for piece in pieces:
        end = start + piece.length
        parts.append(answer[start:end])
        start = end
    if start != len(answer):
        raise TargetError(
            "a file of the run became shorter while it was read",
            hint="run the command again to read it from the beginning",
        )
    return parts


def _take_lines(file: _File, piece: bytes) -> list[str]:
    """Add a piece to a file's pending bytes, and return the lines that are now complete."""
    *complete, file.pending = (file.pending + piece).split(b"\n")
    lines = [line_text(line) for line in complete]
    while len(file.pending) > _LONGEST:
        lines.append(line_text(file.pending[:_LONGEST]))
        file.pending = file.pending[_LONGEST:]
    return lines


# Copies of a run's metrics files.

_METRICS_FILE = re.compile(r"[a-z0-9]+\.[a-z0-9]+\.[0-9]+\.(?P<kind>rows|names|jsonl)")


def copy_metrics(runner: Runner, folder: str, cache: Path) -> bool:
    """Copy what is new in the metrics files of a run. Return whether it has any. Two commands may
    copy at the same time, because each byte has one place."""
    has_files = False
    pieces: list[_Piece] = []
    for words, name in rows_of(runner.run("rows", folder)):
        match = _METRICS_FILE.fullmatch(name)
        if match is None:
            continue
        has_files = True
        size = int(words)
        is_text = match["kind"] != "rows"
        if not is_text:
            size -= size % ROW.size  # a torn row may be cut off again
        start = _whole_size(cache / name, is_text=is_text)
        while start < size:
            length = min(_MOST, size - start)
            pieces.append(_Piece(f"../metrics/{name}", start, length))
            start += length

    if pieces:
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    longest = max((piece.length for piece in pieces), default=1)
    at_once = min(_AT_ONCE // longest, _MOST_FILES)
    for first in range(0, len(pieces), at_once):
        some = pieces[first : first + at_once]
        for piece, data in zip(some, _read_pieces(runner, folder, some), strict=True):
            place = cache / Path(piece.name).name
            descriptor = os.open(place, os.O_WRONLY | os.O_CREAT, 0o600)
            with open(descriptor, "wb") as file:
                file.seek(piece.start)
                file.write(data)
    return has_files


def _whole_size(file: Path, *, is_text: bool) -> int:
    """Return the length of the whole rows or lines in a copy; 0 if there is none. What follows them
    can still change."""
    if not file.exists():
        return 0
    if is_text:
        return file.read_bytes().rfind(b"\n") + 1
    size = file.stat().st_size
    return size - size % ROW.size
