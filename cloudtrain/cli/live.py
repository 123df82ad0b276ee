"""The metrics of a run as a table that stays below its scrolling output, on a terminal."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any, TextIO

from cloudtrain.cli.lines import LineFormat
from cloudtrain.core.states import LogLine, Metrics
from cloudtrain.render.escape import on_one_line
from cloudtrain.render.status import PROGRESS, number

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

_RANK_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "bright_cyan", "bright_magenta", "bright_green")

_BARS = "▁▂▃▄▅▆▇█"
_TREND_WIDTH = 24
_MOST_KEPT = 32 * _TREND_WIDTH
"""Values of a metric that are kept for its trend."""

_PLACES = ("epoch", "step")
"""Where a value was measured, rather than a value: shown above the table."""

_REFRESHES_PER_SECOND = 4


class LiveMetrics:
    """Prints lines, except metric lines, which change the table. The table appears with the first metric and stays
    on the screen when the run has ended."""

    def __init__(self, form: LineFormat, stream: TextIO) -> None:
        from rich.console import Console

        self.latest: dict[str, float] = {}
        self._courses: dict[str, _Course] = defaultdict(_Course)
        self._changing = Lock()
        self._metrics = Metrics()
        self._form = form._replace(color=True)  # rich leaves colours out where there are none
        self._console = Console(file=stream, highlight=False, markup=False, emoji=False)
        self._bars = (getattr(stream, "encoding", None) or "").lower().startswith("utf")
        self._live: Live | None = None

    def __enter__(self) -> LiveMetrics:
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, line: LogLine) -> None:
        """Take the values of a line, and print it, unless it is a metric line."""
        values = self._metrics.of(line)
        if not line.is_metrics:
            for part in self._form.parts(line):
                self._console.print(self._styled(line, part), soft_wrap=True)
        if values is None:
            return
        with self._changing:
            self.latest |= values
            for name, value in values.items():
                self._courses[name].add(value)
        if self._live is None:
            self._live = self._started()

    def _started(self) -> Live:
        """The table is built when it is drawn, by a thread of its own, not with every value."""
        from rich.live import Live

        live = Live(
            get_renderable=self._table,
            console=self._console,
            refresh_per_second=_REFRESHES_PER_SECOND,
            vertical_overflow="visible",
        )
        live.start()
        return live

    def _styled(self, line: LogLine, part: str) -> Any:
        from rich.text import Text

        colour = "dim" if line.rank is None else _RANK_COLOURS[line.rank % len(_RANK_COLOURS)]
        return Text(self._form.lead(line), style=colour).append_text(Text.from_ansi(part))

    def _table(self) -> Table:
        from rich.table import Table

        where = "  ".join(f"{name} {number(self.latest[name])}" for name in _PLACES if name in self.latest)
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        table.add_column("METRIC", no_wrap=True)
        table.add_column("LAST", justify="right", no_wrap=True)
        table.add_column("MIN", justify="right", no_wrap=True)
        table.add_column("MAX", justify="right", no_wrap=True)
        table.add_column(where, no_wrap=True)
        with self._changing:
            for name, course in self._courses.items():
                if name not in (*_PLACES, *PROGRESS):
                    trend = sparkline(course.trend) if self._bars else ""
                    table.add_row(on_one_line(name), *map(number, (course.last, *course.bounds)), trend)
        return table


class _Course:
    """All values of a metric in little room: the last one, the bounds, and enough at even distances for a trend."""

    def __init__(self) -> None:
        self.last = self._newest = math.nan
        self._low, self._high = math.inf, -math.inf
        self._kept: list[float] = []
        self._count, self._distance = 0, 1

    def add(self, value: float) -> None:
        """The next value. One that is not finite is the last one, and nothing else."""
        self.last = value
        if not math.isfinite(value):
            return
        self._newest, self._low, self._high = value, min(self._low, value), max(self._high, value)
        if self._count % self._distance == 0:
            self._kept.append(value)
        self._count += 1
        if len(self._kept) > _MOST_KEPT:
            del self._kept[1::2]
            self._distance *= 2

    @property
    def bounds(self) -> tuple[float, float]:
        """The smallest and the largest value."""
        return (self._low, self._high) if self._count else (self.last, self.last)

    @property
    def trend(self) -> list[float]:
        """Some of the values in their order, from the first to the newest."""
        return self._kept if (self._count - 1) % self._distance == 0 else [*self._kept, self._newest]


def sparkline(values: Sequence[float], width: int = _TREND_WIDTH) -> str:
    """The course of `values` in at most `width` characters; what is not a number is left out."""
    real = [value for value in values if math.isfinite(value)]
    if len(real) > width:
        real = [real[index * (len(real) - 1) // (width - 1)] for index in range(width)]
    if not real:
        return ""
    low, high = min(real) / 2, max(real) / 2  # halves, because the whole distance may be more than a float holds
    steps = (high - low) or 1.0
    return "".join(_BARS[int((value / 2 - low) / steps * (len(_BARS) - 1))] for value in real)
