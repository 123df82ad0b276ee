"""A run on a terminal: its output scrolls, and rows below show its progress, what it waits for, and
its curves."""

from __future__ import annotations

import math
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from itertools import islice
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from cloudtrain.cli.terminal import has_color, json_text
from cloudtrain.job.model import format_duration
from cloudtrain.plans.document import on_one_line, visible_output
from cloudtrain.plans.states import LogLine, Metrics, RunState, RunStatus
from cloudtrain.plans.status import PROGRESS, best_words, number

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.table import Table
    from rich.text import Text


Values = dict[str, float]
"""Values of metrics, by their names."""


# The progress of a run, computed from its output and status: step, pace, time left, slow ranks, and
# what it waits for.
#
# No function reads the clock; the current time is an argument.

_REPORTS = 30
"""The number of newest reports over which the pace is measured."""

_QUIET = 10.0
"""Seconds without a line after which the view reports silence."""


class ProgressRate:
    """The progress of a run so far."""

    def __init__(self, now: float) -> None:
        self._latest: Values = {}
        self._reports: deque[tuple[float, float]] = deque(maxlen=_REPORTS)
        """The times and steps of the newest reports."""
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
        step = values.get("step")
        before = self._latest.get("step")
        if step is not None and step != before:
            if before is not None and step < before:
                self._reports.clear()  # the ranks were started again
            self._reports.append((moment, step))
        self._latest |= values

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
        """The finished part of the steps, from 0 to 1; None unless the script reports `step` and
        `total`."""
        step = self._latest.get("step")
        total = self._latest.get("total")
        if step is None or not total:
            return None
        return max(0.0, min(1.0, step / total))

    @property
    def per_second(self) -> float | None:
        """Steps per second over the newest reports; None if it cannot be computed."""
        if len(self._reports) < 2:
            return None
        start, first = self._reports[0]
        end, last = self._reports[-1]
        if end > start and last > first:
            return (last - first) / (end - start)
        return None

    @property
    def seconds_left(self) -> float | None:
        """The seconds left, as reported by the script, else estimated from the newest reports; None
        if unknown."""
        step = self._latest.get("step")
        total = self._latest.get("total")
        if step is None or total is None or step >= total:
            return None
        if "seconds_left" in self._latest:
            return self._latest["seconds_left"]
        pace = self.per_second
        return (total - step) / pace if pace else None

    def progress(self) -> str:
        """Return a text such as `step 120 of 460  26%  epoch 5.2  38 steps/s  9s left`, without the
        unknown parts."""
        parts = []
        step = _step_text(self._latest)
        if step:
            parts.append(step)
        if self.fraction is not None:
            parts.append(f"{self.fraction:.0%}")
        if "epoch" in self._latest:
            parts.append(f"epoch {number(self._latest['epoch'])}")

        pace = self.per_second
        if pace is not None and pace >= 1:
            parts.append(f"{number(pace)} steps/s")
        elif pace is not None:
            parts.append(f"{number(1 / pace)} s/step")

        seconds = self.seconds_left
        if seconds is not None and not self._is_over:
            left = format_duration(max(1, round(seconds)))
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

_BARS = "▁▂▃▄▅▆▇█"

MOST_KEPT = 768
"""Values of a metric that are kept for its curve: two for each of 384 columns."""

_WIDE = 10.0
"""A logarithmic scale needs a largest value of at least this many times the smallest one."""

_LOW = 0.25
"""A logarithmic scale is used if half of the values lie in this lowest part of a linear scale."""


class Course:
    """A summary of a metric's values: the last, the smallest and the largest value, and an evenly
    spaced sample."""

    def __init__(self) -> None:
        self.last = math.nan
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

    @property
    def bounds(self) -> tuple[float, float]:
        """The smallest and the largest finite value; the last value twice if no value is finite."""
        return (self._low, self._high) if self._count else (self.last, self.last)

    @property
    def trend(self) -> list[float]:
        """A sample of the finite values in order, from the first to the newest."""
        has_newest = (self._count - 1) % self._distance == 0
        return list(self._kept) if has_newest else [*self._kept, self._newest]


