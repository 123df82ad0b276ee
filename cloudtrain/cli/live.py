"""A run on a terminal: its output scrolls, and rows below show its progress, what it waits for, and
its curves."""

from __future__ import annotations

import math
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from cloudtrain.cli.terminal import has_color, json_text
from cloudtrain.documents import JsonMapping
from cloudtrain.job.model import format_duration
from cloudtrain.plans.chart import Chart, Line, draw, wants_logarithm
from cloudtrain.plans.document import on_one_line, visible_output
from cloudtrain.plans.progress import PLACES, LogLine, Notice, RunStatus
from cloudtrain.plans.sparkline import sparkline
from cloudtrain.plans.states import RunState
from cloudtrain.plans.status import PROGRESS, best_words, current, number
from cloudtrain.runtime.notices import PREFIX as NOTICE
from cloudtrain.signals.log import LogBatch
from cloudtrain.signals.main_metric import WINDOW, explodes, is_low
from cloudtrain.signals.notices import newest_of, parse_notices
from cloudtrain.signals.progress import LinePosition, TrainingPace

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.table import Table
    from rich.text import Text

    from cloudtrain.signals.recognise import Recogniser

Values = dict[str, float]
"""Values of metrics, by their names."""

NewValues = Callable[[], Iterable[tuple[float, Values]]]
"""Returns the values that were measured since the last call, with their times."""


# The progress of a run, computed from its output and status: step, pace, time left, slow ranks, and
# what it waits for.
#
# No function reads the clock; the current time is an argument.

_QUIET = 10.0
"""Seconds without a line after which the view reports silence."""


class ProgressRate:
    """The progress of a run so far."""

    def __init__(self, now: float, hyperparameters: JsonMapping | None = None) -> None:
        self._pace = TrainingPace(hyperparameters)
        self._step_of: dict[int, float] = {}
        """The last step of each rank."""
        self._stride = 0.0
        """The most steps between two reports of a rank."""
        self._status: RunStatus | None = None
        self._phases: object = None
        self._has_lines = False
        self._news_at = now
        """When a line appeared or the run's phase changed last."""

    def take_line(self, line: LogLine, now: float) -> None:
        self._has_lines = True
        self._news_at = now
        values = line.metrics or {}
        if line.rank is not None and "step" in values:
            self._note_step(line.rank, values["step"])

    def take_values(self, values: Values, moment: float) -> None:
        """Record metrics of the run, which were written at `moment`."""
        self._pace.take(values, moment)

    def take_status(self, status: RunStatus, now: float) -> None:
        phases = (status.state, status.transitions)
        if phases != self._phases:
            self._news_at = now
        self._phases = phases
        self._status = status
        for rank, step in status.steps.items():
            self._note_step(rank, step)

    def _note_step(self, rank: int, step: float) -> None:
        before = self._step_of.get(rank)
        if before is not None and step > before:
            self._stride = max(self._stride, step - before)
        self._step_of[rank] = step

    @property
    def fraction(self) -> float | None:
        """The finished part of the training, from 0 to 1; None if its end is unknown."""
        progress = self._pace.progress
        return None if progress is None else progress.fraction

    def progress(self) -> str:
        """Return a text such as `step 120 of 460  26%  epoch 5.2  38 steps/s  9s left`, without the
        unknown parts."""
        parts = []
        progress = self._pace.progress
        unit = "step"
        if progress is not None:
            unit = progress.unit
            parts.append(f"{unit} {number(progress.at)} of {number(progress.end)}")
            parts.append(f"{progress.fraction:.0%}")
        for name in PLACES[::-1]:
            value = self._pace.latest.get(name)
            if value is not None and (progress is None or name != unit):
                parts.append(f"{name} {number(value)}")

        pace = self._pace.per_second
        if pace is not None and pace >= 1:
            parts.append(f"{number(pace)} {unit}s/s")
        elif pace is not None:
            parts.append(f"{number(1 / pace)} s/{unit}")

        if progress is not None and progress.seconds_left is not None and not self._is_over:
            left = format_duration(max(1, round(progress.seconds_left)))
            parts.append(f"{left} left")
        return "  ".join(parts)

    def waiting_for(self, now: float) -> str:
        """Return what the run waits for: the target, its first line of output, or slow ranks. Empty
        during progress."""
        if self._is_over:
            return ""
        quiet = now - self._news_at
        since = f" {format_duration(int(quiet))}" if quiet >= 1 else ""

        status = self._status
        if status is None:
            return f"asking for the run's state{since}"
        if status.state is RunState.STOPPING:
            return f"stopping: the script has time to save and leave{since}"
        if status.queue_place is not None:
            return f"queued: place {status.queue_place}, {status.reason}{since}"
        if status.state in (RunState.PENDING, RunState.PREPARING):
            return f"{status.state}{_phase_of(status)}{since}"
        if not self._has_lines:
            return f"the processes have started; waiting for their first line{since}"

        is_quiet = quiet >= _QUIET
        lag = self.lag(is_quiet=is_quiet)
        if not is_quiet:
            return lag
        news = f"nothing new for{since}"
        return f"{news}; {lag}" if lag else news

    def lag(self, *, is_quiet: bool) -> str:
        """Describe the ranks that are behind the foremost rank by at least two reports, or with
        `is_quiet` by at least one report. Return an empty text if there are none."""
        if len(self._step_of) < 2 or not self._stride:
            return ""
        foremost = max(self._step_of.values())
        least = self._stride if is_quiet else 2 * self._stride
        behind = [
            f"rank {rank} at step {number(step)}"
            for rank, step in sorted(self._step_of.items())
            if foremost - step >= least
        ]
        if not behind:
            return ""

        ranks = ", ".join(behind[:3])
        if len(behind) > 3:
            ranks += f" and {len(behind) - 3} more"
        return f"behind: {ranks}; the others at step {number(foremost)}"

    @property
    def _is_over(self) -> bool:
        return self._status is not None and self._status.state.is_final


