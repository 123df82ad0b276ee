"""`cloudtrain metrics`: the table, the curves, the values and the patterns of runs."""

from __future__ import annotations

import csv
import io
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import cloudtrain as ct
from cloudtrain.errors import RunNotFound, UsageError
from tests.cli.conftest import Cli
from tests.deadlines import DEADLINE

pytestmark = pytest.mark.lifecycle

PRINTS = """\
for epoch in range(1, 11):
    print(f"epoch {epoch} loss: {1 / epoch:.4f} acc: {epoch / 10}", flush=True)
"""
REPORTS = """\
import sys
sys.path.insert(0, {package!r})
from cloudtrain import runtime
for step in range(5):
    runtime.report(step=step, loss={loss}, accuracy=0.1 * step)
"""
LONG = "m" * 100

Runner = Callable[..., str]


@pytest.fixture
def run_of(clean_environment: Path, monkeypatch: pytest.MonkeyPatch) -> Runner:
    """Returns the name of an ended run of a script."""
    monkeypatch.chdir(clean_environment)

    def run(script: str, name: str = "job", **fields: Any) -> str:
        Path("train.py").write_text(script)
        made = ct.submit(ct.TrainingJob(name=name, entry_point="train.py", **fields))
        assert made.wait().state == ct.RunState.SUCCEEDED
        return made.name

    return run


def reports(loss: str) -> str:
    """A script that reports a loss."""
    return REPORTS.format(package=str(Path(ct.__file__).parents[1]), loss=loss)


def table(text: str) -> list[list[str]]:
    """The cells of a printed table, below its header."""
    return [line.split() for line in text.splitlines()[1:]]


def test_the_table_of_a_script_that_knows_nothing_of_cloudtrain(cli: Cli, run_of: Runner) -> None:
    """What it prints is recognised; the loss is best at its lowest, the accuracy at its highest."""
    run_of(PRINTS)
    shown = cli("metrics", "last")
    assert shown.code == 0
    assert table(shown.out) == [
        ["loss", "recognised", "10", "1", "0.1", "0.1", "10"],
        ["acc", "recognised", "10", "0.1", "1", "1", "10"],
    ]


def test_a_status_shows_what_was_recognised(cli: Cli, run_of: Runner) -> None:
    """With its course; and the list of runs as the last status did, without reading the log."""
    name = run_of(PRINTS)
    (line,) = re.findall("metric +(.*)", cli("status", name).out)
    assert line == "loss 0.1 (step 10) █▅▄▃▃▂▂▁▁▁"
    assert "loss 0.1 █▅▄▃▂▂▁▁" in cli("ps").out
    assert json.loads(cli("status", name, "--json").out)["main_metric"]["best"] == 0.1
    quiet = run_of("print('hello')\n", "quiet")
    assert "no metrics" in cli("status", quiet).err


def test_runs_beside_each_other_and_chosen_metrics(cli: Cli, run_of: Runner) -> None:
    """A row for each run and metric; a run that is named twice counts once."""
    first = run_of(reports("1.0 / (step + 1)"), "first")
    second = run_of(reports("2.0 / (step + 1)"), "second")
    shown = cli("metrics", first, second, "last", "loss")
    assert table(shown.out) == [
        [first, "loss", "runtime", "5", "1", "0.2", "0.2", "4"],
        [second, "loss", "runtime", "5", "2", "0.4", "0.4", "4"],
    ]


def test_values_for_programs(cli: Cli, run_of: Runner) -> None:
    """CSV and JSON hold every value with its step; what JSON has not is null."""
    name = run_of(reports("float('nan') if step == 2 else step"))
    rows = list(csv.DictReader(io.StringIO(cli("metrics", name, "loss", "--csv").out)))
    assert [(row["run"], row["name"], row["step"]) for row in rows] == [
        (name, "loss", f"{step}.0") for step in range(5)
    ]
    (curve,) = json.loads(cli("metrics", name, "loss", "--json").out)
    assert curve["values"] == [0.0, 1.0, None, 3.0, 4.0]
    assert (curve["first"], curve["last"], curve["best"], curve["best_step"]) == (0, 4, 0, 0)
    assert (curve["source"], curve["rank"]) == ("runtime", 0)


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        ("float('nan')", ["5", "nan", "nan"]),
        ("float('inf') if step else 1", ["5", "1", "inf", "1", "0"]),
        ("-float('inf') if step == 1 else step", ["5", "0", "4", "0", "0"]),
    ],
)
def test_numbers_that_are_none(cli: Cli, run_of: Runner, loss: str, expected: list[str]) -> None:
    """They are shown, and are never the best; a curve leaves them out and counts them."""
    run_of(reports(loss))
    (row,) = table(cli("metrics", "last", "loss").out)
    assert row[2:] == expected
    assert "not finite" in cli("metrics", "last", "loss", "--plot").out


