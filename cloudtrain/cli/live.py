"""A run on a terminal: its output scrolls, and rows below show its progress, what it waits for, and
its curves."""

from __future__ import annotations

import json
import math
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from itertools import islice
from math import isfinite
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from cloudtrain.cli.terminal import has_color
from cloudtrain.job.model import format_duration
from cloudtrain.plans.document import on_one_line, visible_json, visible_output
from cloudtrain.plans.states import LogLine, Metrics, RunState, RunStatus
from cloudtrain.plans.status import PROGRESS, best_words, number

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.table import Table
    from rich.text import Text


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
        self._latest: dict[str, float] = {}
        self._reports: deque[tuple[float, float]] = deque(maxlen=_REPORTS)
        self._step_of: dict[int, float] = {}
        self._stride = 0.0
        self._status: RunStatus | None = None
        self._has_lines = False
        self._news_at = now

    def take_line(self, line: LogLine, now: float) -> None:
        self._has_lines, self._news_at = True, now
        if line.rank is not None and "step" in (values := line.metrics or {}):
            self._note_step(line.rank, values["step"])

    def take_values(self, values: dict[str, float], moment: float) -> None:
        """Record metrics of the run, which were written at `moment`."""
        step, before = values.get("step"), self._latest.get("step")
        if step is not None and (before is None or step != before):
            if before is not None and step < before:
                self._reports.clear()  # the ranks were started again
            self._reports.append((moment, step))
        self._latest |= values

    def take_status(self, status: RunStatus, now: float) -> None:
        if self._status is None or (status.state, status.transitions) != (
            self._status.state,
            self._status.transitions,
        ):
            self._news_at = now
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
        step, total = self._latest.get("step"), self._latest.get("total")
        return None if step is None or not total else max(0.0, min(1.0, step / total))

    @property
    def per_second(self) -> float | None:
        """Steps per second over the newest reports; None if it cannot be computed."""
        if len(self._reports) < 2:
            return None
        (start, first), (end, last) = self._reports[0], self._reports[-1]
        return (last - first) / (end - start) if end > start and last > first else None

    @property
    def seconds_left(self) -> float | None:
        """The seconds left, as reported by the script, else estimated from the newest reports; None
        if unknown."""
        step, total, pace = self._latest.get("step"), self._latest.get("total"), self.per_second
        if step is None or total is None or step >= total:
            return None
        return self._latest.get("seconds_left", (total - step) / pace if pace else None)

    def progress(self) -> str:
        """Return a text such as `step 120 of 460  26%  epoch 5.2  38 steps/s  9s left`, without the
        unknown parts."""
        parts = []
        if "step" in self._latest:
            total = self._latest.get("total")
            parts.append(
                f"step {number(self._latest['step'])}" + (f" of {number(total)}" if total else "")
            )
        parts += [f"{self.fraction:.0%}"] if self.fraction is not None else []
        parts += [f"epoch {number(self._latest['epoch'])}"] if "epoch" in self._latest else []
        if (pace := self.per_second) is not None:
            parts.append(f"{number(pace)} steps/s" if pace >= 1 else f"{number(1 / pace)} s/step")
        if self.seconds_left is not None and not self._is_over:
            parts.append(f"{format_duration(max(1, round(self.seconds_left)))} left")
        return "  ".join(parts)

    def waiting_for(self, now: float) -> str:
        """What the run waits for: the target, its first line of output, or slow ranks. Empty during
        progress."""
        if self._is_over:
            return ""
        quiet = now - self._news_at
        since = f" {format_duration(int(quiet))}" if quiet >= 1 else ""
        if self._status is None:
            return f"asking for the run's state{since}"
        if self._status.state is RunState.STOPPING:
            return f"stopping: the script has time to save and leave{since}"
        if self._status.queue_place is not None:
            return f"queued: place {self._status.queue_place}, {self._status.reason}{since}"
        if self._status.state in (RunState.PENDING, RunState.PREPARING):
            return f"{self._status.state}{self._phase()}{since}"
        if not self._has_lines:
            return f"the processes have started; waiting for their first line{since}"
        lag = self.lag(is_quiet=quiet >= _QUIET)
        if quiet >= _QUIET:
            return f"nothing new for{since}" + (f"; {lag}" if lag else "")
        return lag

    def lag(self, *, is_quiet: bool) -> str:
        """Describe the ranks that are behind the foremost rank by at least two reports, or with
        `is_quiet` by at least one report. Return an empty text if there are none."""
        if len(self._step_of) < 2 or not self._stride:
            return ""
        first = max(self._step_of.values())
        least = self._stride if is_quiet else 2 * self._stride
        behind = {
            rank: step for rank, step in sorted(self._step_of.items()) if first - step >= least
        }
        if not behind:
            return ""
        ranks = [f"rank {rank} at step {number(step)}" for rank, step in list(behind.items())[:3]]
        more = f" and {len(behind) - 3} more" if len(behind) > 3 else ""
        return f"behind: {', '.join(ranks)}{more}; the others at step {number(first)}"

    @property
    def _is_over(self) -> bool:
        return self._status is not None and self._status.state.is_final

    def _phase(self) -> str:
        """A comma and the provider's name for the current phase, if it names one."""
        phases = (
            [item for item in self._status.transitions if item.ended is None]
            if self._status
            else []
        )
        if not phases:
            return ""
        newest = phases[-1]
        words = (
            newest.phase
            if newest.message in (None, newest.phase)
            else f"{newest.phase}: {newest.message}"
        )
        return f", {on_one_line(words)}"


