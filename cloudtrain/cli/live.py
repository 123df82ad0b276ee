"""The metrics of a run as a table that stays below its scrolling output, on a terminal."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

from cloudtrain.cli.lines import LineFormat
from cloudtrain.render.status import number
from cloudtrain.runtime.metrics import PREFIX, parse_metrics
from cloudtrain.states import LogLine

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

_RANK_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "bright_cyan", "bright_magenta", "bright_green")

_BARS = "▁▂▃▄▅▆▇█"
_TREND_WIDTH = 24
_PLACES = ("epoch", "step")
"""Where a value was measured, rather than a value: shown above the table."""

_REFRESHES_PER_SECOND = 4


class LiveMetrics:
    """Prints lines, except metric lines, which change the table. The table appears with the first metric and stays
    on the screen when the run has ended."""

    def __init__(self, form: LineFormat, stream: TextIO) -> None:
        from rich.console import Console

        self.latest: dict[str, float] = {}
        self._history: dict[str, list[float]] = defaultdict(list)
        self._form = form
        self._console = Console(file=stream, highlight=False, markup=False, emoji=False)
        self._bars = (getattr(stream, "encoding", None) or "").lower().startswith("utf")
        self._live: Live | None = None

    def __enter__(self) -> LiveMetrics:
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.update(self._table(), refresh=True)
            self._live.stop()

    def show(self, line: LogLine) -> None:
        """Print a line, or take the values of a metric line."""
        values = parse_metrics(line.text) if PREFIX in line.text else None
        if values is None:
            self._console.print(self._styled(line), soft_wrap=True)
            return
        self.latest |= values
        for name, value in values.items():
            self._history[name].append(value)
        self._refresh()

    def _refresh(self) -> None:
        from rich.live import Live

        if self._live is None:
            self._live = Live(
                self._table(),
                console=self._console,
                refresh_per_second=_REFRESHES_PER_SECOND,
                vertical_overflow="visible",
            )
            self._live.start()
        self._live.update(self._table())

    def _styled(self, line: LogLine) -> Any:
        from rich.text import Text

        colour = "dim" if line.rank is None else _RANK_COLOURS[line.rank % len(_RANK_COLOURS)]
        return Text(self._form.lead(line), style=colour).append_text(Text.from_ansi(line.text))

    def _table(self) -> Table:
        from rich.table import Table

        where = "  ".join(f"{name} {number(self.latest[name])}" for name in _PLACES if name in self.latest)
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        table.add_column("METRIC", no_wrap=True)
        table.add_column("LAST", justify="right", no_wrap=True)
        table.add_column("MIN", justify="right", no_wrap=True)
        table.add_column("MAX", justify="right", no_wrap=True)
        table.add_column(where, no_wrap=True)
        for name, values in self._history.items():
            if name not in _PLACES:
                real = [value for value in values if math.isfinite(value)] or [values[-1]]
                trend = sparkline(values) if self._bars else ""
                table.add_row(name, number(values[-1]), number(min(real)), number(max(real)), trend)
        return table


def sparkline(values: Sequence[float], width: int = _TREND_WIDTH) -> str:
    """The course of `values` in at most `width` characters; what is not a number is left out."""
    real = [value for value in values if math.isfinite(value)]
    if len(real) > width:
        real = [real[index * (len(real) - 1) // (width - 1)] for index in range(width)]
    if not real:
        return ""
    low, high = min(real), max(real)
    steps = (high - low) or 1.0
    return "".join(_BARS[int((value - low) / steps * (len(_BARS) - 1))] for value in real)