def test_curves_in_the_terminal(cli: Cli, run_of: Runner) -> None:
    """Each between its highest and its lowest value; one point and a long name are no trouble."""
    run_of(f"print('step 1 loss: 0.5 {LONG}_loss: 3')\n")
    run_of(PRINTS, "other")
    drawn = cli("metrics", "last", "loss", "--plot").out.splitlines()
    assert drawn[0] == "loss  log scale"
    assert drawn[1].split()[0] == "1"
    assert drawn[-2].split()[0] == "0.1"
    assert drawn[-1].split() == ["step", "1", "10"]
    linear = cli("metrics", "last", "loss", "--plot", "--scale", "linear").out
    assert linear.splitlines()[0] == "loss"
    point = cli("metrics", "job", "--plot")
    assert point.code == 0
    rows = point.out.splitlines()
    assert len(rows) == 6  # a name, a point and a step for each
    assert rows[3] == f"{LONG}_loss"


def test_a_metric_is_not_taken_for_the_beginning_of_a_run(cli: Cli, run_of: Runner) -> None:
    """A job is often called after what it measures; the whole name of a run still means that run."""
    first = run_of(PRINTS, "loss-of-digits")
    assert [row[0] for row in table(cli("metrics", "last", "loss").out)] == ["loss"]
    second = run_of(PRINTS, "accuracy-of-digits")
    assert [row[0] for row in table(cli("metrics", second, "loss").out)] == ["loss"]
    both = json.loads(cli("metrics", second, first, "loss", "--json").out)
    assert [(curve["run"], curve["name"]) for curve in both] == [(second, "loss"), (first, "loss")]


def test_runs_are_drawn_over_each_other(cli: Cli, run_of: Runner) -> None:
    """One chart for a metric, with a letter for each run."""
    names = [run_of(reports(loss), name) for name, loss in (("first", "step"), ("second", "9"))]
    drawn = cli("metrics", *names, "loss", "--plot").out.splitlines()
    assert drawn[0] == "loss"
    assert drawn[1].split()[0] == "9"
    assert [line.split() for line in drawn[-2:]] == [["a", names[0]], ["b", names[1]]]
    picture = "".join(drawn[1:-3])
    assert picture.count("a") == picture.count("b") == 1


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    ("file", "start"), [("x.png", b"\x89PNG"), ("x.svg", b"<?xml"), ("x.pdf", b"%PDF")]
)
def test_pictures_as_files(cli: Cli, run_of: Runner, file: str, start: bytes) -> None:
    """The kind is that of the file's name."""
    pytest.importorskip("matplotlib")
    run_of(reports("1"))
    assert cli("metrics", "last", "--save", file, "--smooth", "0.9") == (0, f"{file}\n", "")
    assert Path(file).read_bytes().startswith(start)


WRONG = [
    (["last", "--save", "x.gif"], "`.svg`"),
    (["last", "--save", "missing/x.png"], "No such file"),
    (["last", "--save", "x.png", "--plot"], "exclude each other"),
    (["last", "--plot", "--scale", "wide"], "`linear` or `log`"),
    (["last", "--mean", "--csv"], "remove `--mean`"),
    (["last", "--by", "sed"], "did you mean `seed`"),
    (["--tag", "team=b"], "no run has the tag `team=b`"),
    ([], "`cloudtrain metrics last`"),
]


def test_wrong_options(cli: Cli, run_of: Runner) -> None:
    """Each is an error with what to type, and nothing is written."""
    run_of(reports("1"), hyperparameters={"seed": 1})
    for words, text in WRONG:
        refused = cli("metrics", *words)
        assert (refused.code, refused.out) == (2, "")
        assert text in " ".join(refused.err.split())
        assert not list(Path().glob("x.*"))


@pytest.mark.slow
def test_the_mean_of_runs_that_differ_in_a_seed(cli: Cli, run_of: Runner) -> None:
    """They are found by a tag; runs with other hyperparameters are another group."""
    script = "import sys\nloss = 1 + float(sys.argv[sys.argv.index('--seed') + 1])\n"
    script += reports("loss")
    for rate, seed in ((0.1, 1), (0.1, 3), (0.5, 1)):
        given = {"rate": rate, "seed": seed}
        run_of(script, hyperparameters=given, tags={"team": "a"})
    run_of(reports("9"), "other")
    shown = cli("metrics", "--tag", "team=a", "loss", "--mean")
    assert [line.split("  ") for line in re.sub("  +", "  ", shown.out).splitlines()[1:]] == [
        ["rate=0.5", "loss", "1", "2", "2"],
        ["rate=0.1 (2 runs)", "loss", "2", "3 ± 1.4", "3 ± 1.4"],
    ]
    by_tag = cli("metrics", "--tag", "team=a", "loss", "--by", "team", "--plot").out.splitlines()
    assert by_tag[-2].split()[0] == "2.66667"


def test_patterns_for_the_job_file_find_the_same(cli: Cli, run_of: Runner) -> None:
    """A job with them has the metrics of the run whose output was recognised."""
    name = run_of(PRINTS)
    values = ct.run(name).metrics().columns()["loss"].value
    found = yaml.safe_load(cli("metrics", name, "--pattern").out)
    assert found["metrics"].keys() == {"loss", "acc"}
    job = ct.TrainingJob(name="patterned", entry_point="train.py", metrics=found["metrics"])
    run = ct.submit(job)
    run.wait()
    column = run.metrics().columns()["loss"]
    assert (column.source, column.value) == ("patterns", values)


