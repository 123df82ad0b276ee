"""Charts: lines over each other, drawn in a terminal by `draw`, and with matplotlib by `figure_of`
and `picture_of`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, NamedTuple
from warnings import catch_warnings, simplefilter

from cloudtrain.errors import MissingExtra
from cloudtrain.plans.document import on_one_line
from cloudtrain.system.plugins import pip_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D


class Line(NamedTuple):
    """One line of a chart.

    Attributes:
        label: its name in the legend.
        x, y: its points in order. Where `y` is NaN, the line is interrupted.
        number: chooses its colour, so that a run has the same one in several charts.
        low, high: the edges of a band around the line; empty without a band.
        raw: the values before they were smoothed; empty if they were not.
        lost: how many values cannot be drawn.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    number: int = 0
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    raw: Sequence[float] = ()
    lost: int = 0


class Chart(NamedTuple):
    """Lines with common axes."""

    title: str
    lines: Sequence[Line]
    x_label: str = "step"
    is_logarithmic: bool = False

    @property
    def note(self) -> str:
        """What stands behind the title: how many values cannot be drawn; empty if all can."""
        lost = sum(line.lost for line in self.lines)
        kind = "finite or not above 0" if self.is_logarithmic else "finite"
        return f" ({lost:,} not {kind})" if lost else ""


_WIDE = 10.0
"""A logarithmic scale needs a largest value of at least this many times the smallest one."""

_LOW = 0.25
"""A logarithmic scale is used if half of the values lie in this lowest part of a linear scale."""


