from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean as mean_of
from statistics import stdev
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import typer

import cloudtrain as ct
from cloudtrain.cli import options
from cloudtrain.cli.options import flag, option
from cloudtrain.cli.runs import run_named, tag_of
from cloudtrain.cli.terminal import (
    has_color,
    print_csv,
    print_json,
    print_lines,
    print_text,
    say,
    show_table,
    typed,
    width_of,
    writing,
)
from cloudtrain.documents import JsonObject
from cloudtrain.documents.yaml_text import write_yaml
from cloudtrain.errors import RunNotFound, UsageError, quoted
from cloudtrain.job.model import format_size
from cloudtrain.plans.chart import Chart, draw, figure_of, letter_of, picture_of
from cloudtrain.plans.document import on_one_line
from cloudtrain.plans.progress import MetricSummary
from cloudtrain.signals.curves import Axis, Curve, View, charts_of, choose, curves_of
from cloudtrain.signals.main_metric import summary_of
from cloudtrain.signals.recognise import Recogniser

if TYPE_CHECKING:
    from cloudtrain.lifecycle.runs.run import Run

_NO_METRICS = "no metrics: call `runtime.report(loss=loss)` in the script"
_NO_MACHINES = "nothing is known about the machines: the first values come after two seconds"

_SIZES = ("memory", "disk", "network")
"""The beginnings of values of machines in bytes, or bytes a second."""

_HEIGHT = 8
"""Rows of a chart with one line. Several lines have twice as many."""

_LABEL = 10
"""Columns beside a chart, for its highest and lowest value."""

_COLORS = {"cyan": 36, "magenta": 35, "green": 32, "yellow": 33, "blue": 34, "red": 31}
"""The colours of lines, with their ECMA-48 parameters."""

_SUFFIXES = (".png", ".svg", ".pdf")


def metrics_command(
    names: Annotated[
        list[str] | None,
        options.argument(
            "RUN... [METRIC...]",
            "Runs, and then the metrics to show. Default: all. A sweep stands for its trials.",
            autocompletion=options.runs,
        ),
    ] = None,
    plot: Annotated[
        bool, flag("--plot", "Draw the curves in the terminal, those of all runs over each other.")
    ] = False,
    save: Annotated[
        Path | None, option("--save", "FILE", "Write the curves as a picture: PNG, SVG or PDF.")
    ] = None,
    tag: Annotated[
        list[str] | None, option("--tag", "NAME=VALUE", "All runs with this tag. Repeatable.")
    ] = None,
    mean: Annotated[
        bool, flag("--mean", "Show the mean and spread of runs that differ only in a seed.")
    ] = False,
    by: Annotated[
        list[str] | None,
        option(
            "--by",
            "NAME",
            "Show the mean and spread of runs with the same hyperparameter or tag. `time`, `epoch` "
            "or `step`: draw the curves over it. Repeatable.",
            autocompletion=options.hyperparameters,
        ),
    ] = None,
    smooth: Annotated[
        float, option("--smooth", "WEIGHT", "Smooth curves, from 0 to 0.999.", min=0, max=0.999)
    ] = 0.0,
    scale: Annotated[
        str | None, option("--scale", "SCALE", "`linear` or `log`. Default: what shows more.")
    ] = None,
    pattern: Annotated[
        bool,
        flag("--pattern", "Print `metrics` for the job file that find what was recognised."),
    ] = False,
    machines: Annotated[
        bool, flag("--machines", "Show what the machines did: CPU, memory, disk, network, GPUs.")
    ] = False,
    csv: options.Csv = False,
    json: options.Json = False,
) -> None:
    """Show the metrics of runs as a table, curves or data.

    BEST is the lowest value of a loss or an error, and the highest of another metric. SOURCE says
    where the values came from; `docs/guides/metrics.md` describes the sources.

    \b
    Examples:
      cloudtrain metrics last
      cloudtrain metrics last loss accuracy --plot
      cloudtrain metrics last loss --by time
      cloudtrain metrics first-3f9a second-81b0 loss --plot
      cloudtrain metrics my-sweep accuracy --mean
      cloudtrain metrics --tag team=vision loss --by learning_rate --save loss.png
      cloudtrain metrics last --csv > curves.csv
      cloudtrain metrics last gpu0.utilization --machines --plot
    """
    if csv + json + plot + pattern + (save is not None) > 1:
        message = "`--csv`, `--json`, `--plot`, `--save` and `--pattern` exclude each other"
        raise UsageError(message, hint="write one of them", code="CT902")
    if (csv or json) and (mean or by):
        message = "`--csv` and `--json` print all values of runs, with step and time"
        raise UsageError(message, hint="remove `--mean` and `--by`", code="CT902")
    over, shared = _axis_and_group(by or [])
    if save is not None and save.suffix.lower() not in _SUFFIXES:
        hint = f"end its name with {quoted(_SUFFIXES, ' or ')}"
        raise UsageError(f"`{save}` is not the name of a picture", hint=hint, code="CT909")
    runs, wanted = _runs_and_metrics(names or [], tag or [])
    if pattern:
        _print_patterns(runs)
        return

    comparison = ct.compare(runs)
    if machines:
        curves: list[Curve] = []
        for run in runs:
            curves += curves_of(run.name, run.machines(), {})
    else:
        curves = comparison.curves
    if wanted:
        curves = choose(curves, wanted)
    if not curves:
        say(_NO_MACHINES if machines else _NO_METRICS)
        if json:
            print_json([])
        raise typer.Exit(1)
    groups = comparison.groups(shared) if mean or shared else {}
    view = View(smooth, cast("Any", scale), groups, over)
    if save is not None:
        _save(curves, view, save)
    elif plot or over:
        for chart in charts_of(curves, view):
            _print_chart(chart)
    elif csv:
        print_csv(list(_values(curves)), ("run", "name", "step", "time", "value"))
    elif json:
        print_json([_data(curve) for curve in curves])
    elif groups:
        _print_means(curves, groups)
    elif machines:
        _print_machines(curves)
    else:
        _print_table(curves)


