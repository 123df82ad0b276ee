"""Sweep jobs: submitted once with exactly the plan's body, their trials listed, followed and stopped; the best one
downloaded."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

import cloudtrain as ct
from cloudtrain.cli.app import run_command
from cloudtrain.lifecycle.runs.sweep import SweepRun, sweep_of
from tests.deadlines import DEADLINE
from tests.fakes.azureml import FakeAzure
from tests.targets.azureml.place import INSTANCE, TARGET

pytestmark = pytest.mark.lifecycle


@pytest.fixture
def sweep(make_source: Callable[..., Path]) -> ct.Sweep:
    """One that the service can do."""
    return ct.Sweep(
        name="tune",
        job={
            "source_dir": str(make_source({"train.py": "print(1)\n"})),
            "entry_point": "train.py",
            "resources": {"instance_type": {"azureml": INSTANCE}},
            "environment": {"framework": "pytorch", "version": "2.8"},
        },
        search={"lr": {"log": [1e-4, 1e-1]}, "opt": ["adam", "sgd"]},
        objective={"maximize": "acc"},
        trials=4,
        parallel=2,
    )


@pytest.fixture
def submitted(fake: FakeAzure, sweep: ct.Sweep) -> SweepRun:
    """The sweep, at the fake service."""
    return sweep_of(ct.submit(sweep, TARGET, online=False))


@pytest.fixture
def run(fake: FakeAzure, submitted: SweepRun) -> SweepRun:
    """With four trials: one that ended, a better one, one that failed, and one that runs."""
    add = fake.jobs.add_trial
    add(submitted.name, {"--lr": 0.01, "--opt": "adam"}, acc=0.5, loss=1.0).end("Completed")
    add(submitted.name, {"lr": "0.02", "opt": "sgd"}, acc=0.75).end("Completed")
    add(submitted.name, {"lr": 0.03, "opt": "sgd"}).end("Failed", error="no such data")
    add(submitted.name, {"lr": 0.04, "opt": "sgd"}, acc=0.9)
    return submitted


def test_what_is_sent_is_the_plan(fake: FakeAzure, sweep: ct.Sweep, submitted: SweepRun) -> None:
    """Once, with the version of the API that knows sweeps, after the code."""
    puts = [str(item) for item in fake.received("PUT", "{WS}")]
    (put,) = fake.received("PUT", "/jobs/")
    assert put.query["api-version"] == "2024-01-01-preview"
    assert puts[-1] == f"PUT {{WS}}/jobs/{submitted.name}"
    assert any("/codes/" in item for item in puts[:-1])
    planned = ct.plan(sweep, TARGET)  # the next one, whose name differs
    assert put.body == json.loads(planned.request_json.replace(planned.run_name, submitted.name))


def test_its_trials(run: SweepRun, capsys: pytest.CaptureFixture[str]) -> None:
    """By number, page by page, with the values as the script gets them, without the run that prepares the code."""
    assert [
        (item.number, item.run, dict(item.values), item.value, str(item.state))
        for item in run.trials()
    ] == [
        (1, f"{run.name}_0", {"lr": 0.01, "opt": "adam"}, 0.5, "succeeded"),
        (2, f"{run.name}_1", {"lr": 0.02, "opt": "sgd"}, 0.75, "succeeded"),
        (3, f"{run.name}_2", {"lr": 0.03, "opt": "sgd"}, None, "failed"),
        (4, f"{run.name}_3", {"lr": 0.04, "opt": "sgd"}, 0.9, "running"),
    ]
    assert run.best is not None
    assert run.best.number == 2
    assert run_command(["trials", run.name, "--csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(row["trial"], row["values.lr"], row["reason"]) for row in rows][2] == (
        "3",
        "0.03",
        "no such data",
    )
    assert run_command(["status", run.name]) == 0
    said = capsys.readouterr().out
    assert "3 of 4 ended, 1 running, 1 failed" in said
    assert "trial 2: acc=0.75" in said
    assert " so far, " in said
    assert " at list prices" in said


@pytest.mark.slow
def test_its_log(fake: FakeAzure, run: SweepRun) -> None:
    """A line for each start and each end; with `follow` until the sweep has ended."""
    fake.jobs[f"{run.name}_3"].end("Completed")
    fake.jobs[run.name].end("Completed")
    lines = [line.text for line in run.logs(follow=True)]
    assert lines[0] == f"trial 1 started as {run.name}_0: lr=0.01 opt=adam"
    assert lines[-2:] == [
        f"trial 4 started as {run.name}_3: lr=0.04 opt=sgd",
        "trial 4 succeeded: acc=0.9, the best",
    ]
    assert "trial 3 failed: no such data" in lines
    assert run_command(["logs", run.name, "--rank", "0"]) == 2


@pytest.mark.slow
def test_the_log_and_the_model_of_a_trial(
    fake: FakeAzure, run: SweepRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A trial is a job of its own; what is downloaded is the best one's."""
    best = f"{run.name}_1"
    fake.logs.write(best, "user_logs/std_log.txt", "epoch 1 of the best")
    fake.outputs.write(best, "model", "model.pt", b"best")
    assert run_command(["logs", run.name, "--trial", "2"]) == 0
    assert "epoch 1 of the best" in capsys.readouterr().out
    run.download("model/", tmp_path / "got")
    assert [file.read_bytes() for file in (tmp_path / "got").rglob("*.pt")] == [b"best"]


@pytest.mark.slow
def test_a_metric_that_is_never_reported_or_no_number(fake: FakeAzure, submitted: SweepRun) -> None:
    """Each ends with a sentence, and is not the best."""
    fake.jobs.add_trial(submitted.name, {"lr": 0.1}, loss=1.0).end("Completed")
    fake.jobs.add_trial(submitted.name, {"lr": 0.2}, acc=math.nan).end("Completed")
    assert [item.reason for item in submitted.trials()] == [
        "the script reported no `acc`, or ended with one that is no number",
        "the script reported no `acc`, or ended with one that is no number",
    ]
    assert submitted.best is None
    assert run_command(["download", submitted.name]) == 2


def test_the_end(fake: FakeAzure, run: SweepRun, capsys: pytest.CaptureFixture[str]) -> None:
    """Asked to stop, once, and waited for; a sweep costs nothing itself, and takes no more trials."""
    fake.jobs.cancel_lingers = True
    run.stop()
    run.stop()
    assert len(fake.received("POST", "/cancel")) == 1
    assert run.status().state is ct.RunState.STOPPING
    fake.jobs[run.name].end("Canceled")
    status = run.wait(DEADLINE)
    assert (status.state, status.cost, status.billable_seconds) == (ct.RunState.STOPPED, None, None)
    assert run_command(["continue", run.name, "--trials", "3"]) == 2
    said = capsys.readouterr().err
    assert "CT064" in said
    assert "`driver: cloudtrain`" in said


def test_a_sweep_without_a_trial_yet(
    submitted: SweepRun, capsys: pytest.CaptureFixture[str]
) -> None:
    """Says so."""
    assert submitted.trials() == []
    assert run_command(["trials", submitted.name]) == 0
    assert "has started no trial yet" in capsys.readouterr().err