def _step_text(values: Values) -> str:
    """Return `step 120 of 460`, or without the total if it is unknown; empty without a step."""
    if "step" not in values:
        return ""
    step = f"step {number(values['step'])}"
    total = values.get("total")
    return f"{step} of {number(total)}" if total else step


def _phase_of(status: RunStatus) -> str:
    """Return a comma and the provider's name for the current phase, if it names one."""
    phases = [item for item in status.transitions if item.ended is None]
    if not phases:
        return ""
    newest = phases[-1]
    words = newest.phase
    if newest.message not in (None, newest.phase):
        words += f": {newest.message}"
    return f", {on_one_line(words)}"


# The values of a metric over time: a sample of them, drawn as a curve or a sparkline.

MOST_KEPT = 768
"""Values of a metric that are kept for its curve: two for each of 384 columns."""


class Course:
    """A summary of a metric's values: the last, the smallest and the largest value, and an evenly
    spaced sample."""

    def __init__(self) -> None:
        self.last: float = math.nan
        self._first = math.nan
        self._recent: deque[float] = deque(maxlen=WINDOW)
        self._newest = math.nan
        self._low = math.inf
        self._high = -math.inf
        self._kept: list[float] = []
        """Every `_distance`-th of the `_count` finite values."""
        self._count = 0
        self._distance = 1

    def add(self, value: float) -> None:
        """Add the next value. A value that is not finite changes only `last`."""
        self.last = value
        if not self._recent:
            self._first = value
        self._recent.append(value)
        if not math.isfinite(value):
            return
        self._newest = value
        self._low = min(self._low, value)
        self._high = max(self._high, value)
        if self._count % self._distance == 0:
            self._kept.append(value)
        self._count += 1
        if len(self._kept) > MOST_KEPT:  # from now on, keep half as many
            del self._kept[1::2]
            self._distance *= 2

    def fault_of(self, name: str) -> str:
        """Return what is wrong with a loss of this name; empty if nothing is."""
        if not is_low(name) or not self._recent:
            return ""
        if not math.isfinite(self.last):
            return f"`{name}` is {number(self.last)}"
        is_exploding = explodes(tuple(self._recent), self._first)
        return f"`{name}` explodes: {number(self.last)}" if is_exploding else ""

    @property
    def bounds(self) -> tuple[float, float]:
        """The smallest and the largest finite value; the last value twice if no value is finite."""
        return (self._low, self._high) if self._count else (self.last, self.last)

    @property
    def trend(self) -> list[float]:
        """A sample of the finite values in order, from the first to the newest."""
        has_newest = (self._count - 1) % self._distance == 0
        return list(self._kept) if has_newest else [*self._kept, self._newest]


