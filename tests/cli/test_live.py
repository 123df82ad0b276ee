"""What stands below a run's output on a terminal: progress, what it waits for, curves of any course, in any size."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pexpect
import pytest

from cloudtrain.cli.live import (
    Course,
    LineFormat,
    LiveView,
    NewValues,
    ProgressRate,
    curve,
)
from cloudtrain.plans.chart import wants_logarithm
from cloudtrain.plans.progress import LogLine, Notice, RunStatus, Transition
from cloudtrain.plans.sparkline import sparkline
from cloudtrain.plans.states import RunState
from tests.deadlines import DEADLINE

REPOSITORY = Path(__file__).parents[2]
SIZES = ("COLUMNS", "LINES")
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def metric_line(rank: int = 0, time: float = 0.0, **values: float) -> LogLine:
    """The line of `runtime.report`, or of a script of its own."""
    return LogLine(
        time,
        0,
        rank,
        "stdout",
        "[metrics] " + " ".join(f"{name}={v!r}" for name, v in values.items()),
    )


def screen_of(
    lines: Sequence[LogLine],
    encoding: str = "utf-8",
    new_rows: NewValues = list,
    job: dict[str, str] | None = None,
    status: RunStatus | None = None,
) -> str:
    """What stands there when a run with these lines and rows has ended."""
    screen = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    with LiveView(LineFormat(), screen, new_rows, job) as live:
        if status is not None:
            live.take_status(status)
        for line in lines:
            live.show(line)
    screen.seek(0)
    return screen.read()


def screen_of_losses(values: Sequence[float], encoding: str = "utf-8") -> str:
    return screen_of(
        [metric_line(step=step, loss=value) for step, value in enumerate(values)], encoding
    )


@pytest.mark.parametrize(
    ("values", "title"),
    [
        ([2.0, 1.0, 3.0], "loss  3  min 1  max 3"),
        ([1.0], "loss  1  min 1  max 1"),
        ([1.0, 2.0, float("nan")], "loss  nan  min 1  max 2"),
        ([float("nan")], "loss  nan  min nan  max nan"),
        ([1.7e308, -1.7e308, 0.0], "loss  0  min -1.7e+308  max 1.7e+308"),
        ([5e-324, 0.0], "loss  0  min 0  max 4.941e-324"),
        ([2.0, 0.5, 0.1, 0.09, 0.08, 0.07], "loss  0.07  min 0.07  max 2  log scale"),
    ],
)
def test_the_numbers_of_a_course(values: list[float], title: str) -> None:
    """Last, smallest and largest stand above the curve, for diverged and extreme values too."""
    assert f"\n{title}\n" in screen_of_losses(values)


def test_a_long_line_is_broken_between_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest stands below the beginning of the line's text, so that a path is not torn apart."""
    monkeypatch.setenv("COLUMNS", "60")
    path = "/home/ada/state/runs/digits-1/train.py"
    screen = screen_of([LogLine(0.0, 0, 1, "stderr", f'  File "{path}", line 6, in <module>')])
    rows = [row for row in screen.splitlines() if row]
    assert rows == [f'[rank 1]   File "{path}",', "         line 6, in <module>"]


def test_the_bar_of_a_healthy_run_is_not_red() -> None:
    """Red (rich's `bar.complete`, 249 38 114) means an error everywhere else."""
    from rich.console import Console
    from rich.progress_bar import ProgressBar

    with LiveView(LineFormat(), io.StringIO()) as live:
        live.show(metric_line(step=5.0, total=10.0, loss=0.5))
        parts = live._parts(0.0, 40, 20)
    bar = next(part for part in parts if isinstance(part, ProgressBar))
    console = Console(width=40, color_system="truecolor", force_terminal=True, file=io.StringIO())
    console.print(bar)
    drawn = console.file.getvalue()  # type: ignore[attr-defined]
    assert "38;2;249;38;114" not in drawn
    assert "\x1b[36m" in drawn


