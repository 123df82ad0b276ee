"""Plots of a sweep: its history, slices by hyperparameter, parallel coordinates, and the importance
of each hyperparameter."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import log
from typing import TYPE_CHECKING, Any
from warnings import catch_warnings, simplefilter

from cloudtrain.errors import UsageError
from cloudtrain.job.model import value_text
from cloudtrain.job.sweep import Objective
from cloudtrain.lifecycle.sweeps.study import require_optuna
from cloudtrain.plans.chart import new_figure, on_any_page
from cloudtrain.plans.progress import Trial

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PLATE = {"facecolor": "white", "edgecolor": "none", "pad": 1.0, "alpha": 0.8}
"""Style of the box behind a text that lines would cross."""

_ENOUGH = 10
"""Minimum number of trials with a value for importance to be meaningful."""

_LOGARITHMIC_FROM = 50.0
"""An axis is logarithmic if its largest value is at least this many times its smallest value."""


def history(trials: Sequence[Trial], objective: Objective | None) -> Figure:
    """Plot the objective's value of each trial by trial number, and the best value so far."""
    objective, trials = _with_values(trials, objective)
    figure = new_figure(7.0, 4.0)
    axes = figure.add_subplot()
    numbers = [trial.number for trial in trials]
    values = [trial.value or 0.0 for trial in trials]

    bests = list(accumulate(values, max if objective.maximize else min))

    axes.plot(numbers, values, "o", color="#7a8ba6", label="trial")
    axes.step(numbers, bests, where="post", color="#c4472f", label="best so far")
    axes.set_xlabel("trial")
    axes.set_ylabel(objective.metric)
    axes.locator_params(axis="x", integer=True)
    axes.legend(frameon=False)
    return on_any_page(figure)


def slices(trials: Sequence[Trial], objective: Objective | None) -> Figure:
    """Plot the objective's value of each trial against each hyperparameter. Later trials are
    darker."""
    objective, trials = _with_values(trials, objective)
    names = list(trials[0].values)
    numbers = [trial.number for trial in trials]
    values = [trial.value or 0.0 for trial in trials]
    figure = new_figure(3.2 * len(names) + 1.0, 3.4)

    row = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
    row[0].set_ylabel(objective.metric)
    for name, axes in zip(names, row, strict=True):
        places, labels = _places([trial.values[name] for trial in trials])
        axes.scatter(places, values, c=numbers, cmap="Blues", edgecolor="#44546a", vmin=-3)
        axes.set_xlabel(name)
        if labels is not None:
            axes.set_xticks(range(len(labels)), labels)
            axes.set_xlim(-0.5, len(labels) - 0.5)
        elif _is_logarithmic(places):
            axes.set_xscale("log")
    return on_any_page(figure)


def parallel_coordinates(trials: Sequence[Trial], objective: Objective | None) -> Figure:
    """Plot one line for each trial through its hyperparameters to the objective's value, which sets
    the line's colour."""
    objective, trials = _with_values(trials, objective)
    names = [*trials[0].values, objective.metric]
    columns = [[trial.values[name] for trial in trials] for name in names[:-1]]
    columns.append([trial.value for trial in trials])

    figure = new_figure(2.0 * len(names) + 2.0, 4.0)
    axes = figure.add_subplot()
    from matplotlib import colormaps

    # the best trials are drawn last, on top, in the same end of the colours
    is_minimized = objective.goal == "minimize"
    colors = colormaps["viridis_r" if is_minimized else "viridis"]
    lines = list(zip(*map(_shares, columns), strict=True))
    lines.sort(key=lambda line: line[-1], reverse=is_minimized)
    for line in lines:
        axes.plot(range(len(names)), line, color=colors(line[-1]), alpha=0.8)

    for place, column in enumerate(columns):
        axes.axvline(place, color="#bbbbbb", linewidth=0.8, zorder=0)
        for share, text in _ends(column):
            axes.annotate(
                text,
                (place, share),
                xytext=(4, 0),
                textcoords="offset points",
                fontsize=8,
                va="center",
                bbox=_PLATE,
            )

    axes.set_xticks(range(len(names)), names)
    axes.set_xlim(-0.2, len(names) - 0.6)  # room for the labels beside the last axis
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    return on_any_page(figure)


