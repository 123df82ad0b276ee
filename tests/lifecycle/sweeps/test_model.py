"""A sweep's file: what it may say, and what is said about mistakes."""

from __future__ import annotations

from pathlib import Path
from random import Random

import jsonschema
import pytest

import cloudtrain as ct
from cloudtrain.errors import JobError
from cloudtrain.job.file import load_job
from cloudtrain.job.schema import job_schema
from cloudtrain.job.sweep import Range
from tests.hints import suggested, wrong_type

GOOD = """\
kind: sweep
name: digits-lr
job: job.yaml
search:
  learning_rate: {log: [1e-4, 1e-1]}
  batch: [32, 64, 128]
  width: {int: [64, 512], step: 64}
objective: {maximize: test_accuracy}
strategy: bayesian
trials: 40
parallel: 4
stop_early: {median: {after: 5}}
seed: 1
"""
JOB = "name: digits\nentry_point: train.py\nhyperparameters: {epochs: 2}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a job file."""
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "train.py").write_text("")
    return tmp_path


def test_a_sweep_names_the_file_of_its_job(folder: Path) -> None:
    """Relative to its own; overrides of `job.` reach it, and places lead into the right file."""
    (folder / "sweep.yaml").write_text(GOOD)
    found = load_job(folder / "sweep.yaml", ["job.hyperparameters.epochs=7", "trials=5"])
    assert found.sweep is not None
    assert found.sweep.trials == 5
    assert found.job.hyperparameters == {"epochs": 7}
    assert found.sweep.job.source_dir == str(folder)
    assert found.place_of(("search", "width")) == f"{folder / 'sweep.yaml'}:7:10"
    assert found.place_of(("job", "entry_point")) == f"{folder / 'job.yaml'}:2:14"


def test_an_inline_job_has_the_name_of_its_sweep(folder: Path) -> None:
    """So that a small sweep is one file."""
    text = GOOD.replace("job: job.yaml", "job: {entry_point: train.py}")
    (folder / "sweep.yaml").write_text(text)
    assert ct.load_sweep(folder / "sweep.yaml").job.name == "digits-lr"