def test_wrong_words(cli: Cli, run_of: Runner) -> None:
    """Each is an error with what to type."""
    run_of(PRINTS)
    for words, code, text in (
        (["last", "los"], 2, "did you mean `loss`"),
        (["nothing"], 3, "there is no run `nothing`"),
        (["last", "--csv", "--plot"], 2, "exclude each other"),
        (["last", "job", "loss", "acc", "last"], 2, "`last` is neither a run nor a metric"),
    ):
        refused = cli("metrics", *words)
        assert refused.code == code
        assert text in " ".join(refused.err.split())


def test_a_run_without_metrics(cli: Cli, run_of: Runner) -> None:
    """The exit code says it, and a sentence how to get some."""
    run_of("print('hello')\n")
    for options in ([], ["--json"], ["--pattern"]):
        shown = cli("metrics", "last", *options)
        assert (shown.code, shown.out) == (1, "[]\n" if "--json" in options else "")
        assert shown.err
    two = cli("metrics", "job", run_of(PRINTS, "other"), "--pattern")
    assert two.code == 2


BEST = {
    "val_loss": "0",
    "eval/rmse": "0",
    "word_error": "0",
    "accuracy": "4",
    "confidence": "4",
    "power": "4",
    "loss/weight": "4",
}


def test_which_value_is_best(cli: Cli, run_of: Runner) -> None:
    """The lowest of a loss or an error by the last part of its name, else the highest."""
    values = ", ".join(f"{name!r}: step" for name in BEST)
    run_of(reports("1").replace("accuracy=0.1 * step", f"**{{{values}}}"))
    for name, best in BEST.items():
        (row,) = table(cli("metrics", "last", name).out)
        assert row[-2:] == [best, f"{int(best)}"], name


ALARMS = """\
import sys, time
from pathlib import Path
sys.path.insert(0, {package!r})
from cloudtrain import runtime
for step in range(4):
    runtime.report(step=step, total=8, loss=float("nan") if step > 2 else 1.0 / (step + 1))
{alert}
while not Path({go!r}).exists():
    time.sleep(0.02)
"""


def test_what_a_person_should_see_at_once(cli: Cli, tmp_path: Path) -> None:
    """A loss that is not finite, and an alert, in the status and the list of runs. Both last longer than the run."""
    package = str(Path(ct.__file__).parents[1])
    go = tmp_path / "go"
    alert = "runtime.alert('the loss is lost')"
    Path("train.py").write_text(ALARMS.format(package=package, go=str(go), alert=alert))
    run = ct.submit(ct.TrainingJob(name="job", entry_point="train.py"))
    try:
        until(lambda: "NaN" in cli("status", "last").out)
        shown = json.loads(cli("ps", "--json").out)[0]
        assert {notice["kind"] for notice in shown["notices"]} == {"not_finite", "alert"}
        assert re.search("the loss is lost|is NaN", cli("ps").out)
    finally:
        go.touch()
    run.wait()
    page = cli("status", run.name).out
    assert "`loss` is NaN at step 3" in page
    assert re.search("alert +the loss is lost", page)
    facts = json.loads(cli("status", run.name, "--json").out)
    assert facts["progress"]["end"] == 8
    assert facts["main_metric"]["last"] is None
    assert facts["main_metric"]["best"] == pytest.approx(1 / 3)
    assert "loss nan" in cli("ps").out


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


EPOCHS = """\
import sys
sys.path.insert(0, {package!r})
from cloudtrain import runtime
for step in range(10):
    runtime.report(step=step, epoch=step // 4, loss=1 / (step + 1))
"""


def test_curves_over_time_and_epochs(cli: Cli, run_of: Runner) -> None:
    """Drawn at once; a name of a hyperparameter goes with it."""
    name = run_of(
        EPOCHS.format(package=str(Path(ct.__file__).parents[1])), hyperparameters={"lr": 1}
    )
    drawn = cli("metrics", name, "loss", "--by", "epoch").out.splitlines()
    assert drawn[-1].split() == ["epoch", "0", "2.25"]
    assert cli("metrics", name, "loss", "--by", "time").out.splitlines()[-1].split()[:2] == [
        "seconds",
        "0",
    ]
    assert cli("metrics", name, "loss", "--by", "step", "--by", "lr").code == 0


WITHOUT_AXIS = {
    "--by epoch": "epochs",
    "--by time --by step": "exclude",
    "--by lr --by team": "exclude",
    "--by time --csv": "--by",
}


def test_axes_that_are_not_there(cli: Cli, run_of: Runner) -> None:
    """Each is an error that says what to write instead."""
    name = run_of(reports("1.0"))
    for words, said in WITHOUT_AXIS.items():
        shown = cli("metrics", name, "loss", *words.split())
        assert shown.code == 2
        assert said in shown.err


@pytest.mark.parametrize("runs", [3, None, [3], [None], {"loss": 1}, 2.5])
def test_only_runs_are_compared(runs: Any) -> None:
    with pytest.raises((UsageError, RunNotFound)):
        ct.compare(runs)
