"""Plots of a sweep: its history, slices by hyperparameter, parallel coordinates, and the importance
of each hyperparameter."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from math import log
from typing import TYPE_CHECKING, Any
from warnings import catch_warnings, simplefilter

from cloudtrain.errors import MissingExtra, UsageError
from cloudtrain.job.model import value_text
from cloudtrain.job.sweep import Objective
from cloudtrain.lifecycle.sweeps.study import require_optuna
from cloudtrain.plans.states import Trial

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PLATE = {"facecolor": "white", "edgecolor": "none", "pad": 1.0, "alpha": 0.8}
"""Style of the box behind a text that lines would cross."""

_INK = "#808080"
"""A grey that can be read on light and on dark pages."""

_ENOUGH = 10
"""Minimum number of trials with a value for importance to be meaningful."""

_LOGARITHMIC_FROM = 50.0
"""An axis is logarithmic if its largest value is at least this many times its smallest value."""


def history(trials: Sequence[Trial], objective: Objective | None) -> Figure:
    """Plot the objective's value of each trial by trial number, and the best value so far."""
    objective, trials = _with_values(trials, objective)
    figure = _figure((7.0, 4.0))
    axes = figure.add_subplot()
    best, line = trials[0].value or 0.0, list[float]()
    for trial in trials:
        value = trial.value or 0.0
        best = value if objective.better(value, best) else best
        line.append(best)
    numbers = [trial.number for trial in trials]
    axes.plot(
        numbers, [trial.value or 0.0 for trial in trials], "o", color="#7a8ba6", label="trial"
    )
    axes.step(numbers, line, where="post", color="#c4472f", label="best so far")
    axes.set_xlabel("trial")
    axes.set_ylabel(objective.metric)
    axes.locator_params(axis="x", integer=True)
    axes.legend(frameon=False)
    return _on_any_page(figure)


def slices(trials: Sequence[Trial], objective: Objective | None) -> Figure:
    """Plot the objective's value of each trial against each hyperparameter. Later trials are
    darker."""
    objective, trials = _with_values(trials, objective)
    names = list(trials[0].values)
    figure = _figure((3.2 * len(names) + 1.0, 3.4))
    first: Axes | None = None
    for index, name in enumerate(names):
        axes = figure.add_subplot(1, len(names), index + 1, sharey=first)
        first = first or axes
        places, labels = _places([trial.values[name] for trial in trials])
        shades = [trial.number for trial in trials]
        axes.scatter(
            places,
            [trial.value or 0.0 for trial in trials],
            c=shades,
            cmap="Blues",
            edgecolor="#44546a",
            vmin=-3,
        )
        _scale(axes, places, labels)
        axes.set_xlabel(name)
        if index == 0:
            axes.set_ylabel(objective.metric)
        else:
            axes.tick_params(labelleft=False)
    return _on_any_page(figure)


def parallel_coordinates(trials: Sequence[Trial], objective: Objective | None) -> Figure:
    """Plot one line for each trial through its hyperparameters to the objective's value, which sets
    the line's colour."""
    objective, trials = _with_values(trials, objective)
    names = [*trials[0].values, objective.metric]
    columns = [[trial.values[name] for trial in trials] for name in trials[0].values]
    columns.append([trial.value for trial in trials])
    figure = _figure((2.0 * len(names) + 2.0, 4.0))
    axes = figure.add_subplot()
    shares = [_shares(column) for column in columns]
    from matplotlib import colormaps

    colors = colormaps["viridis_r" if objective.goal == "minimize" else "viridis"]
    order = sorted(
        range(len(trials)),
        key=lambda index: shares[-1][index],
        reverse=objective.goal == "minimize",
    )
    for index in order:
        axes.plot(
            range(len(names)),
            [share[index] for share in shares],
            color=colors(shares[-1][index]),
            alpha=0.8,
        )
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
    axes.set_xlim(-0.2, len(names) - 0.6)
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    return _on_any_page(figure)


def importance(trials: Sequence[Trial], objective: Objective | None) -> Figure:
    """Plot the importance of each hyperparameter: how much it separates the best trials from the
    others, as a fraction of one (PED-ANOVA, by Optuna).

    Raises:
        UsageError: fewer than ten trials have a value.
        MissingExtra: matplotlib or Optuna is not installed.
    """
    objective, trials = _with_values(trials, objective)
    if len(trials) < _ENOUGH:
        words = (
            f"{len(trials)} trial{'s have' if len(trials) > 1 else ' has'} a value, and "
            f"importance needs {_ENOUGH}"
        )
        raise UsageError(
            words, hint="`cloudtrain continue SWEEP --trials 10` adds ten trials", code="CT068"
        )
    shares = sorted(_importances(trials, objective).items(), key=lambda item: item[1])
    figure = _figure((7.0, 0.5 * len(shares) + 1.2))
    axes = figure.add_subplot()
    bars = axes.barh([name for name, _ in shares], [share for _, share in shares], color="#7a8ba6")
    axes.bar_label(bars, fmt="%.2f", padding=3)
    axes.set_xlabel(f"importance for {objective.metric}")
    axes.set_xlim(0, 1.1)
    return _on_any_page(figure)


