"""Sweeps that nobody means: each is planned, or refused with its place, and no defect of cloudtrain."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.lifecycle.runs.sweep import trials_table
from cloudtrain.lifecycle.sweeps.study import lines_of
from cloudtrain.plans.progress import Trial
from tests.cli.conftest import Cli

HUGE = 10**400
TENS = {f"x{number}": list(range(10)) for number in range(4400)}
"""A grid of so many combinations that Python does not write the number."""

TARGETS = ("local", "sagemaker", "azureml")
JOB = """\
name: job
entry_point: train.py
resources: {instance_type: {sagemaker: ml.g5.xlarge, azureml: Standard_NC24ads_A100_v4}}
environment: {framework: pytorch, version: "2.8"}
"""

REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "a range wider than any number": ({"search": {"x": {"uniform": [-1e308, 1e308]}}}, "CT060", "search.x.uniform"),
    "a bound beyond all numbers": ({"search": {"x": {"uniform": [0, HUGE]}}}, "CT012", "search.x.uniform[1]"),
    "a bound of 401 digits": ({"search": {"x": {"int": [0, HUGE]}}}, "CT014", "search.x.int[1]"),
    "a bound of no exact number": ({"search": {"x": {"int": [-(10**21), 1]}}}, "CT014", "search.x.int[0]"),
    "a step of 401 digits": ({"search": {"x": {"int": [0, 9], "step": HUGE}}}, "CT014", "search.x.step"),
    "money without end": ({"max_cost": HUGE}, "CT012", "max_cost"),
    "slack without end": ({"stop_early": {"bandit": {"slack": HUGE}}}, "CT012", "stop_early.bandit.slack"),
    "a grid without end": ({"search": TENS, "strategy": "grid", "trials": None}, "CT060", "search"),
    "a grid of whole numbers": ({"search": {"x": {"int": [0, 2**53]}}, "strategy": "grid", "trials": None}, "CT060", "search"),
    "the sweep itself": ({"job": "sweep.json"}, "CT060", "job"),
    "another sweep": ({"job": "other.json"}, "CT060", "job"),
    "the home of nobody": ({"job": "~nosuchuser/job.yaml"}, "CT001", "job"),
}  # fmt: skip

PLANNED: dict[str, dict[str, Any]] = {
    "the smallest and the largest number": {"search": {"x": {"log": [5e-324, 1e308]}}},
    "all whole numbers": {"search": {"x": {"int": [-(2**53), 2**53]}}},
    "a choice of 401 digits": {"search": {"x": [HUGE, 1]}},
    "three trials of a grid without end": {"search": TENS, "strategy": "grid"},
    "control characters": {"search": {"x\x1b[2J": ["\x1b[2J\u202e", "\x9b1m"]}},
}


@pytest.fixture
def written(clean_environment: Path) -> Any:
    """Writes a sweep of three random trials with changes to it."""
    (clean_environment / "train.py").write_text("")
    (clean_environment / "job.yaml").write_text(JOB)

    def write(change: dict[str, Any], name: str = "sweep.json") -> str:
        sweep = {
            "search": {"x": {"uniform": [0, 1]}},
            "objective": {"maximize": "a"},
            "trials": 3,
        } | change
        whole = {"kind": "sweep", "name": "s", "job": "job.yaml"} | sweep
        (clean_environment / name).write_text(
            json.dumps({k: v for k, v in whole.items() if v is not None})
        )
        return name

    write({}, "other.json")
    return write


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_has_its_place(cli: Cli, written: Any, name: str) -> None:
    """Exit code 2, a code and the field's line."""
    change, code, field = REFUSED[name]
    result = cli("plan", written(change))
    assert (result.code, result.out) == (2, ""), result.err
    assert f"[{code}]\n  sweep.json:1:" in result.err
    assert f"  {field}\n" in result.err