def _axis_and_group(names: Sequence[str]) -> tuple[Axis | None, str | None]:
    """Return the axis among the names of `--by`, and the one that runs are grouped by."""
    axes = [name for name in names if name in get_args(Axis)]
    others = [name for name in names if name not in axes]
    for several in (axes, others):
        if len(several) > 1:
            hint = f"write one of them: `--by {several[0]}`"
            raise UsageError(f"{quoted(several, ' and ')} exclude each other", hint=hint)
    return cast("Axis | None", next(iter(axes), None)), next(iter(others), None)


def _runs_and_metrics(names: Sequence[str], tags: Sequence[str]) -> tuple[list[Run], list[str]]:
    """Return the runs with these tags and those that are named, and the names of metrics. The first
    word that is no run begins the metrics, or one that is only the beginning of a run's name and a
    metric of the first run."""
    runs: list[Run] = []
    if tags:
        runs += ct.runs(limit=None, tags=dict(map(tag_of, tags)), rehearsals=False)
        if not runs:
            hint = "`cloudtrain ps` lists the runs"
            raise UsageError(f"no run has the tag {quoted(tags)}", hint=hint, code="CT929")
    for number, name in enumerate(names):
        try:
            run = run_named(name)
        except RunNotFound:
            if not runs:
                raise
            return runs, list(names[number:])
        if runs and run.name != name and name in runs[0].metrics().names:
            return runs, list(names[number:])
        runs.append(run)
    if not runs:
        raise UsageError(
            "no run is named", hint=f"name one, or a tag: {typed('cloudtrain', 'metrics', 'last')}"
        )
    return runs, []


def _print_table(curves: Sequence[Curve]) -> None:
    headers = ["METRIC", "SOURCE", "VALUES", "FIRST", "LAST", "BEST", "AT STEP"]
    cells = []
    for curve in curves:
        row = summary_of(curve.goal, curve.column)
        numbers = map(_text, (row.first, row.last, row.best, row.best_step))
        cells.append([row.name, row.source, f"{row.number:,}", *numbers])
    _print_rows(headers, cells, curves)


def _print_machines(curves: Sequence[Curve]) -> None:
    headers = ["VALUE", "LOWEST", "MEAN", "HIGHEST", "LAST"]
    cells = []
    for curve in curves:
        values = curve.column.value
        numbers = (min(values), sum(values) / len(values), max(values), values[-1])
        name = curve.name.rpartition("/")[2].rpartition(".")[2]
        form = format_size if name.startswith(_SIZES) else _text
        cells.append([curve.name, *map(form, numbers)])
    _print_rows(headers, cells, curves)


def _print_rows(headers: list[str], cells: list[list[str]], curves: Sequence[Curve]) -> None:
    """Print a table with a row for each curve, and with their runs if there are several."""
    if len({curve.run for curve in curves}) > 1:
        headers.insert(0, "RUN")
        cells = [[curve.run, *line] for curve, line in zip(curves, cells, strict=True)]
    show_table(headers, cells)


