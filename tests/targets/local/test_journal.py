"""The journal of a run's output against a plain model: random lines, ranks, restarts, kills and full disks."""

from __future__ import annotations

import os
import random
import re
from collections import defaultdict
from pathlib import Path

import pytest

import cloudtrain as ct
from cloudtrain.signals.journal import INDEX, ROW, SOURCES
from cloudtrain.signals.log import JournalIndex, LogIndex
from cloudtrain.targets.local.folder import RunFolder
from cloudtrain.targets.local.output import RunOutput
from tests.specifications import specification

LINES = (
    "",
    "loss: 0.5",
    "a b\tc",
    "é 🙂 წრფე",
    "\x1b[31mred\x1b[0m",
    "\x0b\x85\u2028",
)
SECRET = "s3cr3t-value"


class Killed(BaseException):
    """SIGKILL of the supervisor, or of the process that finishes its run."""


class Disk:
    """What `os.write` of the journal does: it may end after any byte, by a kill or because the disk is full."""

    def __init__(self, moments: random.Random) -> None:
        self.moments = moments
        self.write = os.write

    def __call__(self, descriptor: int, data: bytes) -> int:
        fate = self.moments.random()
        if fate > 0.1:
            return self.write(descriptor, data)
        self.write(descriptor, data[: self.moments.randint(0, len(data))])
        if fate > 0.04:
            raise Killed
        raise OSError(28, "No space left on device")


class Model:
    """The processes of a run of two ranks, and what they have printed."""

    def __init__(self, folder: Path, moments: random.Random) -> None:
        self.folder = folder
        self.moments = moments
        self.printed: dict[tuple[int | None, str], list[str]] = defaultdict(list)
        self.attempt = 0
        self.spec = specification(launcher="torchrun", instances=1, world_size=2)

    def print(self) -> None:
        """Some lines of any process; those of the launcher are few."""
        for rank in (0, 1):
            for stream in ("stdout", "stderr"):
                folder = self.folder / f"logs/instance_0/run_x/attempt_{self.attempt}/{rank}"
                folder.mkdir(parents=True, exist_ok=True)
                some = self.moments.choices(LINES, k=self.moments.choice((0, 0, 1, 3, 90)))
                if self.moments.random() < 0.1:
                    some.append(f"it is {SECRET}!")
                with (folder / f"{stream}.log").open("a", newline="\n") as file:
                    file.writelines(f"{line}\n" for line in some)
                self.printed[rank, stream] += some
        self.attempt += self.moments.random() < 0.1

    def output(self, *, resumes: bool) -> RunOutput:
        output = RunOutput(RunFolder(str(self.folder)), self.spec, lambda *_: None)
        output.hidden = (SECRET,)
        if resumes:
            output.resume()
        return output

    def expected(self, rank: int | None, stream: str) -> list[str]:
        """The lines as the journal has them, with secrets masked."""
        return [line.replace(SECRET, "***") for line in self.printed[rank, stream]]