@pytest.mark.slow
@pytest.mark.parametrize(
    "target", ["local", *(pytest.param(name, marks=pytest.mark.slow) for name in TARGETS[1:])]
)
@pytest.mark.parametrize("name", PLANNED)
def test_what_is_planned_is_no_defect(cli: Cli, written: Any, name: str, target: str) -> None:
    """The plan is there, whether an account is or not, and has nothing in it that steers a terminal."""
    result = cli("plan", written(PLANNED[name]), "--target", target)
    assert result.code in (0, 2), result.err
    assert f"on {target}" in result.out or result.err.startswith("error: ")
    assert not {"\x1b", "\x9b", "\u202e"} & {*result.out, *result.err}


def test_a_hyperparameter_is_given_values_once(cli: Cli, written: Any) -> None:
    """The last `--each` does not replace the others in silence; 20,000 values are too many."""
    each = ["--each", "hyperparameters.seed=1,2"]
    result = cli("plan", "job.yaml", *each, "--each", "hyperparameters.seed=3")
    assert (result.code, result.out) == (2, "")
    assert "`--each hyperparameters.seed=1,2,3`" in result.err
    assert "`--each hyperparameters.lr=1,2`" in cli("plan", "job.yaml", "--each", "lr=1,2").err
    result = cli(
        "plan", "job.yaml", "--each", f"hyperparameters.seed={','.join(map(str, range(20_000)))}"
    )
    assert (result.code, "a sweep has at most 10,000 trials" in " ".join(result.err.split())) == (
        2,
        True,
    )


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ("[1, 2],[3]", "hidden: [1, 2], [3]"),
        ("'a,b',''", "hidden=a,b\n"),
        ("1,,2", "has an empty value"),
        ("[1,2", "not valid YAML"),
    ],
)
def test_a_value_of_an_array_may_hold_commas(
    cli: Cli, written: Any, values: str, shown: str
) -> None:
    """Brackets and quotes hold a value together. An empty value is refused, because it may be a slip."""
    result = cli("plan", "job.yaml", "--each", f"hyperparameters.hidden={values}")
    assert shown in result.out + result.err


@pytest.mark.parametrize("variable", ["CLOUDTRAIN_TRUST", "AWS_CONFIG_FILE", "AZURE_CONFIG_DIR"])
def test_the_home_of_nobody(
    cli: Cli, written: Any, variable: str, clean_environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`~nosuchuser` in a variable is a path that does not exist."""
    (clean_environment / "cloudtrain.toml").write_text("")
    monkeypatch.setenv(variable, "~nosuchuser/x")
    for target in TARGETS:
        assert cli("plan", "job.yaml", "--target", target).code in (0, 2)


def test_values_that_differ_look_different(cli: Cli, job: str) -> None:
    """A number, a float and a text are written as in a job file: in the plan, in the log and in the table."""
    values = [
        1,
        1.0,
        "1",
        True,
        "true",
        None,
        "",
        "adam",
        " a",
        "[1]",
        [1],
        1e-05,
        0.1 + 0.2,
        123456.0,
        -2.0,
    ]
    texts = [
        "1", "1.0", '"1"', "true", '"true"', "null", '""', "adam", '" a"', '"[1]"', "[1]", "1e-05", "0.3", "123456.0",
        "-2.0",
    ]  # fmt: skip
    plan = cli("submit", job, "--dry-run", "--each", 'hyperparameters.k=1,1.0,"1"')
    assert 'k: 1, 1.0, "1"\n' in plan.out
    planned = [line.split()[2] for line in plan.out.splitlines() if line[:1] in ("1", "2", "3")]
    assert planned == ["k=1", "k=1.0", 'k="1"']
    trials = [
        Trial(number, {"k": value}, f"run-{number}") for number, value in enumerate(values, 1)
    ]
    assert [row[2] for row in trials_table(trials, None).rows] == texts
    events = [
        event
        for number, value in enumerate(values, 1)
        for event in (
            {"event": "asked", "trial": number, "values": {"k": value}},
            {"event": "submitted", "trial": number, "run": f"run-{number}", "at": 0.0},
        )
    ]
    assert [line.text for line in lines_of(events, None)] == [
        f"trial {number} started: k={text}" for number, text in enumerate(texts, 1)
    ]
