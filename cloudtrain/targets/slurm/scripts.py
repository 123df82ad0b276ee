"""The records of runs, as the scripts in `shell/` print them: the journal of a run's batch script,
and Slurm's data about its job."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from cloudtrain.targets.slurm.runner import rows_of


@dataclass(frozen=True)
class Note:
    """A line of the journal: time, job number, event (`word`) and details (`rest`)."""

    time: float
    job: str
    word: str
    rest: str = ""


@dataclass
class Record:
    """The data of one run on the cluster.

    Attributes:
        name: the run's name.
        job: the number of the run's job; empty if the run has no job.
        request_time: when cloudtrain sent the request.
        stop_asked: whether the user asked the run to stop.
        notes: the lines of the journal.
        state: the job's state, such as `PENDING`; None if Slurm has forgotten the job.
        why: Slurm's reason for the state, such as `Priority`.
        submit_time: when Slurm accepted the job.
        expected_time: when Slurm expects to start the job, if it has planned that.
        end_time: when the job ended, according to Slurm.
        is_renamed: whether somebody changed the job's name.
        silence: the error of Slurm's accounting, if only it knows the job and does not answer.
        notices: the newest lines of the files with notices.
    """

    name: str
    job: str = ""
    request_time: float | None = None
    stop_asked: bool = False
    notes: list[Note] = field(default_factory=list)
    state: str | None = None
    why: str | None = None
    submit_time: float | None = None
    expected_time: float | None = None
    end_time: float | None = None
    is_renamed: bool = False
    silence: str | None = None
    notices: list[str] = field(default_factory=list)

    def last(self, *words: str) -> Note | None:
        """Return the journal's last note whose event is one of `words`; None if there is no such
        note."""
        for note in reversed(self.notes):
            if note.word in words:
                return note
        return None

    @property
    def starts(self) -> list[Note]:
        return [note for note in self.notes if note.word == "started"]


def parse_records(answer: bytes) -> Iterator[Record]:
    """Yield the runs in the output of the script `status`. A line `@run NAME` begins each."""
    record: Record | None = None
    for word, rest in rows_of(answer):
        if word == "@run":
            if record is not None:
                yield record
            record = Record(rest)
        elif record is not None:
            _add_line(record, word, rest)
    if record is not None:
        yield record


def _add_line(record: Record, word: str, rest: str) -> None:
    """Add what a line of the output says of the run. `word` is the line's first word."""
    if word == "@job":
        record.job = rest
    elif word == "@sent":
        record.request_time = _time(rest)
    elif word == "@stop":
        record.stop_asked = True
    elif word == "@note":
        record.notes += _notes(rest)
    elif word == "@queue":
        _name, state, record.why, submit, start, end = rest.rsplit("|", 5)
        record.expected_time = _time(start)
        _set_state(record, state, submit, end)
    elif word == "@renamed":
        record.is_renamed = True
    elif word == "@notice":
        record.notices.append(rest)
    elif word == "@silent":
        record.silence = rest
    elif word == "@account":
        name, state, _code, submit, _start, end = rest.rsplit("|", 5)
        # a requeued job has several rows, and the last one counts
        if name == record.name or record.is_renamed:
            _set_state(record, state, submit, end)


def _set_state(record: Record, state: str, submit: str, end: str) -> None:
    record.state = state
    record.submit_time = _time(submit)
    record.end_time = _time(end)


def _notes(line: str) -> list[Note]:
    """Parse a line of the journal. Return an empty list for an incomplete line."""
    parts = line.split(" ", 3)
    time = _time(parts[0])
    if len(parts) < 3 or time is None:
        return []
    return [Note(time, *parts[1:])]


def _time(text: str) -> float | None:
    """Return seconds since the epoch; None for `N/A`, `Unknown` or `None`, which Slurm prints for
    an unknown time."""
    with suppress(ValueError):
        return float(text) or None
    return None