def _text(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def _data(curve: Curve) -> JsonObject:
    """Return a curve for JSON. A step that is unknown, NaN and infinity are null."""
    column = curve.column
    values = {"steps": column.step, "times": column.time, "values": column.value}
    lists = {name: list(array) for name, array in values.items()}
    return {"run": curve.run, **summary_of(curve.goal, column)._asdict(), **lists}


def _values(curves: Sequence[Curve]) -> Iterator[JsonObject]:
    for curve in curves:
        step, time, value, *_ = curve.column
        for row in zip(step, time, value, strict=True):
            place = "" if math.isnan(row[0]) else row[0]
            numbers = {"step": place, "time": row[1], "value": row[2]}
            yield {"run": curve.run, "name": curve.name, **numbers}


def _print_means(curves: Sequence[Curve], groups: Mapping[str, str]) -> None:
    """Print a table of the means of the last and the best values in each group."""
    members: dict[tuple[str, str], list[MetricSummary]] = {}
    for curve in curves:
        summary = summary_of(curve.goal, curve.column)
        members.setdefault((groups[curve.run], curve.name), []).append(summary)
    rows = []
    for names, summaries in members.items():
        lasts = _spread([summary.last for summary in summaries])
        bests = _spread([summary.best for summary in summaries])
        rows.append((*names, str(len(summaries)), lasts, bests))
    show_table(("RUNS", "METRIC", "NUMBER", "LAST", "BEST"), rows)


def _spread(values: Sequence[float | None]) -> str:
    """Return the mean and the standard deviation, such as `0.25 ± 0.02`, of finite values."""
    finite = [value for value in values if value is not None and math.isfinite(value)]
    if len(finite) < 2:
        return _text(finite[0] if finite else None)
    text = f"{mean_of(finite):.4g} ± {stdev(finite):.2g}"
    lost = len(values) - len(finite)
    return f"{text} ({lost} not finite)" if lost else text


def _save(curves: Sequence[Curve], view: View, path: Path) -> None:
    figure = figure_of(charts_of(curves, view))
    with writing(path, "name a file in another folder: `--save`"):
        path.write_bytes(picture_of(figure, path.suffix[1:].lower()))
    print_lines([str(path)])


def _print_chart(chart: Chart) -> None:
    """Print a picture of a metric: its name, its lines between the highest and the lowest value,
    its first and last step, and the names of the lines if there are several."""
    width = max(20, (width_of(sys.stdout) or 80) - _LABEL)
    has_names = len(chart.lines) > 1
    colors = list(_COLORS) if has_names and has_color(sys.stdout) else []
    scale = "  log scale" if chart.is_logarithmic else ""
    print_lines([f"{chart.title}{chart.note}{scale}"])
    known: list[float] = []
    steps: list[float] = []
    for line in chart.lines:
        known += [value for value in line.y if not math.isnan(value)]
        steps += line.x
    if not known:
        return

    height = 2 * _HEIGHT if has_names else _HEIGHT
    labels = [_text(max(known)), *[""] * (height - 2), _text(min(known))]
    if labels[0] == labels[-1]:  # one point, or a line without height
        labels = labels[:1]
    rows = draw(chart, width, len(labels), colors)
    for label, row in zip(labels, rows, strict=True):
        sys.stdout.write(f"{label:>{_LABEL - 1}} {row}".rstrip() + "\n")
    indent = " " * _LABEL
    first = _text(min(steps))
    last = _text(max(steps))
    start = f"{chart.x_label} {first}"
    end = "" if first == last else f"{last:>{width - len(start)}}"
    sys.stdout.write(f"{indent}{start}{end}\n")
    for line in chart.lines if has_names else ():
        mark = letter_of(line)
        if colors:
            code = _COLORS[colors[line.number % len(colors)]]
            mark = f"\x1b[{code}m{mark}\x1b[0m"
        sys.stdout.write(f"{indent}{mark}  {on_one_line(line.label)}\n")


def _print_patterns(runs: Sequence[Run]) -> None:
    """Print the job's `metrics` that would find what is recognised in the output of one run."""
    if len(runs) > 1:
        names = quoted([run.name for run in runs], " and ")
        hint = f"name one: {typed('cloudtrain', 'metrics', runs[0].name, '--pattern')}"
        raise UsageError(f"`--pattern` looks at one run, not at {names}", hint=hint, code="CT902")
    recogniser = Recogniser()
    for _ in recogniser.blocks(line.text for line in runs[0].logs()):
        pass  # it learns from what it reads
    patterns = recogniser.patterns()
    if not patterns:
        say("nothing was recognised in the output")
        raise typer.Exit(1)
    print_text(write_yaml({"metrics": patterns}))