def wants_logarithm(values: Sequence[float]) -> bool:
    """Return whether a chart of finite values needs a logarithmic scale, because most of them would
    lie at the bottom of a linear scale, as with a loss that drops steeply at first."""
    if not values or min(values) <= 0:
        return False
    # halves, because the product may be more than a float holds
    rising = sorted(values)
    low = rising[0] / 2
    high = rising[-1] / 2
    if high < low * _WIDE:
        return False
    middle = rising[len(rising) // 2] / 2
    return middle - low < _LOW * (high - low)


def heights(values: Sequence[float]) -> list[float]:
    """Scale finite values to 0 to 1, with a logarithm if a curve of them needs it."""
    if wants_logarithm(values):
        values = list(map(math.log, values))
    return fractions(values)


def fractions(values: Sequence[float]) -> list[float]:
    """Scale the values linearly, so that the smallest becomes 0 and the largest 1. If all are
    equal, all become 0."""
    if not values:
        return []
    # halves, because the whole distance may be more than a float holds
    low = min(values) / 2
    distance = (max(values) / 2 - low) or 1.0
    return [(value / 2 - low) / distance for value in values]


# In a terminal.

_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def draw(chart: Chart, width: int, height: int, colors: Sequence[str] = ()) -> list[str]:
    """Draw the lines of a chart in `height` rows of Braille dots, over the whole width. Of several
    lines, each has its letter, and one of these colours."""
    from plotille import Canvas

    canvas = Canvas(width, height)
    letters = []
    for number, (line, points) in enumerate(zip(chart.lines, _shares(chart), strict=True), 1):
        ink = colors[line.number % len(colors)] if colors else None
        places: list[tuple[float, float]] = []
        is_joined = False
        for x, y in points:
            if math.isnan(y):
                is_joined = False
                continue
            place = (x * canvas.xmax_inside, y * canvas.ymax_inside)
            # a value without a neighbour is a point
            start = places[-1] if is_joined else place
            canvas.line(start[0], start[1], place[0], place[1], color=ink)
            places.append(place)
            is_joined = True
        if places:
            # not at their ends, where lines often meet
            share = number / (len(chart.lines) + 1)
            letters.append((places[int(share * len(places))], letter_of(line), ink))

    if len(chart.lines) > 1:
        for (x, y), letter, ink in letters:
            canvas.text(x, y, letter, color=ink)
    rows = canvas.plot(linesep="\n").split("\n")
    return [row.replace("\u2800", " ").rstrip() for row in rows]  # a Braille cell without dots


def letter_of(line: Line) -> str:
    """Return the letter that marks a line in a terminal."""
    return _LETTERS[line.number % len(_LETTERS)]


def _shares(chart: Chart) -> Iterator[list[tuple[float, float]]]:
    """Yield the points of each line, scaled to 0 to 1."""
    xs: list[float] = []
    ys: list[float] = []
    for line in chart.lines:
        xs += line.x
        ys += line.y
    finite = [y for y in ys if not math.isnan(y)]
    if chart.is_logarithmic:
        finite = list(map(math.log, finite))
    across = iter(fractions(xs))
    up = iter(fractions(finite))
    for line in chart.lines:
        yield [(next(across), y if math.isnan(y) else next(up)) for y in line.y]


# With matplotlib.

_COLORS = (
    "#0072b2", "#d55e00", "#009e73", "#c0629a", "#9a7d00", "#7b6fd6", "#1f8fa8", "#8c6d5a"
)  # fmt: skip
"""Colours that can be told apart without red and green, on light and on dark pages."""

_DASHES = ("-", "--", ":", "-.")
"""How lines of one colour differ."""

_INK = "#808080"
"""A grey that can be read on light and on dark pages."""

_LONGEST = 44
"""Characters of a name in a picture."""


def picture_of(figure: Figure, suffix: str) -> bytes:
    """Return a figure as a file of a form that matplotlib knows, such as `png`."""
    file = BytesIO()
    with catch_warnings():
        simplefilter("ignore")  # about characters that the font lacks
        figure.savefig(file, format=suffix)
    return file.getvalue()


def figure_of(charts: Sequence[Chart]) -> Figure:
    """Draw charts beside and below each other, with one legend for all.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    columns = min(2, len(charts))
    rows = math.ceil(len(charts) / columns)
    figure = new_figure(1.0 + 4.5 * columns, 3.0 * rows)
    handles: dict[str, Line2D] = {}
    for place, chart in enumerate(charts, 1):
        axes = figure.add_subplot(rows, columns, place)
        for line in chart.lines:
            handles.setdefault(line.label, _plot(axes, line))
        if chart.is_logarithmic:
            axes.set_yscale("log")
        axes.set_title(_name(chart.title) + chart.note, fontsize="medium")
        axes.set_xlabel(chart.x_label)
        axes.locator_params(axis="x", integer=True)

    if len(handles) > 1:
        legend_rows = math.ceil(len(handles) / 2)
        figure.set_figheight(3.0 * rows + 0.2 * legend_rows)
        names = list(map(_name, handles))
        figure.legend(
            handles.values(),
            names,
            loc="outside lower left",
            ncols=2,
            frameon=False,
            fontsize="small",
        )
    return on_any_page(figure)


def _plot(axes: Axes, line: Line) -> Line2D:
    """Plot a line, and a cross on the horizontal axis for each value that is NaN."""
    color = _COLORS[line.number % len(_COLORS)]
    dash = _DASHES[line.number // len(_COLORS) % len(_DASHES)]
    # a value without a neighbour is a point
    beside = [math.nan, *line.y, math.nan]
    alone = [
        at for at in range(len(line.y)) if math.isnan(beside[at]) and math.isnan(beside[at + 2])
    ]
    (plotted,) = axes.plot(line.x, line.y, dash, color=color, linewidth=1.4)
    if alone:
        plotted.set(marker="o", markersize=3.5, markevery=alone)
    if line.raw:
        axes.plot(line.x, line.raw, color=color, linewidth=1.0, alpha=0.4, zorder=1)
    if line.low:
        axes.fill_between(line.x, line.low, line.high, color=color, alpha=0.18, linewidth=0)
    lost = [x for x, y in zip(line.x, line.y, strict=True) if math.isnan(y)]
    if lost:
        bottom = axes.get_xaxis_transform()
        axes.plot(lost, [0.0] * len(lost), "x", color=color, transform=bottom, clip_on=False)
    return plotted


def _name(text: str) -> str:
    """Return a name as it stands in a picture: on one line, without its middle if it is long."""
    name = on_one_line(text)
    if len(name) > _LONGEST:
        half = _LONGEST // 2
        name = f"{name[:half]}…{name[-half:]}"
    # matplotlib reads formulas between dollars, and hides what begins with an underscore
    return " " + name.replace("$", r"\$")


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure that notebooks show, even without pyplot. It opens no window.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra(
            "pictures need matplotlib, which is not installed", hint=pip_line("plot"), code="CT063"
        ) from error

    class Picture(Figure):
        def _repr_png_(self) -> bytes:
            return picture_of(self, "png")

    return Picture(figsize=(width, height), layout="constrained")


def on_any_page(figure: Figure) -> Figure:
    """Remove the background and the box, and draw axes and labels in a grey that is readable on
    light and dark pages."""
    figure.patch.set_alpha(0)
    texts = []
    for legend in figure.legends:
        texts += legend.get_texts()
    for axes in figure.axes:
        axes.patch.set_alpha(0)
        axes.spines[["right", "top"]].set_visible(False)
        axes.tick_params(colors=_INK, which="both")
        for spine in axes.spines.values():
            spine.set_edgecolor(_INK)

        # a text in a box stays black, because its box is white
        texts += [axes.title, axes.xaxis.label, axes.yaxis.label]
        texts += [text for text in axes.texts if text.get_bbox_patch() is None]
        own_legend = axes.get_legend()
        if own_legend:
            texts += own_legend.get_texts()
    for text in texts:
        text.set_color(_INK)
    return figure
