"""Runs beside each other: `ct.compare`, tables for pandas, and pictures in a notebook."""

from __future__ import annotations

import sys
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cloudtrain as ct
from cloudtrain.errors import MissingExtra, RunNotFound, UsageError

pytestmark = pytest.mark.lifecycle

SCRIPT = """\
import argparse, sys
sys.path.insert(0, {package!r})
from cloudtrain import runtime
parser = argparse.ArgumentParser()
parser.add_argument("--rate", type=float)
parser.add_argument("--seed", type=int)
parser.add_argument("--optimizer")
given = parser.parse_args()
for step in range(4):
    runtime.report(step=step, acc=step / 4, loss=given.rate + given.seed - step)
"""
SILENT = "print('hello')\n"

Runner = Callable[..., ct.Run]


@pytest.fixture
def run_of(clean_environment: Path, monkeypatch: pytest.MonkeyPatch) -> Runner:
    """Returns an ended run of a script with these hyperparameters."""
    monkeypatch.chdir(clean_environment)
    package = str(Path(ct.__file__).parents[1])

    def run(script: str = SCRIPT, **hyperparameters: Any) -> ct.Run:
        Path("train.py").write_text(script.replace("{package!r}", repr(package)))
        job = ct.TrainingJob(
            name="job",
            entry_point="train.py",
            hyperparameters=hyperparameters,
            tags={"team": "vision"},
        )
        made = ct.submit(job)
        assert made.wait().state == ct.RunState.SUCCEEDED
        return made

    return run


def test_what_differs_stands_beside_what_came_out(run_of: Runner) -> None:
    """A row for each run: hyperparameters that are not the same, the last and best loss."""
    first = run_of(rate=0.5, seed=1, optimizer="adam")
    second = run_of(rate=0.25, seed=1, optimizer="adam")
    compared = ct.compare([first.name, second, "last"])
    assert [row["run"] for row in compared.rows] == [first.name, second.name]
    row = compared.rows[0]
    assert (row["hyperparameters.rate"], row["hyperparameters.optimizer"]) == (0.5, "adam")
    assert (row["tags.team"], row["state"], row["job"]) == ("vision", "succeeded", "job")
    assert (row["last.loss"], row["best.loss"], row["best.acc"]) == (-1.5, -1.5, 0.75)
    assert row["duration"] > 0
    lines = compared.to_text(width=None).splitlines()
    assert lines[0].split() == ["RUN", "STATE", "DURATION", "RATE", "LOSS", "BEST", "ACC"]
    assert lines[1].split()[-4:] == ["0.5", "-1.5", "-1.5", "0.75"]


@pytest.mark.slow
def test_groups_of_runs(run_of: Runner) -> None:
    """Without a name, those that differ in a seed alone; with one, those that agree in it."""
    runs = [run_of(rate=rate, seed=seed) for rate, seed in ((0.5, 1), (0.5, 2), (0.25, 2))]
    compared = ct.compare(runs)
    assert list(compared.groups().values()) == ["rate=0.5 (2 runs)"] * 2 + ["rate=0.25"]
    assert list(compared.groups("seed").values()) == ["seed=1"] + ["seed=2 (2 runs)"] * 2
    for by in ("team", "tags.team", "tag:team"):
        assert set(compared.groups(by).values()) == {"team=vision (3 runs)"}
    assert set(compared.groups("job").values()) == {"job=job (3 runs)"}
    with pytest.raises(UsageError) as caught:
        compared.groups("rat")
    assert "rate" in str(caught.value.hint)
    assert set(ct.compare(runs[:2]).groups().values()) == {"mean (2 runs)"}


def picture_in(page: str) -> str:
    """The only picture of a page, as SVG."""
    _, _, rest = page.partition('src="data:image/svg+xml;base64,')
    data, _, behind = rest.partition('"')
    assert "base64" not in behind
    return b64decode(data).decode()


@pytest.mark.slow
def test_a_notebook_shows_curves(run_of: Runner) -> None:
    """Of a run, of a comparison with a legend; none where there are no metrics."""
    pytest.importorskip("matplotlib")
    run = run_of(rate=0.5, seed=1)
    quiet = run_of(SILENT)
    assert "<!--  loss -->" in picture_in(run._repr_html_())
    both = ct.compare([run, quiet])
    assert "<!--  acc -->" in picture_in(both._repr_html_())
    assert "<img" not in quiet._repr_html_()
    assert quiet.name in ct.compare(quiet).to_text()
    axes = run.plot("acc", "loss", smooth=0.5).axes
    assert [item.get_title().strip() for item in axes] == ["acc", "loss"]
    mean = ct.compare([run, run_of(rate=0.5, seed=3)]).plot("loss", mean=True).axes[0].lines[0]
    assert list(mean.get_ydata()) == [2.5, 1.5, 0.5, -0.5]


def test_without_matplotlib(run_of: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page says what to install, and `plot` is an error with the same."""
    run = run_of(rate=0.5, seed=1)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    page = run._repr_html_()
    assert "<img" not in page
    assert "[plot]" in page
    with pytest.raises(MissingExtra) as caught:
        run.plot()
    assert (caught.value.code, "[plot]" in str(caught.value.hint)) == ("CT063", True)


@pytest.mark.slow
def test_a_table_for_pandas(run_of: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hyperparameters stand beside results; times are timestamps. Without pandas, it is named."""
    run = run_of(rate=0.5, seed=1)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "pandas", None)
        for table in (ct.runs().to_pandas, run.metrics().to_pandas, ct.compare(run).to_pandas):
            with pytest.raises(MissingExtra) as caught:
                table()
            assert caught.value.hint == "pip install pandas"
    pytest.importorskip("pandas")
    (row,) = ct.runs().to_pandas().to_dict("records")
    assert (row["hyperparameters.rate"], row["best.loss"]) == (0.5, -1.5)
    assert row["created"].timestamp() == pytest.approx(run.created)
    assert str(row["created"].tz) == "UTC"


def test_what_cannot_be_compared(run_of: Runner) -> None:
    """No run, a name that is none, and a metric that no run has."""
    with pytest.raises(UsageError, match="no runs"):
        ct.compare([])
    with pytest.raises(RunNotFound):
        ct.compare("absent")
    with pytest.raises(UsageError, match="no metrics"):
        ct.compare(run_of(SILENT)).plot()
    with pytest.raises(UsageError, match="`absent`"):
        run_of(rate=1, seed=1).plot("absent")
