"""What the cluster says about a run: the journal of its batch script, and Slurm's word about its job."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Note:
    """A line of the journal: when the batch script noted what."""

    time: float
    job: str
    word: str
    rest: str = ""


@dataclass
class Record:
    """Everything that is known about one run.

    Attributes:
        name: of the run.
        job: the number of its job; empty where there is none.
        sent: when the request was sent.
        stop_asked: whether somebody asked it to stop.
        notes: the journal.
        state: Slurm's word for the state; None where Slurm knows the job no more.
        why: Slurm's reason for it.
        created: when Slurm took the job.
        ended: when the job ended, by Slurm.
    """

    name: str
    job: str = ""
    sent: float | None = None
    stop_asked: bool = False
    notes: list[Note] = field(default_factory=list)
    state: str | None = None
    why: str | None = None
    created: float | None = None
    ended: float | None = None

    def last(self, *words: str) -> Note | None:
        """The last note with one of the words."""
        return next((note for note in reversed(self.notes) if note.word in words), None)

    @property
    def starts(self) -> list[Note]:
        """One note for every time that the job has started."""
        return [note for note in self.notes if note.word == "started"]


def parse_records(answer: bytes) -> Iterator[Record]:
    """The records that the script STATUS prints."""
    record: Record | None = None
    for line in answer.decode("utf-8", "replace").splitlines():
        word, _, rest = line.partition(" ")
        if word == "@run":
            if record is not None:
                yield record
            record = Record(rest)
        elif record is not None:
            _take(record, word, rest)
    if record is not None:
        yield record


def _take(record: Record, word: str, rest: str) -> None:
    if word == "@job":
        record.job = rest
    elif word == "@sent":
        record.sent = _time(rest)
    elif word == "@stop":
        record.stop_asked = True
    elif word == "@note":
        record.notes += _notes(rest)
    elif word == "@queue":
        _name, record.state, record.why, created, _start, ended = rest.rsplit("|", 5)
        record.created, record.ended = _time(created), _time(ended)
    elif word == "@account":
        name, state, _code, created, _start, ended = rest.rsplit("|", 5)
        if name == record.name:  # of a job that was requeued the last row counts
            record.state, record.created, record.ended = state, _time(created), _time(ended)


def _notes(line: str) -> list[Note]:
    """The note of a line; none of a line that is not whole yet."""
    parts = line.split(" ", 3)
    time = _time(parts[0])
    if len(parts) < 3 or time is None:
        return []
    return [Note(time, parts[1], parts[2], parts[3] if len(parts) > 3 else "")]


def _time(text: str) -> float | None:
    """Seconds since the epoch; Slurm says `N/A`, `Unknown` or `None` where it does not know."""
    with suppress(ValueError):
        return float(text) or None
    return None
