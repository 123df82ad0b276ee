"""A run on a terminal: its output scrolls, and rows below show its progress, what it waits for, and its curves."""

from __future__ import annotations

import time
from collections import defaultdict
from itertools import islice
from threading import Lock
from typing import TYPE_CHECKING, Any, TextIO

from cloudtrain.cli.courses import Course, curve, sparkline, wants_logarithm
from cloudtrain.cli.lines import LineFormat
from cloudtrain.cli.pace import Pace
from cloudtrain.cli.terminal import has_color
from cloudtrain.core.states import LogLine, Metrics, RunStatus
from cloudtrain.render.escape import on_one_line
from cloudtrain.render.status import PROGRESS, number

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.table import Table
    from rich.text import Text

_RANK_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "bright_cyan", "bright_magenta", "bright_green")

_PLACES = ("epoch", "step")
"""Metrics that give the position of a measurement. They get no curve."""

_REFRESHES_PER_SECOND = 4

_OTHER_ROWS = 8
"""Rows of the terminal for the run's output and its progress; on a small terminal, half of the rows."""

_LOWEST, _HIGHEST = 3, 8
"""The fewest and the most rows of a curve."""

_TABLE_WIDTH, _NARROWEST = 34, 8
"""Columns of the numbers in a table, and the fewest columns of a useful sparkline."""


class LiveView:
    """Prints a run's lines above a live view. Metric lines only change the view. The curves stay on the screen after
    the run has ended."""

    def __init__(self, form: LineFormat, stream: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        self.latest: dict[str, float] = {}
        self._courses: dict[str, Course] = defaultdict(Course)
        self._pace = Pace(time.monotonic())
        self._changing = Lock()
        self._metrics = Metrics()
        self._form = form._replace(color=True)  # rich leaves colours out where there are none
        self._console = Console(
            file=stream,
            highlight=False,
            markup=False,
            emoji=False,
            color_system="auto" if has_color(stream) else None,  # with NO_COLOR rich itself leaves bold and dim
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
        """Update the view with a new status of the run."""
        with self._changing:
            self._pace.take_status(status, time.monotonic())

    def show(self, line: LogLine) -> None:
        """Update the view with the metrics in a line. Print the line, unless it is a metric line."""
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
                self._console.print(self._style(line, part), soft_wrap=True)

    def _style(self, line: LogLine, part: str) -> Text:
        from rich.text import Text

        colour = "dim" if line.rank is None else _RANK_COLOURS[line.rank % len(_RANK_COLOURS)]
        return Text(self._form.lead(line), style=colour).append_text(Text.from_ansi(part))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Any]:
        """Draw the view. rich calls this method for every printed line, so the content is computed at most
        `_REFRESHES_PER_SECOND` times a second, and again if the terminal's size changes."""
        from rich.segment import Segment

        now, size = time.monotonic(), (options.max_width, console.size.height)
        if self._drawn is None or self._drawn[1] != size or now - self._drawn[0] >= 1 / _REFRESHES_PER_SECOND:
            with self._changing:
                parts = self._parts(now, *size)
            given = options.update(height=None)
            rows = [row for part in parts for row in console.render_lines(part, given, pad=False)]
            self._drawn = (now, size, rows)
        for row in self._drawn[2]:
            yield from row
            yield Segment.line()

    def _parts(self, now: float, width: int, height: int) -> list[RenderableType]:
        from rich.progress_bar import ProgressBar
        from rich.text import Text

        parts: list[RenderableType] = []
        if (progress := self._pace.progress()) and self._courses:
            parts.append(Text(progress, no_wrap=True, overflow="ellipsis"))
        if self._pace.fraction is not None and self._courses:
            parts.append(ProgressBar(total=1.0, completed=self._pace.fraction, width=width))
        if not self._is_over and (waiting := self._pace.waiting_for(now)):
            parts.append(Text(waiting, style="dim", no_wrap=True, overflow="ellipsis"))
        return parts + self._course_parts(width, height - min(_OTHER_ROWS, height // 2))

    def _course_parts(self, width: int, rows: int) -> list[RenderableType]:
        """Return the curves that fit into `rows` rows, and a table of the metrics without a curve."""
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
        """Return how many of `count` metrics can have a curve in `rows` rows, if each metric without a curve needs a
        row of the table."""
        fits = (n for n in range(count, 0, -1) if n * (_LOWEST + 1) + (count - n + 1 if n < count else 0) <= rows)
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
        return [title, *(Text(row, style="cyan", no_wrap=True) for row in curve(trend, width, height))]

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
