"""Read a run's journal for `logs`, starting at a byte offset. Each call continues where the previous call stopped."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from cloudtrain.core.states import LogLine
from cloudtrain.targets.local.service.folder import RunFolder

_CHUNK = 1 << 20


class JournalReader:
    """Reads the complete records of a journal. A record that is still being written is read by the next call."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def new_lines(self, rank: int | None = None) -> Iterator[LogLine]:
        """Yield the lines written since the last call, of one rank or of all."""
        wanted = None if rank is None else f'"rank": {rank}, "stream"'.encode()
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            return
        with file:
            while True:
                file.seek(self._offset)
                chunk = file.read(_CHUNK)
                end = chunk.rfind(b"\n") + 1
                if not end:
                    return
                for record in chunk[:end].splitlines(keepends=True):
                    self._offset += len(record)
                    if record.startswith(b'{"time"') and (wanted is None or wanted in record):
                        yield from _line(record)


def _line(record: bytes) -> Iterator[LogLine]:
    """Yield the line in a record. Yield nothing if a power failure has damaged the record."""
    try:
        data = json.loads(record)
    except ValueError:
        return
    yield LogLine(data["time"], data["instance"], data["rank"], data["stream"], data["text"], data.get("values"))


def steps_of(folder: RunFolder) -> dict[int, float]:
    """Map each rank to its newest step. Only ranks whose script reports steps are included."""
    found = {}
    try:
        entries = [entry for entry in os.scandir(folder.steps) if entry.name.isdecimal()]
    except OSError:
        return {}
    for entry in entries:
        with suppress(OSError, ValueError):  # the file is being written
            found[int(entry.name)] = float(Path(entry.path).read_text("ascii"))
    return found