def curve(values: Sequence[float], width: int, height: int) -> list[str]:
    """Draw finite values as a line in `height` rows of Braille dots, over the whole width."""
    line = Line("", range(len(values)), values)
    chart = Chart("", [line], is_logarithmic=wants_logarithm(values))
    return draw(chart, width, height)


# The printed form of a line of a run's output.


class LineFormat(NamedTuple):
    """How lines are printed: with which prefix, raw or escaped, or as JSON."""

    prefix: bool = True
    timestamps: bool = False
    as_json: bool = False
    raw: bool = False
    """Print the line unchanged. A terminal obeys the control characters in it."""
    color: bool = False
    """Keep the colours that the line itself contains."""

    def text(self, line: LogLine) -> str:
        """Return the line without the line break at its end. If its text contains line breaks, each
        part gets the prefix."""
        if self.as_json:
            return json_text(line._asdict())
        lead = self.lead(line)
        return "\n".join(lead + part for part in self.parts(line))

    def batch(self, batch: LogBatch) -> str:
        """Return the lines of a batch, each with a line break."""
        text = "\n".join(batch.texts)
        is_plain = text.isascii() and text.replace("\n", "").isprintable()
        if self.as_json or not (is_plain or self.raw):
            return "".join([f"{self.text(line)}\n" for line in batch.lines()])
        lead = self.lead(batch)
        return lead + text.replace("\n", f"\n{lead}") + "\n"

    def parts(self, line: LogLine) -> list[str]:
        """Return the text between line breaks, without the prefix."""
        parts = line.text.split("\n")
        if self.raw:
            return parts
        return [visible_output(part, color=self.color) for part in parts]

    def lead(self, line: LogLine | LogBatch) -> str:
        """Return the prefix of the line, such as `2026-11-21T08:13:31.250Z [rank 0] `."""
        parts = []
        if self.timestamps:
            seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(line.time))
            milliseconds = int(line.time % 1 * 1000)
            parts.append(f"{seconds}.{milliseconds:03d}Z")
        if self.prefix and line.rank is not None:
            parts.append(f"[rank {line.rank}]")
        elif self.prefix:
            parts.append(f"[instance {line.instance}]")
        parts.append("")  # for a space at the end, if there is a prefix
        return " ".join(parts)


_RANK_COLOURS = (
    "cyan",
    "magenta",
    "green",
    "yellow",
    "blue",
    "bright_cyan",
    "bright_magenta",
    "bright_green",
)

_WITHOUT_CURVE = ("epoch", "step", *PROGRESS)
"""Metrics that give the position of a measurement, or the progress."""

_REFRESHES_PER_SECOND = 4

_OTHER_ROWS = 8
"""Rows of the terminal for the run's output and its progress; on a small terminal, half of the
rows."""

_LOWEST = 3
"""The fewest rows of a curve."""

_HIGHEST = 8
"""The most rows of a curve."""

_TABLE_WIDTH = 34
"""Columns of the numbers in a table."""

_NARROWEST = 8
"""The fewest columns of a useful sparkline."""

