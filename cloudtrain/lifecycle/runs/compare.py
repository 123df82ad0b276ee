"""The public function `compare`: runs beside each other."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

from cloudtrain.documents import JsonMapping, JsonObject
from cloudtrain.errors import UsageError, did_you_mean, shortened
from cloudtrain.job.model import format_duration
from cloudtrain.lifecycle.runs.facts import GIVEN, rows_of, to_pandas
from cloudtrain.lifecycle.runs.find import refresh
from cloudtrain.lifecycle.runs.find import run as find_run
from cloudtrain.lifecycle.runs.run import Run
from cloudtrain.plans.document import Cell, Document, Table
from cloudtrain.plans.html import picture, to_html
from cloudtrain.plans.plan import Printable
from cloudtrain.plans.states import RunState
from cloudtrain.plans.status import number, state_cell
from cloudtrain.signals.curves import SHOWN, Curve, View, names_in, plot

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SEED = re.compile(r".*(seed|random_state)", re.IGNORECASE)
"""Hyperparameters that only change the random numbers of a repeated training."""

_WIDEST = 24
"""The most columns of a hyperparameter or the name of a metric in a table."""


def compare(runs: Iterable[Run | str] | Run | str) -> RunComparison:
    """Compare runs: the hyperparameters that differ, results, durations and curves. A sweep stands
    for its trials. Targets are asked for the state of unfinished runs.

    Args:
        runs: runs, or names as `ct.run` takes them.

    Raises:
        RunNotFound: a name matches no run, or more than one.
        UsageError: there are no runs, or something else is given.
    """
    found: dict[str, Run] = {}
    items: Iterable[object] = [runs]
    if isinstance(runs, Iterable) and not isinstance(runs, str):
        items = runs
    for item in items:
        run = find_run(item) if isinstance(item, str) else item
        if not isinstance(run, Run):
            message = f"`{shortened(repr(item))}` is not a run"
            hint = 'compare runs or their names: `ct.compare(ct.runs())`, `ct.compare(["last"])`'
            raise UsageError(message, hint=hint)
        for part in run.parts():
            found.setdefault(part.name, part)
    if not found:
        hint = "`ct.runs()` lists the runs; a sweep has none before its first trial"
        raise UsageError("there are no runs to compare", hint=hint, code="CT929")
    return RunComparison(map(refresh, found.values()))


class RunComparison(Printable):
    """Runs beside each other.

    Attributes:
        rows: a row for each run, with names such as `duration`, `hyperparameters.lr` and
            `best.loss`.
        curves: the metrics of all runs.
    """

    def __init__(self, runs: Iterable[Run]) -> None:
        rows, curves = rows_of(runs)
        self.rows: list[JsonObject] = rows
        self.curves: list[Curve] = curves

    def groups(self, by: str | None = None) -> dict[str, str]:
        """Map the name of each run to its group: runs that differ in nothing but a seed, or with
        `by`, runs that agree in a hyperparameter, a tag, or the `job`.

        Raises:
            UsageError: no run has what `by` names.
        """
        names = _names_in(self.rows)
        if by is None:
            given = [name for name in names if name.startswith(GIVEN) and not _SEED.fullmatch(name)]
            shown = _differing(self.rows, ["job", *given])
        else:
            meant = (by, f"{GIVEN}{by}", f"tags.{by.removeprefix('tag:')}")
            shown = [name for name in names if name in meant][:1]
            if not shown:
                hint = did_you_mean(by, list(map(_short, names)))
                raise UsageError(
                    f"no run has a hyperparameter or tag `{by}`", hint=hint, code="CT929"
                )
        groups = {}
        for row in self.rows:
            words = [f"{_short(name)}={row.get(name)}" for name in shown]
            groups[str(row["run"])] = ", ".join(words) or "mean"
        sizes = Counter(groups.values())
        for name, group in groups.items():
            if sizes[group] > 1:
                groups[name] = f"{group} ({sizes[group]} runs)"
        return groups

    def plot(
        self,
        *names: str,
        mean: bool = False,
        by: str | None = None,
        smooth: float = 0.0,
        scale: Literal["linear", "log"] | None = None,
        over: Literal["step", "time", "epoch"] | None = None,
    ) -> Figure:
        """Plot these metrics of all runs over each other; without names, the main metric and a few
        others. Needs matplotlib.

        Args:
            mean: plot the mean of the runs that differ in nothing but a seed, in a band from the
                lowest to the highest.
            by: plot the mean of the runs that agree in this hyperparameter or tag, or in `job`.
            smooth: the weight of the values before in a moving average, from 0 to less than 1.
            scale: of the values. Default: a logarithmic one where it shows more.
            over: the horizontal axis. Default: steps, or where they are unknown or begin again, the
                values are counted.

        Raises:
            UsageError: the runs have no metric, none of such a name, or no such steps or epochs.
        """
        groups = self.groups(by) if mean or by is not None else {}
        return plot(self.curves, names, View(smooth, scale, groups, over))

    def to_pandas(self) -> Any:
        """Return a pandas table with a row for each run. Needs pandas."""
        return to_pandas(self.rows)

    def document(self) -> Document:
        """Return a table with a row for each run: the hyperparameters that differ, the last and the
        best value of the main metric, and the last one of a few."""
        given = [name for name in _names_in(self.rows) if name.startswith(GIVEN)]
        columns = ["run", "state", "duration", "cost", *_differing(self.rows, given)]
        metrics = names_in(self.curves)[:SHOWN]
        for name in metrics:
            columns.append(f"last.{name}")
            if name == metrics[0]:
                columns.append(f"best.{name}")
        columns = [name for name in columns if any(row.get(name) for row in self.rows)]
        headers = [_short(name).upper() for name in columns]
        rows = [[_cell(name, row.get(name)) for name in columns] for row in self.rows]
        return Document([Table(headers, rows)])

    def _repr_html_(self) -> str:
        return to_html(self.document()) + picture(self.plot, "curves of the runs")


def _names_in(rows: Sequence[JsonMapping]) -> list[str]:
    return list(dict.fromkeys(chain.from_iterable(rows)))


def _differing(rows: Sequence[JsonMapping], names: Sequence[str]) -> list[str]:
    """Return those of the names whose values are not the same in all rows."""
    first = rows[0]
    return [name for name in names if any(row.get(name) != first.get(name) for row in rows)]


def _short(name: str) -> str:
    """Return the name of a column without what it is the name of: `lr` of `hyperparameters.lr`."""
    kind, _, key = name.partition(".")
    return kind if kind == "best" or not key else shortened(key, _WIDEST)


def _cell(name: str, value: Any) -> Cell:
    """Return the text of a value in a table."""
    if value is None:
        return ""
    if name == "state":
        return state_cell(RunState(value))
    if name == "duration":
        return format_duration(value)
    if name == "cost":
        return f"${value:,.2f}"
    if isinstance(value, float):
        return number(value)
    return shortened(str(value), _WIDEST)