@pytest.mark.parametrize("seed", range(12))
def test_no_line_is_lost_doubled_or_torn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Whatever kills the writer, after whichever byte, and however often; a reader beside it sees each line once."""
    moments = random.Random(seed)
    model = Model(tmp_path, moments)
    model.print()
    disk = Disk(moments)
    reader = JournalIndex(str(tmp_path))
    seen: dict[tuple[int | None, str], list[str]] = defaultdict(list)

    def read() -> None:
        for batch in reader.new_lines():
            # after a kill, what is read again may have been masked with more stars
            texts = [re.sub(r"\*+", "***", text) for text in batch.texts]
            seen[batch.rank, batch.stream] += texts

    output = model.output(resumes=False)
    monkeypatch.setattr("cloudtrain.signals.journal.os.write", disk)
    for _ in range(40):
        try:
            while output.pump(at_once=True):
                pass
        except OSError:  # there is room again
            continue
        except Killed:
            output.close()
            output = model.output(resumes=True)
        read()
        model.print()
    monkeypatch.undo()
    output.drain()
    output.close()
    read()

    log = JournalIndex(str(tmp_path))
    log.update()
    lines = log.window(0, len(log) + 1)
    assert len(lines) == len(log) == sum(map(len, seen.values()))
    for rank, stream in model.printed:
        expected = model.expected(rank, stream)
        assert seen[rank, stream] == expected
    for rank in (0, 1):
        text = (tmp_path / f"logs/rank_{rank}.log").read_bytes().decode()
        assert text.split("\n")[:-1] == [x.text for x in lines if x.rank == rank]
    assert not list((tmp_path / "logs/instance_0").rglob("*.log"))
    for file in tmp_path.rglob("*"):
        assert file.is_dir() or SECRET.encode() not in file.read_bytes()
    check_numbers(log, lines, moments)
    of_rank = JournalIndex(str(tmp_path), rank=1)
    of_rank.update()
    check_numbers(of_rank, [line for line in lines if line.rank == 1], moments)


def check_numbers(log: LogIndex, lines: list[ct.LogLine], moments: random.Random) -> None:
    """Windows, searches and the newest lines of a log are those of a list."""
    assert len(log) == len(lines)
    for _ in range(20):
        first = moments.randint(0, len(lines) + 3)
        count = moments.randint(0, 100)
        assert log.window(first, count) == lines[first : first + count]
        found = log.find("^loss|red", first)
        matching = (n for n in range(first, len(lines)) if re.search("^loss|red", lines[n].text))
        assert found == next(matching, None)
    assert newest(log) == lines[::-1]


def newest(log: LogIndex) -> list[ct.LogLine]:
    return [line for batch in log.newest() for line in [*batch.lines()][::-1]]


def test_lines_by_number_of_a_service_that_has_no_journal() -> None:
    """The same methods, over what `logs` yields."""
    lines = [ct.LogLine(n / 7, n % 2, n % 3, "stdout", f"loss {n}") for n in range(50)]
    log = LogIndex(lines)
    check_numbers(log, lines, random.Random(1))
    assert len(LogIndex()) == 0
    assert LogIndex().window(0, 5) == newest(LogIndex()) == []
    mixed = LogIndex([lines[40], lines[2], lines[41]])
    assert [batch.time for batch in mixed.newest(lines[40].time)] == [
        lines[41].time,
        lines[40].time,
    ]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of day, as the first number of the list."""
    now = [1763712000.25]
    monkeypatch.setattr("cloudtrain.targets.local.output.time.time", lambda: now[0])
    return now


def test_times(tmp_path: Path, clock: list[float]) -> None:
    """To the millisecond, for months, and although the clock is set back."""
    model = Model(tmp_path, random.Random(0))
    output = model.output(resumes=False)
    file = tmp_path / "logs/instance_0/run_x/attempt_0/0/stdout.log"
    file.parent.mkdir(parents=True)
    times = []
    for after in (0, 0.001, 4e6, 1e7, -2e7, 1):
        clock[0] += after
        times.append(clock[0])
        with file.open("a") as more:
            more.write(f"{clock[0]}\n")
        output.pump(at_once=True)
    output.close()
    lines = list(JournalIndex(str(tmp_path)).new_lines())
    assert [batch.time for batch in lines] == pytest.approx(times, abs=0.001)
    assert [float(batch.texts[0]) for batch in lines] == times


def test_size_on_disk(tmp_path: Path) -> None:
    """One line at a time, the index takes 16 bytes a line; a burst takes next to nothing."""
    model = Model(tmp_path, random.Random(0))
    output = model.output(resumes=False)
    file = tmp_path / "logs/instance_0/run_x/attempt_0/0/stdout.log"
    file.parent.mkdir(parents=True)
    for number in range(300):
        with file.open("a") as more:
            more.write(f"step {number:5} of 300: loss 0.25, accuracy 0.75, 17 samples/s\n")
        output.pump(at_once=True)
    text = file.stat().st_size
    assert (tmp_path / INDEX).stat().st_size == 300 * ROW.size
    running = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    assert running <= 2.3 * text + 300
    with file.open("a") as more:
        more.writelines(f"step {number}\n" for number in range(100_000))
    output.drain()
    output.close()
    assert (tmp_path / INDEX).stat().st_size < 310 * ROW.size + 50 * ROW.size
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == [
        INDEX, SOURCES, "rank_0.log"
    ]  # fmt: skip