def test_without_utf_8_there_is_a_table() -> None:
    """A terminal that has no Braille gets the numbers."""
    text = screen_of_losses([2.0, 1.0, 3.0], "ascii")
    assert re.search(r"METRIC +LAST +MIN +MAX", text)
    assert re.search(r"loss +3 +1 +3", text)


@pytest.mark.parametrize("count", [768, 769, 770, 1537, 5000])
def test_a_long_course_keeps_its_bounds_and_its_ends(count: int) -> None:
    """A fall with a spike and a last jump: no bound is thinned away, the trend begins and ends as the values do."""
    values = [1.0 - step / count for step in range(count)]
    values[count // 2 + 1], values[-1] = 50.0, 100.0
    course = Course()
    for value in values:
        course.add(value)
    assert course.bounds == (min(values), 100.0)
    assert (course.trend[0], course.trend[-1]) == (1.0, 100.0)
    assert len(course.trend) <= 770


@pytest.mark.parametrize("width", [1, 2, 40, 120])
@pytest.mark.parametrize(
    "values", [[1.0], [0.0, 0.0], [1.7e308, -1.7e308, 0.0], [1e-300, 1e300], list(range(2000))]
)
def test_a_curve_keeps_to_its_room(values: list[float], width: int) -> None:
    """Whatever the values are."""
    rows = curve(values, width, 4)
    assert len(rows) == 4
    assert max(map(len, rows)) <= width
    assert any(rows)
    assert len(sparkline(values, width)) <= width


def test_a_curve_goes_from_corner_to_corner() -> None:
    """A straight way down takes the whole width and the whole height."""
    rows = curve([3.0, 2.0, 1.0], 40, 4)
    assert rows[0][0] != " "
    assert len(rows[3]) == 40


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([2.3, 0.5, 0.1, 0.05, 0.04], True),  # a loss
        ([0.1, 0.8, 0.95, 0.97, 0.98], False),  # an accuracy
        ([1.0, 0.9, 0.8], False),
        ([1.0, 0.01, 0.01, 0.0], False),
        ([], False),
    ],
)
def test_a_logarithmic_scale_where_it_helps(values: list[float], expected: bool) -> None:
    """Where most of a linear curve would lie on the floor, and no value forbids it."""
    assert wants_logarithm(values) is expected