def wants_logarithm(values: Sequence[float]) -> bool:
    """Return whether a curve of the values needs a logarithmic scale, because most of them would
    lie at the bottom of a linear scale, as with a loss that drops steeply at first."""
    if not values or min(values) <= 0:
        return False
    # halves, because the product may be more than a float holds
    if max(values) / 2 < min(values) / 2 * _WIDE:
        return False
    middle = sorted(_fractions(values))[len(values) // 2]
    return middle < _LOW


def sparkline(values: Sequence[float], width: int) -> str:
    """Draw finite values in one row of at most `width` characters."""
    if len(values) > width:
        if width < 2:
            return ""
        # evenly spaced ones, with the first and the last
        last = len(values) - 1
        values = [values[index * last // (width - 1)] for index in range(width)]
    highest = len(_BARS) - 1
    bars = [_BARS[int(height * highest)] for height in _heights(values)]
    return "".join(bars)


def curve(values: Sequence[float], width: int, height: int) -> list[str]:
    """Draw finite values as a line in `height` rows of Braille dots, over the whole width."""
    from plotille import Canvas

    canvas = Canvas(width, height)
    heights = _heights(values)
    distance = canvas.xmax_inside / max(1, len(heights) - 1)
    points = [
        (index * distance, fraction * canvas.ymax_inside) for index, fraction in enumerate(heights)
    ]
    # of a single value, the line is a point
    for start, end in zip(points, points[1:] or points, strict=False):
        canvas.line(*start, *end)
    rows = canvas.plot(linesep="\n").split("\n")
    return [row.replace("\u2800", " ").rstrip() for row in rows]  # a Braille cell without dots


def _heights(values: Sequence[float]) -> list[float]:
    """Scale the values to 0 to 1, with a logarithm if a curve of them needs it."""
    if wants_logarithm(values):
        values = list(map(math.log, values))
    return _fractions(values)


def _fractions(values: Sequence[float]) -> list[float]:
    """Scale the values linearly, so that the smallest becomes 0 and the largest 1. If all are
    equal, all become 0."""
    if not values:
        return []
    # halves, because the whole distance may be more than a float holds
    low = min(values) / 2
    distance = (max(values) / 2 - low) or 1.0
    return [(value / 2 - low) / distance for value in values]


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
            content = dict(vars(line))
            if line.values is None:
                del content["values"]
            return json_text(content)
        lead = self.lead(line)
        return "\n".join(lead + part for part in self.parts(line))

    def parts(self, line: LogLine) -> list[str]:
        """Return the text between line breaks, without the prefix."""
        parts = line.text.split("\n")
        if self.raw:
            return parts
        return [visible_output(part, color=self.color) for part in parts]

    def lead(self, line: LogLine) -> str:
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

    def __init__(self, form: LineFormat, stream: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        self.latest: Values = {}
        self._courses: dict[str, Course] = defaultdict(Course)
        self._pace = ProgressRate(time.monotonic())
        self._changing = Lock()
        """Held to change or read the content. rich draws the view in another thread."""
        self._metrics = Metrics()
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
        self._is_over = True
        self._drawn = None  # so that it is drawn once more, without what the run waits for
        self._live.transient = not self._courses
        self._live.stop()

    def take_status(self, status: RunStatus) -> None:
        with self._changing:
            self._pace.take_status(status, time.monotonic())
            is_sweep = {"trials", "ended"} <= status.metrics.keys()
            self._sweep = status.metrics if is_sweep else {}
            trials = {}
            for trial, values in status.trials.items():
                trials[trial] = (values, self._course_of(trial, values))
            self._trials = trials

    def _course_of(self, trial: int, values: Values) -> Course:
        """Return the course of a running trial's objective, with its newest value."""
        before, course = self._trials.get(trial) or ({}, Course())
        name = _objective_of(values)
        if name is not None and values != before:
            course.add(values[name])
        return course

    def show(self, line: LogLine) -> None:
        """Update the view with the metrics in a line. Print the line, unless it is a metric
        line."""
        values = self._metrics.of(line)
        with self._changing:
            self._pace.take_line(line, time.monotonic())
            if values is not None:
                self._take_values(values, line.time)
        if line.is_metrics:
            return
        for part in self._form.parts(line):
            for row in self._rows(line, part):
                self._console.print(row, soft_wrap=True)

    def _take_values(self, values: Values, moment: float) -> None:
        self._pace.take_values(values, moment)
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

        parts: list[RenderableType] = []
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
        count = self._curves_among(len(courses), rows) if self._draws else 0
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
    def _curves_among(count: int, rows: int) -> int:
        """Return how many of `count` metrics can have a curve in `rows` rows, if each metric
        without a curve needs a row of the table."""
        for curves in range(count, 0, -1):
            needed = curves * (_LOWEST + 1)
            if curves < count:
                needed += count - curves + 1  # with the table's header
            if needed <= rows:
                return curves
        # then the table is cut
        return 1 if rows > _LOWEST + 2 else 0

    @staticmethod
    def _curve(name: str, course: Course, width: int, height: int) -> list[RenderableType]:
        """Return a title with the last value and the bounds, and below it a curve of `height`
        rows."""
        from rich.text import Text

        trend = course.trend
        low, high = map(number, course.bounds)
        title = _row(on_one_line(name), "bold")
        title.append(f"  {number(course.last)}", style="not bold")
        scale = "  log scale" if wants_logarithm(trend) else ""
        title.append(f"  min {low}  max {high}{scale}", style="not bold dim")

        rows = curve(trend, width, height)
        return [title, *(Text(row, style="cyan", no_wrap=True) for row in rows)]

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