def importance(trials: Sequence[Trial], objective: Objective | None) -> Figure:
    """Plot the importance of each hyperparameter: how much it separates the best trials from the
    others, as a fraction of one (PED-ANOVA, by Optuna).

    Raises:
        UsageError: fewer than ten trials have a value.
        MissingExtra: matplotlib or Optuna is not installed.
    """
    objective, trials = _with_values(trials, objective)
    if len(trials) < _ENOUGH:
        raise UsageError(
            f"importance needs {_ENOUGH} trials with a value, and there are {len(trials)}",
            hint="`cloudtrain continue SWEEP --trials 10` adds ten trials",
            code="CT068",
        )

    importances = _importances(trials, objective)
    names = sorted(importances, key=lambda name: importances[name])
    shares = [importances[name] for name in names]

    figure = new_figure(7.0, 0.5 * len(names) + 1.2)
    axes = figure.add_subplot()
    bars = axes.barh(names, shares, color="#7a8ba6")
    axes.bar_label(bars, fmt="%.2f", padding=3)
    axes.set_xlabel(f"importance for {objective.metric}")
    axes.set_xlim(0, 1.1)
    return on_any_page(figure)


def _importances(trials: Sequence[Trial], objective: Objective) -> dict[str, float]:
    """Return the importance of each hyperparameter; 0 for one that is the same in all trials."""
    require_optuna("importance needs", "")
    import optuna
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    optuna.logging.set_verbosity(optuna.logging.ERROR)

    shares = dict.fromkeys(trials[0].values, 0.0)
    columns: dict[str, list[float]] = {}
    spaces: dict[str, optuna.distributions.BaseDistribution] = {}
    for name in shares:
        places, labels = _places([trial.values[name] for trial in trials])
        low = min(places)
        high = max(places)
        if low == high:  # Optuna gives equal shares if all are so
            continue
        columns[name] = places
        is_log = _is_logarithmic(places)
        spaces[name] = FloatDistribution(low, high, log=is_log and not labels)
        if labels:
            columns[name] = list(map(int, places))
            spaces[name] = CategoricalDistribution(range(len(labels)))
    if not columns:
        return shares

    study = optuna.create_study(direction=objective.goal)
    for index, trial in enumerate(trials):
        params = {name: column[index] for name, column in columns.items()}
        frozen = optuna.trial.create_trial(params=params, distributions=spaces, value=trial.value)
        study.add_trial(frozen)

    with catch_warnings():  # it is experimental in Optuna 4
        simplefilter("ignore")
        importances = optuna.importance.get_param_importances(
            study, evaluator=optuna.importance.PedAnovaImportanceEvaluator()
        )

    for name, share in importances.items():
        shares[name] = float(share)
    return shares


def _with_values(
    trials: Sequence[Trial], objective: Objective | None
) -> tuple[Objective, Sequence[Trial]]:
    """Return the objective, and the trials that have a value of it. Raises UsageError if there is
    nothing to draw."""
    trials = [trial for trial in trials if trial.value is not None]
    if objective is None or not trials:
        what = "the sweep has no objective" if objective is None else "no trial has a value yet"
        raise UsageError(
            f"{what}, so there is nothing to draw",
            hint="`sweep.rows()` lists the trials",
            code="CT992",
        )
    return objective, trials


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _places(values: Sequence[Any]) -> tuple[list[float], list[str] | None]:
    """Return the positions of the values on an axis, and the axis labels; None instead of labels if
    all values are numbers."""
    if all(map(_is_number, values)):
        return [float(value) for value in values], None
    texts = list(map(value_text, values))
    labels = sorted(set(texts))
    return [float(labels.index(text)) for text in texts], labels


def _is_logarithmic(places: Sequence[float]) -> bool:
    return min(places) > 0 and max(places) >= _LOGARITHMIC_FROM * min(places)


def _shares(column: Sequence[Any]) -> list[float]:
    """Scale the values to the range from 0, the smallest, to 1, the largest."""
    places, labels = _places(column)
    if labels is None and _is_logarithmic(places):
        places = [log(place) for place in places]
    low = min(places)
    width = max(places) - low
    if width == 0:
        return [0.5] * len(places)
    return [(place - low) / width for place in places]


def _ends(column: Sequence[Any]) -> list[tuple[float, str]]:
    """Return the labels of an axis with their positions. If all values are numbers, only the
    smallest and the largest get a label; otherwise every value does."""
    labels = sorted(dict(zip(_shares(column), column, strict=True)).items())
    if all(map(_is_number, column)):
        return [(share, f"{value:.4g}") for share, value in {labels[0], labels[-1]}]
    return [(share, str(value)) for share, value in labels]