def test_it_is_drawn_a_few_times_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not with every line: a run of 100,000 steps is followed as quickly as one of 100."""
    from cloudtrain.cli import live

    drawn = []
    monkeypatch.setattr(live, "curve", lambda *arguments: drawn.append(arguments) or ["curve"])
    assert "step 9999" in screen_of_losses([0.5] * 10_000)
    assert 1 <= len(drawn) < 1000


def test_values_of_the_files_are_drawn_too() -> None:
    """What a pattern reads in a line is in the run's metrics: the line stays in the output, and its values are below
    it."""
    line = LogLine(0.0, 0, 0, "stdout", "step 3 loss: 0.5")
    text = screen_of([line], new_rows=lambda: [(0.0, {"step": 3.0, "train:loss": 0.5})])
    assert "step 3 loss: 0.5" in text
    assert "train:loss  0.5  min 0.5  max 0.5" in text


def printed(*texts: str) -> list[LogLine]:
    """Lines that rank 0 printed, one each ten seconds."""
    return [LogLine(10.0 * number, 0, 0, "stdout", text) for number, text in enumerate(texts)]


def test_metrics_are_recognised_in_lines_of_no_known_form() -> None:
    """With progress and time left. The lines stay in the output; what a script reports counts alone."""
    lines = printed("epoch 1/4 loss: 0.9", "epoch 2/4 loss: 0.8", "epoch 3/4 loss: 0.7")
    text = screen_of(lines, job={})
    assert "epoch 3/4 loss: 0.7" in text
    assert "loss  0.7  min 0.7  max 0.9" in text
    assert "epoch 2 of 4  50%  10 s/epoch  20s left" in text

    assert "min" not in screen_of(lines, job={"metrics": "none"})
    reported = screen_of([*lines, metric_line(step=1, accuracy=0.5)], job={})
    assert "accuracy  0.5" in reported
    assert "loss  0.7  min" not in reported


def test_what_is_wrong_is_said_at_once() -> None:
    """Notices of the status and in lines of the clouds, which are not output; losses that are lost or explode."""
    line = (
        '[notice] {"kind": "alert", "text": "a\\u001b[2Jb", "time": 5, "rank": null, "ended": null}'
    )
    notices = (
        Notice("stalled", "rank 1 is in load", 1.0, 1),
        Notice("idle", "the GPUs idle", 2.0, ended=3.0),
    )
    losses = [metric_line(step=step, loss=1 / step) for step in range(1, 20)]
    text = screen_of([*printed(line), *losses], status=RunStatus(RunState.RUNNING, notices=notices))
    assert text.index("rank 1 is in load") < text.index("a\\x1b[2Jb") < text.index("step 19")
    assert "idle" not in text
    assert "[notice]" not in text
    assert "`loss`" not in text
    assert "`loss` is nan\n" in screen_of([*losses, metric_line(step=20, loss=float("nan"))])
    high = [metric_line(step=step, loss=1000.0 * step) for step in range(20, 24)]
    assert "`loss` explodes: 23000\n" in screen_of([*losses, *high])


def test_names_of_metrics_cannot_steer_the_terminal() -> None:
    """A name that a pattern of a job has with a control sequence in it is written out."""
    text = screen_of([], new_rows=lambda: [(0.0, {"step": 1.0, "a\x1b[2Jb": 0.5})])
    assert "\x1b" not in text
    assert "a\\x1b[2Jb" in text


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (120, 40), (40, 10), (20, 5), (80, 200)])
def test_many_metrics_fit_any_terminal(
    monkeypatch: pytest.MonkeyPatch, columns: int, rows: int
) -> None:
    """No row is longer than the terminal is wide, and together they leave room for the output."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("LINES", str(rows))
    values = {f"metric_with_a_long_name_{index}": float(index) for index in range(12)}
    text = screen_of(
        [metric_line(step=step, total=9, loss=1 / (step + 1), **values) for step in range(9)]
    )
    drawn = text[text.rindex("step 8 of") :].splitlines()
    assert all(len(line) <= columns for line in drawn)
    assert len(drawn) <= max(rows - 2, rows // 2 + 3)
    assert any(line.startswith("loss ") for line in drawn)


RESIZED = """
import sys
from cloudtrain.cli.live import LineFormat
from cloudtrain.cli.live import LiveView
from cloudtrain.plans.progress import LogLine
with LiveView(LineFormat(), sys.stdout) as live:
    for step in range(9):
        live.show(LogLine(0.0, 0, 0, "stdout", f"[metrics] step={step} total=20 loss={9 - step}"))
    live.show(LogLine(0.0, 0, 0, "stdout", "READY"))
    sys.stdin.readline()
    print("RESIZED", flush=True)
"""


def test_a_terminal_that_changes_its_size() -> None:
    """What is drawn after the change has the new width."""
    child: pexpect.spawn[str] = pexpect.spawn(
        sys.executable,
        ["-c", RESIZED],
        cwd=str(REPOSITORY),
        env={name: value for name, value in os.environ.items() if name not in SIZES}
        | {"TERM": "xterm"},  # type: ignore[arg-type]
        dimensions=(24, 100),
        encoding="utf-8",
        timeout=DEADLINE,
    )
    child.expect("READY")
    child.setwinsize(24, 50)
    child.sendline("")
    child.expect("RESIZED")
    child.expect(pexpect.EOF)
    text = ESCAPE.sub("", child.before or "")
    last = text[text.rindex("step 8 of 20") :].splitlines()
    assert max(len(line.rstrip()) for line in last) == 50


def status(state: RunState, **more: object) -> RunStatus:
    return RunStatus(state, **more)  # type: ignore[arg-type]


def test_step_pace_and_time_left() -> None:
    """From the newest reports; what the script says about the time left comes first."""
    pace = ProgressRate(0.0)
    assert pace.progress() == ""
    for step in range(11):
        pace.take_values({"step": step * 10.0, "total": 400.0, "loss": 1.0}, moment=step * 2.0)
    assert pace.progress() == "step 100 of 400  25%  5 steps/s  1m left"
    pace.take_values({"step": 110.0, "epoch": 2.5, "seconds_left": 30.0}, moment=22.0)
    assert pace.progress() == "step 110 of 400  28%  epoch 2.5  5 steps/s  30s left"
    pace.take_status(status(RunState.SUCCEEDED), 23.0)
    assert "left" not in pace.progress()


def test_slow_steps_take_seconds() -> None:
    """A step of a large model takes longer than a second."""
    pace = ProgressRate(0.0)
    pace.take_values({"step": 1.0}, moment=0.0)
    pace.take_values({"step": 2.0}, moment=4.0)
    assert pace.progress() == "step 2  4 s/step"


def test_what_a_run_waits_for() -> None:
    """From the first moment to the last: the target, its phases, the first line, silence, the end."""
    pace = ProgressRate(0.0)
    assert pace.waiting_for(0.2) == "asking for the run's state"
    pace.take_status(status(RunState.PENDING), 1.0)
    assert pace.waiting_for(4.0) == "pending 3s"
    phase = Transition("Downloading", 0.0, None, "the image\x1b[2J")
    pace.take_status(status(RunState.PREPARING, transitions=(phase,)), 10.0)
    assert pace.waiting_for(10.0) == "preparing, Downloading: the image\\x1b[2J"
    pace.take_status(status(RunState.RUNNING), 20.0)
    assert pace.waiting_for(25.0) == "the processes have started; waiting for their first line 5s"
    pace.take_line(LogLine(0.0, 0, 0, "stdout", "begin"), 30.0)
    assert pace.waiting_for(35.0) == ""
    assert pace.waiting_for(45.0) == "nothing new for 15s"
    pace.take_status(status(RunState.STOPPING), 50.0)
    assert pace.waiting_for(50.0) == "stopping: the script has time to save and leave"
    pace.take_status(status(RunState.STOPPED), 60.0)
    assert pace.waiting_for(99.0) == ""


def test_a_rank_that_falls_behind_is_named() -> None:
    """By more than one report while the others go on, by one once all are quiet."""
    pace = ProgressRate(0.0)
    pace.take_status(status(RunState.RUNNING), 0.0)
    for step in (10, 20):
        for rank in range(3):
            pace.take_line(metric_line(rank, step=step), 1.0)
    assert pace.waiting_for(1.0) == ""
    for rank in (0, 2):
        pace.take_line(metric_line(rank, step=30), 2.0)
    assert pace.waiting_for(2.0) == ""
    assert (
        pace.waiting_for(14.0)
        == "nothing new for 12s; behind: rank 1 at step 20; the others at step 30"
    )
    pace.take_status(status(RunState.RUNNING, steps={0: 40.0, 1: 20.0, 2: 40.0}), 15.0)
    pace.take_line(metric_line(0, step=40), 15.0)
    assert pace.waiting_for(15.0) == "behind: rank 1 at step 20; the others at step 40"


def test_a_sweep_shows_its_running_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their step, the course of the objective, and the best so far; no word about silence."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("cloudtrain.cli.live.time.monotonic", lambda: 100.0)
    screen = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    counts = {"trials": 5.0, "ended": 1.0, "running": 1.0, "best_trial": 1.0, "loss": 0.5}
    live = LiveView(LineFormat(), screen)
    for step, loss in ((1.0, 3.0), (2.0, 2.0), (3.0, 1.0)):
        trials = {2: {"step": step, "total": 8.0, "loss": loss}}
        live.take_status(RunStatus(RunState.RUNNING, metrics=counts, trials=trials))
    monkeypatch.setattr("cloudtrain.cli.live.time.monotonic", lambda: 200.0)
    live._console.print(live)
    screen.seek(0)
    assert [row.rstrip() for row in screen.read().splitlines()] == [
        "1 of 5 trials ended, 1 running; the best so far: loss 0.5, trial 1",
        "trial 2  step 3 of 8  loss 1  █▄▁",
    ]