def _importances(trials: Sequence[Trial], objective: Objective) -> dict[str, float]:
    require_optuna("importance needs", "")
    import optuna
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    columns, spaces = dict[str, list[float]](), dict[str, optuna.distributions.BaseDistribution]()
    for name in trials[0].values:
        places, labels = _places([trial.values[name] for trial in trials])
        low, high = min(places), max(places)
        if low < high:  # what never changes makes no difference
            columns[name] = [int(place) for place in places] if labels else places
            is_wide = labels is None and _is_logarithmic(places)
            spaces[name] = (
                CategoricalDistribution(range(len(labels)))
                if labels
                else FloatDistribution(low, high, log=is_wide)
            )
    study = optuna.create_study(direction=objective.goal)
    for index, trial in enumerate(trials):
        params = {name: column[index] for name, column in columns.items()}
        study.add_trial(
            optuna.trial.create_trial(params=params, distributions=spaces, value=trial.value)
        )
    with catch_warnings():  # it is experimental in Optuna 4
        simplefilter("ignore")
        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
        importances = (
            optuna.importance.get_param_importances(study, evaluator=evaluator) if columns else {}
        )
    return dict.fromkeys(trials[0].values, 0.0) | {
        name: float(share) for name, share in importances.items()
    }


def png_of(figure: Figure) -> bytes:
    file = BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()


def _figure(size: tuple[float, float]) -> Figure:
    """Return an empty figure that notebooks show, even without pyplot. It opens no window."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        hint = "pip install matplotlib"
        raise MissingExtra(
            "pictures need matplotlib, which is not installed", hint=hint, code="CT063"
        ) from error

    class Picture(Figure):
        def _repr_png_(self) -> bytes:
            return png_of(self)

    return Picture(figsize=size, layout="constrained")


def _on_any_page(figure: Figure) -> Figure:
    """Remove the background and the box, and draw axes and labels in a grey that is readable on
    light and dark pages."""
    figure.patch.set_alpha(0)
    for axes in figure.axes:
        axes.patch.set_alpha(0)
        axes.spines[["right", "top"]].set_visible(False)
        axes.tick_params(colors=_INK, which="both")
        for spine in axes.spines.values():
            spine.set_edgecolor(_INK)
        legend = axes.get_legend()
        plain = [text for text in axes.texts if text.get_bbox_patch() is None]
        for text in (
            axes.xaxis.label,
            axes.yaxis.label,
            *plain,
            *(legend.get_texts() if legend else ()),
        ):
            text.set_color(_INK)
    return figure


def _with_values(
    trials: Sequence[Trial], objective: Objective | None
) -> tuple[Objective, Sequence[Trial]]:
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
    if all(_is_number(value) for value in values):
        return [float(value) for value in values], None
    texts = list(map(value_text, values))
    labels = sorted(set(texts))
    return [float(labels.index(text)) for text in texts], labels


def _is_logarithmic(places: Sequence[float]) -> bool:
    return min(places) > 0 and max(places) >= _LOGARITHMIC_FROM * min(places)


def _scale(axes: Axes, places: Sequence[float], labels: list[str] | None) -> None:
    if labels is not None:
        axes.set_xticks(range(len(labels)), labels)
        axes.set_xlim(-0.5, len(labels) - 0.5)
    elif _is_logarithmic(places):
        axes.set_xscale("log")


def _shares(column: Sequence[Any]) -> list[float]:
    """Scale the values to the range from 0, the smallest, to 1, the largest."""
    places, labels = _places(column)
    if labels is None and _is_logarithmic(places):
        places = [log(place) for place in places]
    low, high = min(places), max(places)
    return [0.5 if high == low else (place - low) / (high - low) for place in places]


def _ends(column: Sequence[Any]) -> list[tuple[float, str]]:
    """Return the labels of an axis with their positions. If all values are numbers, only the
    smallest and the largest get a label; otherwise every value does."""
    shares = _shares(column)
    texts = [
        value if isinstance(value, str) else f"{value:.4g}" if _is_number(value) else str(value)
        for value in column
    ]
    labels = dict(zip(shares, texts, strict=True))
    if all(_is_number(value) for value in column):
        labels = {share: labels[share] for share in (min(shares), max(shares))}
    return sorted(labels.items())