# The values of a metric over time: a sample of them, drawn as a curve or a sparkline.

_BARS = "▁▂▃▄▅▆▇█"

MOST_KEPT = 768
"""Values of a metric that are kept for its curve: two for each of 384 columns."""

_WIDE, _LOW = 10.0, 0.25
"""A logarithmic scale is used if the largest value is at least `_WIDE` times the smallest one, and
half of the values lie in the lowest `_LOW` of a linear scale."""


class Course:
    """A summary of a metric's values: the last, the smallest and the largest value, and an evenly
    spaced sample."""

    def __init__(self) -> None:
        self.last = self._newest = math.nan
        self._low, self._high = math.inf, -math.inf
        self._kept: list[float] = []
        self._count, self._distance = 0, 1

    def add(self, value: float) -> None:
        """Add the next value. A value that is not finite changes only `last`."""
        self.last = value
        if not math.isfinite(value):
            return
        self._newest, self._low, self._high = value, min(self._low, value), max(self._high, value)
        if self._count % self._distance == 0:
            self._kept.append(value)
        self._count += 1
        if len(self._kept) > MOST_KEPT:
            del self._kept[1::2]
            self._distance *= 2

    @property
    def bounds(self) -> tuple[float, float]:
        """The smallest and the largest finite value; the last value twice if no value is finite."""
        return (self._low, self._high) if self._count else (self.last, self.last)

    @property
    def trend(self) -> list[float]:
        """A sample of the finite values in order, from the first to the newest."""
        return (
            list(self._kept)
            if (self._count - 1) % self._distance == 0
            else [*self._kept, self._newest]
        )


