"""Curves as charts: in a terminal, as pictures, smoothed and averaged."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from cloudtrain.errors import UsageError
from cloudtrain.plans.chart import Chart, draw, figure_of, picture_of
from cloudtrain.signals.curves import Curve, View, charts_of, choose, plot
from cloudtrain.signals.main_metric import goal_of
from cloudtrain.signals.rows import Column

NAN = math.nan


def curve(
    values: Iterable[float],
    run: str = "r",
    name: str = "loss",
    steps: Iterable[float] | None = None,
) -> Curve:
    """A metric of a run, with a value for each of these steps, by default 0, 1, 2, ..."""
    numbers = array("d", values)
    places = array("d", range(len(numbers)) if steps is None else steps)
    return Curve(run, name, Column(places, places, numbers, "runtime", 0), goal_of(name))


def one(*curves: Curve, view: View = View()) -> Chart:
    """The only chart of these curves."""
    (chart,) = charts_of(curves, view)
    return chart


def test_a_run_has_one_colour_in_all_charts() -> None:
    """A chart has all runs over each other; one that lacks a metric leaves its colour unused."""
    curves = [curve([1, 2], "a"), curve([3], "b"), curve([4], "b", "acc"), curve([5], "c", "acc")]
    loss, acc = charts_of(curves)
    assert [(line.label, line.number) for line in loss.lines] == [("a", 0), ("b", 1)]
    assert [(line.label, line.number) for line in acc.lines] == [("b", 1), ("c", 2)]


def test_values_without_a_place_interrupt_a_line() -> None:
    """NaN, infinity and a number too large for any axis; they are counted behind the title."""
    chart = one(curve([1, NAN, math.inf, 2, -1e308]))
    assert [math.isnan(y) for y in chart.lines[0].y] == [False, True, True, False, True]
    assert chart.note == " (3 not finite)"
    assert one(curve([1, 2])).note == ""


def test_a_logarithmic_scale() -> None:
    """It is chosen for a loss that drops steeply; if it is asked for, zero has no place on it."""
    assert one(curve([100, 10, 2, 1, 1, 1])).is_logarithmic
    assert not one(curve([0.5, 0.7, 0.9])).is_logarithmic
    forced = one(curve([1, 0, -1]), view=View(scale="log"))
    assert (forced.is_logarithmic, forced.note) == (True, " (2 not finite or not above 0)")
    assert not one(curve([100, 10, 2, 1, 1, 1]), view=View(scale="linear")).is_logarithmic


@pytest.mark.parametrize("steps", [[NAN, NAN, NAN], [1.0, 2.0, 1.0]])
def test_values_are_counted_without_steps_that_rise(steps: list[float]) -> None:
    """Of a script that names none, and of one that begins again in each epoch."""
    chart = one(curve([3, 2, 1], steps=steps))
    assert (chart.x_label, list(chart.lines[0].x)) == ("value", [1, 2, 3])


def test_smoothing_takes_the_first_values_as_seriously() -> None:
    """A constant stays what it is; a step is followed slowly; the values before stay visible."""
    assert one(curve([5] * 4), view=View(0.9)).lines[0].y == pytest.approx([5] * 4)
    line = one(curve([0, 1, 1, NAN, 1]), view=View(0.5)).lines[0]
    assert line.y[:3] == pytest.approx([0, 2 / 3, 6 / 7])
    assert math.isnan(line.y[3])
    assert line.raw[:3] == [0, 1, 1]


@pytest.mark.parametrize("smooth", [1.0, -0.1, NAN])
def test_a_weight_that_smooths_nothing(smooth: float) -> None:
    """Is refused with one that does."""
    with pytest.raises(UsageError) as caught:
        one(curve([1.0]), view=View(smooth))
    assert "0.9" in str(caught.value.hint)


def test_a_mean_has_a_band_and_follows_every_run_to_its_end() -> None:
    """Between the points of a run it is interpolated, and NaN does not count."""
    curves = [
        curve([2, 4, 6], "a", steps=[0, 10, 20]),
        curve([4, 8], "b", steps=[0, 20]),
        curve([NAN, 6], "c", steps=[0, 10]),
    ]
    groups = dict.fromkeys("abc", "all")
    (line,) = one(*curves, view=View(groups=groups)).lines
    assert (line.label, list(line.x)) == ("all", [0, 10, 20])
    assert line.y == pytest.approx([3, 16 / 3, 7])
    assert (list(line.low), list(line.high)) == ([2, 4, 6], [4, 6, 8])


def test_groups_are_lines_of_their_own() -> None:
    """In the order of their runs."""
    curves = [curve([1, 1], "a"), curve([5, 5], "b"), curve([3, 3], "c")]
    lines = one(*curves, view=View(groups={"a": "low", "b": "high", "c": "low"})).lines
    assert [(line.label, line.y) for line in lines] == [("low", [2, 2]), ("high", [5, 5])]


def test_a_long_curve_keeps_its_peaks_and_its_ends() -> None:
    """Of 200,000 values a few thousand are drawn, in order, and what cannot be drawn is counted."""
    values = [1.0 + math.sin(step / 900) / 4 for step in range(200_000)]
    values[70_001] = 50.0
    values[90_001] = -50.0
    values[100_001] = NAN
    chart = one(curve(values))
    (line,) = chart.lines
    assert len(line.x) < 3_100
    assert all(before < after for before, after in pairwise(line.x))
    assert (line.x[0], line.x[-1]) == (0, 199_999)
    assert {50.0, -50.0} <= set(line.y)
    assert (sum(map(math.isnan, line.y)), chart.note) == (1, " (1 not finite)")


def test_metrics_are_chosen_by_name() -> None:
    """In the order in which they are named; another name is an error with a near one."""
    curves = [curve([1], name="loss"), curve([1], name="acc"), curve([2], "s", "loss")]
    assert [(item.name, item.run) for item in choose(curves, ["acc", "loss"])] == [
        ("acc", "r"), ("loss", "r"), ("loss", "s"),
    ]  # fmt: skip
    with pytest.raises(UsageError) as caught:
        choose(curves, ["los"])
    assert "loss" in str(caught.value.hint)
    with pytest.raises(UsageError, match="no metrics"):
        plot([])


@pytest.mark.parametrize("width", [1, 2, 40, 120])
def test_a_terminal_shows_each_of_several_lines(width: int) -> None:
    """By a letter and a colour, whatever the values are; one line needs neither."""
    odd = [curve([NAN, 1], "a"), curve([NAN], "b"), curve([9e99, -9e99, 0], "c"), curve([2], "d")]
    rows = draw(one(*odd), width, 6)
    assert len(rows) == 6
    assert max(map(len, rows)) <= width
    if width > 2:
        assert {"a", "c", "d"} == {letter for row in rows for letter in row if letter.isalpha()}
    last = Chart("acc", [line._replace(number=40) for line in one(*odd).lines[2:]])
    assert len(draw(last, width, 6)) == 6
    single = draw(one(curve([3, 1, 2])), width, 6)
    assert not any(letter.isalpha() for row in single for letter in row)


NAMES = [
    "m" * 100,
    "$x_{",
    "$\\frac$",
    "_hidden",
    "a<b>&\"'",
    "\x1b[31mred\x00",
    "損失",
    "\ud800",
    "--",
]


@pytest.mark.in_ci
def test_any_name_can_be_drawn() -> None:
    """As the title of a chart and in its legend; the picture is well-formed XML."""
    pytest.importorskip("matplotlib")
    curves = [curve([1, 2, NAN], name, name) for name in NAMES]
    figure = plot(curves, NAMES)
    ElementTree.fromstring(picture_of(figure, "svg"))
    labels = [text.get_text().strip() for text in figure.legends[0].get_texts()]
    assert len(labels) == len(figure.axes) == len(NAMES)
    assert max(map(len, labels)) < 60


def test_a_picture_of_twenty_runs() -> None:
    """Every line looks different, and the legend names all; one point is a dot."""
    pytest.importorskip("matplotlib")
    curves = [curve([number, 1 + number], f"run-{number}") for number in range(20)]
    figure = figure_of(charts_of([*curves, curve([7], "run-0", "single")]))
    first, second = figure.axes
    looks = {(line.get_color(), line.get_linestyle()) for line in first.lines}
    assert len(looks) == 20
    assert len(figure.legends[0].get_texts()) == 20
    assert second.lines[0].get_marker() == "o"


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    "values",
    [
        [9e99, -9e99],
        [9e99, 1e-99, 1e-99],
        [1.0, 1 + 1e-16],
        [0.0, 5e-324],
        [1e-310, 1e-309],
        [1e9] * 3,
    ],
)
def test_odd_numbers_can_be_drawn(values: list[float]) -> None:
    """On a linear and on a logarithmic scale."""
    pytest.importorskip("matplotlib")
    for view in (View(scale="linear"), View(scale="log")):
        chart = one(curve(values), view=view)
        assert len(draw(chart, 40, 4)) == 4
        ElementTree.fromstring(picture_of(figure_of([chart]), "svg"))


def test_crosses_stand_where_values_are_lost() -> None:
    """On the axis, so that a NaN is seen although it has no place."""
    pytest.importorskip("matplotlib")
    figure = plot([curve([1, NAN, 3, math.inf, 4, 5])])
    line, crosses = figure.axes[0].lines
    assert (line.get_marker(), line.get_markevery()) == ("o", [0, 2])
    assert (list(crosses.get_xdata()), crosses.get_marker()) == ([1, 3], "x")
    ElementTree.fromstring(picture_of(plot([curve([NAN, NAN])]), "svg"))


def test_pictures_are_readable_on_light_and_dark_pages() -> None:
    """Each colour has a contrast of 3 to white and to a dark page (WCAG, for graphics)."""
    pytest.importorskip("matplotlib")
    from matplotlib.colors import to_rgb

    def luminance(color: str) -> float:
        parts = [
            part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4
            for part in to_rgb(color)
        ]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    figure = plot([curve([number], str(number)) for number in range(8)])
    colors = [line.get_color() for line in figure.axes[0].lines]
    assert len(set(colors)) == 8
    assert figure.axes[0].title.get_color() == "#808080"
    for color in (*colors, "#808080"):
        for page in ("#ffffff", "#111111"):
            low, high = sorted((luminance(str(color)), luminance(page)))
            assert (high + 0.05) / (low + 0.05) >= 3, (color, page)


def test_values_lie_between_the_reports_of_epochs() -> None:
    """By their steps; the last epoch is as long as the one before, and nothing lies outside."""
    steps = array("d", [0, 4, 8])
    epochs = Column(steps, steps, array("d", [0, 1, 2]), "runtime", 0)
    measured = curve(range(14), steps=range(14))._replace(epochs=epochs)
    (chart,) = charts_of([measured], View(over="epoch"))
    assert chart.x_label == "epoch"
    assert list(chart.lines[0].x) == [*(step / 4 for step in range(13)), 3]


@pytest.mark.parametrize(
    ("seconds", "label", "last"),
    [(3, "seconds", 3), (180, "minutes", 3), (10_800, "hours", 3), (0, "seconds", 0)],
)
def test_times_are_those_since_the_start(seconds: float, label: str, last: float) -> None:
    """In a unit that suits the longest curve."""
    times = array("d", [1000.0, 1000.0 + seconds])
    column = Column(times, times, array("d", [1, 2]), "runtime", 0)
    (chart,) = charts_of([Curve("r", "loss", column, goal_of("loss"), 1000.0)], View(over="time"))
    assert (chart.x_label, list(chart.lines[0].x)) == (label, [0, last])