_SPARK = 40
"""The most columns of a trial's sparkline."""


class LiveView:
    """Prints a run's lines above a live view. Metric lines only change the view. The curves stay on
    the screen after the run has ended."""

    def __init__(
        self,
        form: LineFormat,
        stream: TextIO,
        new_rows: NewValues = list,
        job: JsonMapping | None = None,
    ) -> None:
        """`new_rows` returns the metrics that are in no metric line. `job` has the fields of the
        run's job; without it, no metric is recognised in lines of other forms."""
        from rich.console import Console
        from rich.live import Live

        self.latest: Values = {}
        self._courses: dict[str, Course] = defaultdict(Course)
        self._pace = ProgressRate(time.monotonic(), (job or {}).get("hyperparameters"))
        self._notices: list[Notice] = []
        """Those in lines of output."""
        self._status: RunStatus | None = None
        self._position = LinePosition()
        self._recogniser: Recogniser | None = None
        if job is not None and not job.get("metrics"):
            # its expressions take 10 ms
            from cloudtrain.signals.recognise import Recogniser

            self._recogniser = Recogniser()
        self._changing = Lock()
        """Held to change or read the content. rich draws the view in another thread."""
        self._new_rows = new_rows
        self._sweep: Values = {}
        """The metrics of a sweep; empty for another run."""
        self._trials: dict[int, tuple[Values, Course]] = {}
        """The newest values and the objective's course of each running trial."""

        self._form = form._replace(color=True)  # rich leaves colours out where there are none
        # with NO_COLOR, rich alone would still print bold and dim
        self._console = Console(
            file=stream,
            highlight=False,
            markup=False,
            emoji=False,
            color_system="auto" if has_color(stream) else None,
        )
        encoding = getattr(stream, "encoding", None) or ""
        self._draws = encoding.lower().startswith("utf")
        """Whether the stream can encode the characters of a curve."""
        self._drawn: _Drawing | None = None
        self._is_over = False
        self._live = Live(
            self,
            console=self._console,
            refresh_per_second=_REFRESHES_PER_SECOND,
            vertical_overflow="crop",
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def __enter__(self) -> LiveView:
        self._live.start(refresh=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._take_new_rows()
        self._is_over = True
        self._drawn = None  # so that it is drawn once more, without what the run waits for
        self._live.transient = not self._courses
        self._live.stop()

    def take_status(self, status: RunStatus) -> None:
        with self._changing:
            self._pace.take_status(status, time.monotonic())
            self._status = status
            is_sweep = {"trials", "ended"} <= status.metrics.keys()
            self._sweep = status.metrics if is_sweep else {}
            trials = {}
            for trial, values in status.trials.items():
                before, course = self._trials.get(trial) or ({}, Course())
                name = _objective_of(values)
                if name is not None and values != before:
                    course.add(values[name])
                trials[trial] = (values, course)
            self._trials = trials

    def show(self, line: LogLine) -> None:
        """Update the view with the metrics in a line. Print the line, unless it is a line of
        metrics or a notice."""
        values = line.metrics
        notices = parse_notices([line.text]) if NOTICE in line.text else []
        with self._changing:
            self._pace.take_line(line, time.monotonic())
            self._notices += notices
            if values is not None:
                self._take_reported(values, line.time)
            elif self._recogniser is not None and not line.rank:
                self._recognise(self._recogniser, line)
        if values is not None or notices:
            return
        for part in self._form.parts(line):
            for row in self._rows(line, part):
                self._console.print(row, soft_wrap=True)

    def _take_new_rows(self) -> None:
        with self._changing:
            for moment, values in self._new_rows():
                self._take_reported(values, moment)

    def _take_reported(self, values: Values, moment: float) -> None:
        if self._recogniser is not None:  # what is recognised counts only if there is nothing else
            self._recogniser = None
            self._courses.clear()
            self.latest.clear()
        self._pace.take_values(values, moment)
        self._take_values(values)

    def _recognise(self, recogniser: Recogniser, line: LogLine) -> None:
        for block in recogniser.blocks([line.text]):  # of one line
            values = {name: column[0] for name, column in block.values.items()}
            places = self._position.values(block.progress(0), has_values=bool(values))
            self._pace.take_values(places, line.time)
            self._take_values(values)

    def _take_values(self, values: Values) -> None:
        self.latest |= values
        for name, value in values.items():
            if name not in _WITHOUT_CURVE:
                self._courses[name].add(value)

    def _rows(self, line: LogLine, part: str) -> Iterator[Text]:
        """Yield a line of output, broken between words to the width of the terminal, below its own
        beginning."""
        from rich.text import Text

        colour = "dim"
        if line.rank is not None:
            colour = _RANK_COLOURS[line.rank % len(_RANK_COLOURS)]
        lead = Text(self._form.lead(line), style=colour)
        text = Text.from_ansi(part)
        room = self._console.width - lead.cell_len
        if text.cell_len <= room or room < _NARROWEST:
            yield lead.append_text(text)
            return
        indent = " " * lead.cell_len
        for row in text.wrap(self._console, room, tab_size=8):
            row.rstrip()
            yield lead.append_text(row)
            lead = Text(indent)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Any]:
        """Draw the view. rich calls this method for every printed line, so the content is computed
        at most `_REFRESHES_PER_SECOND` times a second, and again if the terminal's size changes."""
        from rich.segment import Segment

        now = time.monotonic()
        size = (options.max_width, console.size.height)
        drawn = self._drawn
        shortest = 1 / _REFRESHES_PER_SECOND
        if drawn is None or drawn.size != size or now - drawn.time >= shortest:
            self._take_new_rows()
            with self._changing:
                parts = self._parts(now, *size)
            full_height = options.update(height=None)
            rows = []
            for part in parts:
                rows += console.render_lines(part, full_height, pad=False)
            drawn = self._drawn = _Drawing(now, size, rows)

        for row in drawn.rows:
            yield from row
            yield Segment.line()

    def _parts(self, now: float, width: int, height: int) -> list[RenderableType]:
        """Return the view for a terminal of `width` columns and `height` rows."""
        from rich.progress_bar import ProgressBar

        rows = height - min(_OTHER_ROWS, height // 2)
        if self._sweep:
            return [] if self._is_over else self._sweep_parts(width, rows)

        parts: list[RenderableType] = [_row(text, "bold red") for text in self._faults()]
        progress = self._pace.progress()
        if progress and self._courses:
            parts.append(_row(progress))
        share = self._pace.fraction
        if share is not None and self._courses:
            # rich's own colour is red
            bar = ProgressBar(
                1.0, share, width=width, complete_style="cyan", finished_style="green"
            )
            parts.append(bar)
        waiting = self._pace.waiting_for(now)
        if waiting and not self._is_over:
            parts.append(_row(waiting, "dim"))
        return parts + self._course_parts(width, rows)

    def _faults(self) -> list[str]:
        """Return what a person should see at once: the newest notices, and losses that are lost."""
        status = self._status or RunStatus(RunState.PENDING)
        everything = newest_of([*status.notices, *self._notices])
        texts = [notice.text for notice in current(replace(status, notices=tuple(everything)))]
        faults = [course.fault_of(name) for name, course in self._courses.items()]
        return list(map(on_one_line, filter(None, [*texts, *faults])))

    def _sweep_parts(self, width: int, rows: int) -> list[RenderableType]:
        """Return a row about the sweep, and one for each running trial with its step, its value and
        a sparkline."""
        names = ("trials", "ended", "running")
        total, ended, running = (number(self._sweep.get(name, 0.0)) for name in names)
        words = f"{ended} of {total} trials ended, {running} running"
        best = best_words(self._sweep)
        if best:
            words += f"; the best so far: {best}"
        if not self._trials:
            return [_row(words, "dim")]

        table = _new_table(show_header=False)
        for trial in islice(self._trials, max(1, rows - 1)):
            values, course = self._trials[trial]
            name = on_one_line(_objective_of(values) or "")
            value = f"{name} {number(course.last)}" if name else ""
            room = width - _TABLE_WIDTH - len(name)
            trend = self._sparkline(course, min(room, _SPARK))
            table.add_row(f"trial {trial}", _step_text(values), value, trend)
        return [_row(words, "dim"), table]

    def _sparkline(self, course: Course, room: int) -> str:
        """Return a metric's sparkline; empty if `room` columns are too few for one."""
        if not self._draws or room < _NARROWEST:
            return ""
        return sparkline(course.trend, room)

    def _course_parts(self, width: int, rows: int) -> list[RenderableType]:
        """Return the curves that fit into `rows` rows, and a table of the metrics without a
        curve."""
        # those of a loss first
        courses = sorted(self._courses.items(), key=lambda item: "loss" not in item[0])
        count = len(courses) if self._draws else 0
        if count * (_LOWEST + 1) > rows:  # each of the others has a row in a table with a header
            count = max(0, rows - count - 1) // _LOWEST
            if not count and rows > _LOWEST + 2:  # then the table is cut
                count = 1
        drawn = courses[:count]
        others = courses[count:]

        parts: list[RenderableType] = []
        if drawn:
            table_rows = len(others) + 1 if others else 0
            room = (rows - table_rows) // count - 1  # without the row of the title
            height = max(_LOWEST, min(_HIGHEST, room))
            for name, course in drawn:
                parts += self._curve(name, course, width, height)
        if others:
            table = self._table(others, width, max(1, rows - 1))
            parts.append(table)
        return parts

    @staticmethod
    def _curve(name: str, course: Course, width: int, height: int) -> list[RenderableType]:
        """Return a title with the last value and the bounds, and below it a curve of `height`
        rows."""
        trend = course.trend
        low, high = map(number, course.bounds)
        title = _row(on_one_line(name), "bold")
        title.append(f"  {number(course.last)}", style="not bold")
        scale = "  log scale" if wants_logarithm(trend) else ""
        title.append(f"  min {low}  max {high}{scale}", style="not bold dim")

        rows = curve(trend, width, height)
        return [title, *(_row(row, "cyan") for row in rows)]

    def _table(self, courses: list[tuple[str, Course]], width: int, rows: int) -> Table:
        """Return a table of at most `rows` metrics, each with its last value, its bounds and a
        sparkline."""
        table = _new_table(show_header=True)
        table.add_column("METRIC", no_wrap=True, overflow="ellipsis", max_width=width // 3)
        for heading in ("LAST", "MIN", "MAX"):
            table.add_column(heading, justify="right", no_wrap=True)
        table.add_column("", no_wrap=True)

        longest = max(len(on_one_line(name)) for name, _ in courses)
        name_width = min(width // 3, longest)
        room = width - name_width - _TABLE_WIDTH
        for name, course in islice(courses, rows):
            values = map(number, (course.last, *course.bounds))
            table.add_row(on_one_line(name), *values, self._sparkline(course, room))
        return table


class _Drawing(NamedTuple):
    """The rows of a view, for the size of a terminal in columns and rows, as drawn at `time`."""

    time: float
    size: tuple[int, int]
    rows: list[Any]


def _new_table(*, show_header: bool) -> Table:
    from rich.table import Table

    return Table(
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
        header_style="dim",
        show_header=show_header,
    )


def _row(text: str, style: str = "") -> Text:
    """Return a text that is cut to one row of the terminal."""
    from rich.text import Text

    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def _objective_of(values: Values) -> str | None:
    """Return the name of the value that a trial reports; None without one."""
    return next((name for name in values if name not in _WITHOUT_CURVE), None)