def test_every_mistake_is_said_at_once(folder: Path) -> None:
    """With the line, and what to type."""
    bad = GOOD.replace("log: [1e-4, 1e-1]", "lgo: [1, 2]").replace("[32, 64, 128]", "{log: [0, 5]}")
    bad = (
        bad.replace("maximize", "maximise")
        .replace("bayesian", "bayes")
        .replace("parallel", "paralel")
    )
    (folder / "sweep.yaml").write_text(bad)
    with pytest.raises(JobError) as caught:
        ct.load_sweep(folder / "sweep.yaml")
    said = [(problem.line, problem.hint) for problem in caught.value.problems]
    assert said == [
        (5, suggested("log")),
        (6, "raise the lower bound, or use `uniform`"),
        (8, suggested("maximize")),
        (9, suggested("bayesian")),
        (11, suggested("parallel")),
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"strategy": "grid"},
            "a grid cannot try every value of `x`, which has a continuous range",
        ),
        ({"trials": None}, "`random` never ends by itself"),
        ({"objective": None}, "`random` needs an objective"),
        ({"strategy": "hyperband"}, "hyperband needs the maximum number of reports of a trial"),
        ({"search": {}}, "`search` has no ranges"),
        ({"search": {"x": []}}, "the list has no values"),
        ({"search": {"x": [1, 1]}}, "`1` is listed twice"),
        ({"search": {"x": {"uniform": [2, 1]}}}, "the range from 2 to 1 is empty"),
        ({"search": {"x": {"log": ["1e-3", 0.0]}}}, "the range from 0.001 to 0.0 is empty"),
        (
            {"search": {"x": {"log": ["-1", "1"]}}},
            "a logarithmic range needs positive bounds, not -1.0",
        ),
        ({"search": {"x": {"log": [1, 2, 3]}}}, "`log` has 3 entries, and at most 2 are allowed"),
        (
            {"search": {"x": {"uniform": [0, float("inf")]}}},
            wrong_type("uniform[1]", "a number", "`inf`"),
        ),
        (
            {"search": {"x": {"int": [1, 4], "step": 9}}},
            "a step of 9 leads beyond the range from 1 to 4",
        ),
        ({"search": {"x": 32}}, "a range is a list or a mapping, not `32`"),
        ({"search": {"x": [1.0, float("nan")]}}, "`x[1]` cannot be `nan`: no service accepts it"),
        (
            {"search": {"x": {"int": [1, 2], "log": [1, 2]}}},
            "a range has exactly one of `log`, `uniform`, `int` and `choice`",
        ),
        ({"job": {"command": "x"}}, "a sweep sets hyperparameters, which a `command` does not get"),
    ],
)
def test_what_cannot_be_searched(change: dict[str, object], message: str) -> None:
    """Each is refused with what to write instead."""
    fields = {
        "search": {"x": {"uniform": [0, 1]}},
        "objective": {"maximize": "a"},
        "trials": 3,
        **change,
    }
    fields.setdefault("job", {"entry_point": "train.py"})
    with pytest.raises(JobError) as caught:
        ct.Sweep(name="s", **fields)
    assert message in [problem.message for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("bounds", "hint"),
    [([8, 1], "write `[1, 8]`"), ([3, 3], "write the value into the job: `3`")],
)
def test_an_empty_range_is_written_right(bounds: list[int], hint: str) -> None:
    """The hint is what to type."""
    with pytest.raises(JobError) as caught:
        ct.Sweep(
            name="s",
            job={"entry_point": "train.py"},
            search={"x": {"int": bounds}},
            objective={"maximize": "a"},
            trials=3,
        )
    assert [problem.hint for problem in caught.value.problems] == [hint]


def test_what_is_drawn_lies_in_its_range() -> None:
    """Bounds included, whole numbers by their step, choices as they are."""
    source = Random(1)
    for _ in range(500):
        assert 1e-4 <= float(str(Range(log=(1e-4, 1e-1)).draw(source))) <= 1e-1
        assert Range(int=(64, 512), step=64).draw(source) in range(64, 513, 64)
        assert Range(choice=("a", True, None, 1.5)).draw(source) in ("a", True, None, 1.5)
    assert sum(
        float(str(Range(log=(1e-4, 1.0)).draw(source))) < 1e-2 for _ in range(1000)
    ) in range(400, 600)


def test_a_grid_has_every_combination_once() -> None:
    """The last name changes first."""
    space = ct.Sweep(
        name="s",
        job={"entry_point": "t.py"},
        strategy="grid",
        search={"b": [1, 2], "a": ["x", "y", "z"]},
    ).space
    points = [space.grid_point(index) for index in range(space.grid_size)]
    assert points[:3] == [{"a": "x", "b": 1}, {"a": "x", "b": 2}, {"a": "y", "b": 1}]
    assert len({str(point) for point in points}) == 6


@pytest.mark.slow
def test_the_schema_accepts_what_the_loader_accepts() -> None:
    """For editors: `cloudtrain schema --kind sweep`."""
    schema = job_schema("sweep")
    jsonschema.Draft202012Validator.check_schema(schema)
    good = {
        "kind": "sweep", "name": "s", "job": "job.yaml", "search": {"x": [1, 2], "y": {"log": [1, 2]}},
        "objective": {"maximize": "a"}, "trials": 3,
    }  # fmt: skip
    validator = jsonschema.Draft202012Validator(schema)
    assert list(validator.iter_errors(good)) == []
    assert list(validator.iter_errors(good | {"job": {"entry_point": "t.py"}})) == []
    assert list(validator.iter_errors(good | {"paralel": 3}))
    assert list(validator.iter_errors(good | {"search": {"x": {"lgo": [1, 2]}}}))