def wants_logarithm(values: Sequence[float]) -> bool:
    """Return whether a curve of the values needs a logarithmic scale, because most of them would
    lie at the bottom of a linear scale, as with a loss that drops steeply at first."""
    if not values or min(values) <= 0 or max(values) / 2 < min(values) / 2 * _WIDE:
        return False
    return sorted(_fractions(values))[len(values) // 2] < _LOW


def sparkline(values: Sequence[float], width: int) -> str:
    """Draw finite values in one row of at most `width` characters."""
    if len(values) > width:
        values = (
            [values[index * (len(values) - 1) // (width - 1)] for index in range(width)]
            if width > 1
            else ()
        )
    return "".join(_BARS[int(fraction * (len(_BARS) - 1))] for fraction in _heights(values))


def curve(values: Sequence[float], width: int, height: int) -> list[str]:
    """Draw finite values as a line in `height` rows of Braille dots, over the whole width."""
    from plotille import Canvas

    canvas = Canvas(width, height)
    heights = _heights(values)
    distance = canvas.xmax_inside / max(1, len(heights) - 1)
    points = [
        (index * distance, fraction * canvas.ymax_inside) for index, fraction in enumerate(heights)
    ]
    for (x0, y0), (x1, y1) in zip(points, points[1:] or points, strict=False):
        canvas.line(x0, y0, x1, y1)
    return [row.replace("\u2800", " ").rstrip() for row in canvas.plot(linesep="\n").split("\n")]


def _heights(values: Sequence[float]) -> list[float]:
    return _fractions([math.log(value) for value in values] if wants_logarithm(values) else values)


def _fractions(values: Sequence[float]) -> list[float]:
    """Scale the values linearly, so that the smallest becomes 0 and the largest 1. If all are
    equal, all become 0."""
    if not values:
        return []
    # halves, because the whole distance may be more than a float holds
    low, high = min(values) / 2, max(values) / 2
    distance = (high - low) or 1.0
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
        """Without the line break. If the text of `line` contains line breaks, each part gets the
        prefix."""
        if self.as_json:
            content = {name: value for name, value in line.__dict__.items() if name != "values"}
            if line.values is not None:
                content["values"] = {
                    name: value if isfinite(value) else None for name, value in line.values.items()
                }
            return visible_json(json.dumps(content, ensure_ascii=False))
        lead = self.lead(line)
        return "\n".join(lead + part for part in self.parts(line))

    def parts(self, line: LogLine) -> list[str]:
        parts = line.text.split("\n")
        return parts if self.raw else [visible_output(part, color=self.color) for part in parts]

    def lead(self, line: LogLine) -> str:
        """Return the prefix of the line, such as `2026-11-21T08:13:31.250Z [rank 0] `."""
        parts = []
        if self.timestamps:
            utc = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(line.time))
            parts.append(f"{utc}.{int(line.time % 1 * 1000):03d}Z")
        if self.prefix:
            parts.append(
                f"[rank {line.rank}]" if line.rank is not None else f"[instance {line.instance}]"
            )
        return "".join(f"{part} " for part in parts)


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

_PLACES = ("epoch", "step")
"""Metrics that give the position of a measurement. They get no curve."""

_REFRESHES_PER_SECOND = 4

_OTHER_ROWS = 8
"""Rows of the terminal for the run's output and its progress; on a small terminal, half of the
rows."""

_LOWEST, _HIGHEST = 3, 8
"""The fewest and the most rows of a curve."""

_TABLE_WIDTH, _NARROWEST, _SPARK = 34, 8, 40
"""Columns of the numbers in a table, and the fewest and the most columns of a useful sparkline."""


class LiveView:
    """Prints a run's lines above a live view. Metric lines only change the view. The curves stay on
    the screen after the run has ended."""

    def __init__(self, form: LineFormat, stream: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        self.latest: dict[str, float] = {}
        self._courses: dict[str, Course] = defaultdict(Course)
        self._pace = ProgressRate(time.monotonic())
        self._changing = Lock()
        self._metrics = Metrics()
        self._sweep: dict[str, float] = {}
        self._trials: dict[int, tuple[dict[str, float], Course]] = {}
        self._form = form._replace(color=True)  # rich leaves colours out where there are none
        self._console = Console(
            file=stream,
            highlight=False,
            markup=False,
            emoji=False,
            # with NO_COLOR rich itself leaves bold and dim
            color_system="auto" if has_color(stream) else None,
        )
        self._draws = (getattr(stream, "encoding", None) or "").lower().startswith("utf")
        self._drawn: tuple[float, tuple[int, int], list[Any]] | None = None
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
        self._is_over, self._drawn = True, None
        self._live.transient = not self._courses
        self._live.stop()

    def take_status(self, status: RunStatus) -> None:
        with self._changing:
            self._pace.take_status(status, time.monotonic())
            self._sweep = status.metrics if {"trials", "ended"} <= status.metrics.keys() else {}
            self._trials = {
                number: (values, self._trial(number, values))
                for number, values in status.trials.items()
            }

    def _trial(self, number: int, values: dict[str, float]) -> Course:
        """Return the course of a running trial's objective, with its newest value."""
        before, course = self._trials.get(number) or ({}, Course())
        value = next(
            (value for name, value in values.items() if name not in (*_PLACES, *PROGRESS)), None
        )
        if value is not None and values != before:
            course.add(value)
        return course

    def show(self, line: LogLine) -> None:
        """Update the view with the metrics in a line. Print the line, unless it is a metric
        line."""
        values = self._metrics.of(line)
        with self._changing:
            self._pace.take_line(line, time.monotonic())
            if values is not None:
                self._pace.take_values(values, line.time)
                self.latest |= values
                for name, value in values.items():
                    if name not in (*_PLACES, *PROGRESS):
                        self._courses[name].add(value)
        if not line.is_metrics:
            for part in self._form.parts(line):
                for row in self._rows(line, part):
                    self._console.print(row, soft_wrap=True)

    def _rows(self, line: LogLine, part: str) -> Iterator[Text]:
        """Yield a line of output, broken between words to the width of the terminal, below its own
        beginning."""
        from rich.text import Text

        colour = "dim" if line.rank is None else _RANK_COLOURS[line.rank % len(_RANK_COLOURS)]
        lead, text = Text(self._form.lead(line), style=colour), Text.from_ansi(part)
        room = self._console.width - lead.cell_len
        if text.cell_len <= room or room < _NARROWEST:
            yield lead.append_text(text)
            return
        indent = " " * lead.cell_len
        for index, row in enumerate(text.wrap(self._console, room, tab_size=8)):
            row.rstrip()
            yield (Text(indent) if index else lead).append_text(row)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Any]:
        """Draw the view. rich calls this method for every printed line, so the content is computed
        at most `_REFRESHES_PER_SECOND` times a second, and again if the terminal's size changes."""
        from rich.segment import Segment

        now, size = time.monotonic(), (options.max_width, console.size.height)
        if (
            self._drawn is None
            or self._drawn[1] != size
            or now - self._drawn[0] >= 1 / _REFRESHES_PER_SECOND
        ):
            with self._changing:
                parts = self._parts(now, *size)
            full_height = options.update(height=None)
            rows = [
                row for part in parts for row in console.render_lines(part, full_height, pad=False)
            ]
            self._drawn = (now, size, rows)
        for row in self._drawn[2]:
            yield from row
            yield Segment.line()

    def _parts(self, now: float, width: int, height: int) -> list[RenderableType]:
        from rich.progress_bar import ProgressBar
        from rich.text import Text

        if self._sweep:
            return (
                []
                if self._is_over
                else self._sweep_parts(width, height - min(_OTHER_ROWS, height // 2))
            )
        parts: list[RenderableType] = []
        if (progress := self._pace.progress()) and self._courses:
            parts.append(Text(progress, no_wrap=True, overflow="ellipsis"))
        if self._pace.fraction is not None and self._courses:
            share, own = self._pace.fraction, "cyan"  # rich's own is red
            parts.append(
                ProgressBar(1.0, share, width=width, complete_style=own, finished_style="green")
            )
        if not self._is_over and (waiting := self._pace.waiting_for(now)):
            parts.append(Text(waiting, style="dim", no_wrap=True, overflow="ellipsis"))
        return parts + self._course_parts(width, height - min(_OTHER_ROWS, height // 2))

    def _sweep_parts(self, width: int, rows: int) -> list[RenderableType]:
        """Return a row about the sweep, and one for each running trial with its step, its value and
        a sparkline."""
        from rich.table import Table
        from rich.text import Text

        total, ended, running = (
            number(self._sweep.get(name, 0.0)) for name in ("trials", "ended", "running")
        )
        words = f"{ended} of {total} trials ended, {running} running"
        words += f"; the best so far: {best}" if (best := best_words(self._sweep)) else ""
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
        for trial, (values, course) in islice(self._trials.items(), max(1, rows - 1)):
            step = f"step {number(values['step'])}" if "step" in values else ""
            step += f" of {number(values['total'])}" if step and values.get("total") else ""
            name = next(
                (on_one_line(name) for name in values if name not in (*_PLACES, *PROGRESS)), ""
            )
            room = width - _TABLE_WIDTH - len(name)
            trend = (
                sparkline(course.trend, min(room, _SPARK))
                if self._draws and room >= _NARROWEST
                else ""
            )
            table.add_row(
                f"trial {trial}", step, f"{name} {number(course.last)}" if name else "", trend
            )
        return [
            Text(words, style="dim", no_wrap=True, overflow="ellipsis"),
            *([table] if self._trials else []),
        ]

    def _course_parts(self, width: int, rows: int) -> list[RenderableType]:
        """Return the curves that fit into `rows` rows, and a table of the metrics without a
        curve."""
        courses = sorted(self._courses.items(), key=lambda item: "loss" not in item[0])
        count = self._curves_among(len(courses), rows) if self._draws else 0
        others = courses[count:]
        room = (rows - (len(others) + 1 if others else 0)) // count - 1 if count else 0
        parts: list[RenderableType] = []
        for name, course in courses[:count]:
            parts += self._curve(name, course, width, max(_LOWEST, min(_HIGHEST, room)))
        return parts + ([self._table(others, width, max(1, rows - 1))] if others else [])

    @staticmethod
    def _curves_among(count: int, rows: int) -> int:
        """Return how many of `count` metrics can have a curve in `rows` rows, if each metric
        without a curve needs a row of the table."""
        fits = (
            n
            for n in range(count, 0, -1)
            if n * (_LOWEST + 1) + (count - n + 1 if n < count else 0) <= rows
        )
        return next(fits, 1 if rows > _LOWEST + 2 else 0)

    @staticmethod
    def _curve(name: str, course: Course, width: int, height: int) -> list[RenderableType]:
        from rich.text import Text

        trend = course.trend
        low, high = map(number, course.bounds)
        title = Text(on_one_line(name), style="bold", no_wrap=True, overflow="ellipsis")
        title.append(f"  {number(course.last)}", style="not bold")
        scale = "  log scale" if wants_logarithm(trend) else ""
        title.append(f"  min {low}  max {high}{scale}", style="not bold dim")
        return [
            title,
            *(Text(row, style="cyan", no_wrap=True) for row in curve(trend, width, height)),
        ]

    def _table(self, courses: list[tuple[str, Course]], width: int, rows: int) -> Table:
        from rich.table import Table

        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        table.add_column("METRIC", no_wrap=True, overflow="ellipsis", max_width=width // 3)
        for heading in ("LAST", "MIN", "MAX"):
            table.add_column(heading, justify="right", no_wrap=True)
        table.add_column("", no_wrap=True)
        longest = min(width // 3, max(len(on_one_line(name)) for name, _ in courses))
        room = width - longest - _TABLE_WIDTH
        for name, course in islice(courses, rows):
            trend = sparkline(course.trend, room) if self._draws and room >= _NARROWEST else ""
            table.add_row(on_one_line(name), *map(number, (course.last, *course.bounds)), trend)
        return table
