"""Pictures of a sweep: each shows every trial that has a value."""

from __future__ import annotations

from dataclasses import replace
from io import BytesIO

import pytest

import cloudtrain as ct
from cloudtrain.errors import UsageError
from cloudtrain.plans.progress import Trial

TRIALS = [
    Trial(
        number,
        {"lr": 10.0**-number, "opt": ("adam", "sgd")[number % 2]},
        "r",
        ct.RunState.SUCCEEDED,
        number / 10,
    )
    for number in range(1, 6)
]
BEST = ct.Objective(maximize="accuracy")


@pytest.mark.slow
def test_the_history_ends_with_the_best() -> None:
    """Points, and a line that only rises."""
    pytest.importorskip("matplotlib")
    from cloudtrain.lifecycle.sweeps.pictures import history

    points, line = history(TRIALS, BEST).axes[0].lines
    assert list(points.get_ydata()) == [0.1, 0.2, 0.3, 0.4, 0.5]
    assert list(line.get_ydata()) == [0.1, 0.2, 0.3, 0.4, 0.5]


@pytest.mark.in_ci
def test_no_box_stands_around_a_plot() -> None:
    """On a light page, its right and upper edge were the darkest lines."""
    pytest.importorskip("matplotlib")
    from cloudtrain.lifecycle.sweeps.pictures import history, slices

    for axes in (*history(TRIALS, BEST).axes, *slices(TRIALS, BEST).axes):
        shown = [name for name, spine in axes.spines.items() if spine.get_visible()]
        assert shown == ["left", "bottom"]


def test_a_slice_for_each_hyperparameter() -> None:
    """A wide range by its logarithm, texts by their names."""
    pytest.importorskip("matplotlib")
    from cloudtrain.lifecycle.sweeps.pictures import slices

    axes = slices(TRIALS, BEST).axes
    assert [item.get_xlabel() for item in axes] == ["lr", "opt"]
    assert axes[0].get_xscale() == "log"
    assert [text.get_text() for text in axes[1].get_xticklabels()] == ["adam", "sgd"]


def test_a_line_for_each_trial() -> None:
    """Through every hyperparameter to the value."""
    pytest.importorskip("matplotlib")
    from cloudtrain.lifecycle.sweeps.pictures import parallel_coordinates

    axes = parallel_coordinates(TRIALS, BEST).axes[0]
    assert sum(len(line.get_xdata()) == 3 for line in axes.lines) == 5
    assert [text.get_text() for text in axes.get_xticklabels()] == ["lr", "opt", "accuracy"]


@pytest.mark.slow
def test_what_matters() -> None:
    """A bar for each hyperparameter, parts of one; the one that the value follows is the longest."""
    pytest.importorskip("matplotlib")
    pytest.importorskip("optuna")
    from cloudtrain.lifecycle.sweeps.pictures import importance

    trials = [
        Trial(
            number,
            {"lr": 10.0 ** -(number % 5), "opt": "ab"[number % 2], "same": 1},
            "r",
            TRIALS[0].state,
            number % 5,
        )
        for number in range(40)
    ]
    axes = importance(trials, BEST).axes[0]
    bars = {
        label.get_text(): bar.get_width()
        for label, bar in zip(axes.get_yticklabels(), axes.patches, strict=True)
    }
    assert sum(bars.values()) == pytest.approx(1)
    assert bars["lr"] > 0.8
    assert bars["same"] == 0
    alike = [replace(trial, values={"same": 1, "also": "a"}) for trial in trials]
    assert [bar.get_width() for bar in importance(alike, BEST).axes[0].patches] == [0, 0]
    with pytest.raises(
        UsageError, match="importance needs 10 trials with a value, and there are 9"
    ):
        importance(trials[:9], BEST)


def test_a_notebook_shows_it_on_light_and_dark_pages() -> None:
    """Without pyplot too: as a picture without a background, whose words are grey."""
    pytest.importorskip("matplotlib")
    from matplotlib.image import imread

    from cloudtrain.lifecycle.sweeps.pictures import history

    figure = history(TRIALS, BEST)
    # what IPython asks for
    pixels = imread(BytesIO(figure._repr_png_()))  # type: ignore[attr-defined]
    assert pixels[0, 0, 3] == 0
    legend = figure.axes[0].get_legend()
    assert legend is not None
    assert {text.get_color() for text in (figure.axes[0].xaxis.label, *legend.get_texts())} == {
        "#808080"
    }


def test_nothing_to_draw() -> None:
    """Is said."""
    from cloudtrain.lifecycle.sweeps.pictures import history

    with pytest.raises(UsageError, match="no trial has a value yet"):
        history([], BEST)
