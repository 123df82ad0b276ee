"""Tuning jobs: submitted once with exactly the plan's request, followed, stopped, and their trials listed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

import cloudtrain as ct
from cloudtrain.cli.app import run_command
from cloudtrain.lifecycle.runs.sweep import SweepRun, sweep_of
from tests.deadlines import DEADLINE
from tests.fakes.sagemaker.runner import packed
from tests.fakes.sagemaker.server import FakeAws
from tests.targets.sagemaker.place import ROLE

pytestmark = pytest.mark.lifecycle


@pytest.fixture
def sweep(make_source: Callable[..., Path]) -> ct.Sweep:
    """One that SageMaker's tuner can do."""
    return ct.Sweep(
        name="tune",
        job={
            "name": "tune",
            "source_dir": str(make_source({"train.py": "print(1)\n"})),
            "entry_point": "train.py",
            "resources": {"instance_type": {"sagemaker": "ml.g5.xlarge"}},
            "environment": {"framework": "pytorch", "version": "2.8"},
        },
        search={"lr": {"log": [1e-4, 1e-1]}},
        objective={"maximize": "acc"},
        trials=3,
    )


@pytest.fixture
def submitted(fake: FakeAws, sweep: ct.Sweep) -> SweepRun:
    """The sweep, at the fake service."""
    assert fake.url
    return sweep_of(ct.submit(sweep, ct.SageMaker(region="eu-west-1", role=ROLE), online=False))


def trial(name: str, status: str, value: float | None, **more: Any) -> dict[str, Any]:
    """A training job of the tuner, as the service lists it."""
    final = {"MetricName": "acc", "Value": value}
    body = {
        "TrainingJobName": name,
        "TrainingJobArn": f"arn:aws:sagemaker:eu-west-1:123456789012:training-job/{name}",
        "TrainingJobStatus": status,
        "CreationTime": time.time(),
        "TunedHyperParameters": {"lr": "0.01"},
        **more,
    }
    return body if value is None else body | {"FinalHyperParameterTuningJobObjectiveMetric": final}


def test_what_is_sent_is_the_plan(fake: FakeAws, sweep: ct.Sweep, submitted: SweepRun) -> None:
    """Once, after the code."""
    (received,) = fake.operations("CreateHyperParameterTuningJob")
    request = received.body
    assert request["HyperParameterTuningJobName"] == submitted.name
    expected = ct.plan(sweep, ct.SageMaker(region="eu-west-1", role=ROLE))
    assert expected.run_name != submitted.name  # the next one
    assert (
        request["HyperParameterTuningJobConfig"]
        == expected.request["HyperParameterTuningJobConfig"]
    )
    names = [item.operation for item in fake.received]
    assert names.index("PutObject") < names.index("CreateHyperParameterTuningJob")


def test_its_trials(fake: FakeAws, submitted: SweepRun, capsys: pytest.CaptureFixture[str]) -> None:
    """With what the tuner chose, and the best of them."""
    names = [f"{submitted.name}-{number:03d}-abcd1234" for number in (1, 2, 3)]
    fake.jobs.trials[submitted.name] = [
        trial(names[0], "Completed", 0.5),
        trial(names[1], "Completed", 0.75),
        trial(names[2], "Failed", None, FailureReason="AlgorithmError: no data"),
    ]
    assert submitted.status().state is ct.RunState.RUNNING
    assert [(item.run, item.value, str(item.state)) for item in submitted.trials()] == [
        (names[0], 0.5, "succeeded"),
        (names[1], 0.75, "succeeded"),
        (names[2], None, "failed"),
    ]
    assert submitted.best is not None
    assert submitted.best.run == names[1]
    assert [line.text for line in submitted.logs()][-1] == "trial 3 failed: AlgorithmError: no data"
    assert run_command(["trials", submitted.name]) == 0
    assert "2*     succeeded  0.75" in capsys.readouterr().out


@pytest.mark.slow
def test_its_money(fake: FakeAws, sweep: ct.Sweep, capsys: pytest.CaptureFixture[str]) -> None:
    """Spent by its trials at the list price of an hour, and the most that is left."""
    job = sweep.job.model_copy(update={"max_runtime": 7200})
    target = ct.SageMaker(region="eu-west-1", role=ROLE)
    run = sweep_of(ct.submit(sweep.model_copy(update={"job": job}), target, online=False))
    now = time.time()
    price = 1.41  # an hour of ml.g5.xlarge
    fake.jobs.trials[run.name] = [
        trial("t-001", "Completed", 0.5, TrainingStartTime=now - 7200, TrainingEndTime=now - 3600),
        trial("t-002", "InProgress", None),  # waits for capacity
    ]
    cost = run.cost()
    assert cost == pytest.approx((price, 4 * price), rel=1e-3)
    assert run_command(["status", run.name]) == 0
    said = capsys.readouterr().out
    assert "$1.41 so far, up to $5.64 more, at list prices" in said
    assert "about" not in said  # what ended before it started says nothing of its pace
    assert run_command(["status", run.name, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["cost"], found["cost_left"]) == pytest.approx(cost, rel=1e-3)
    fake.jobs.trials[run.name].pop()
    fake.jobs[run.name].end("Stopped")
    assert run.cost() == pytest.approx((price, 0.0))
    assert run_command(["status", run.name]) == 0
    assert "$1.41 at list prices" in capsys.readouterr().out


@pytest.mark.slow
def test_the_log_and_the_model_of_a_trial(
    fake: FakeAws, submitted: SweepRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A trial is a training job of its own, whose model is under its own name; the values are the script's."""
    best = f"{submitted.name}-002-abcd1234"
    tuned = {"lr": "0.02", "opt": '"adam"', "name": "plain"}
    fake.jobs.trials[submitted.name] = [trial(best, "Completed", 0.75, TunedHyperParameters=tuned)]
    assert submitted.trials()[0].values == {"lr": 0.02, "opt": "adam", "name": "plain"}
    definition = fake.operations("CreateHyperParameterTuningJob")[0].body["TrainingJobDefinition"]
    machines = {**definition["HyperParameterTuningResourceConfig"]}
    fake.jobs.handle(
        "CreateTrainingJob", {**definition, "ResourceConfig": machines, "TrainingJobName": best}
    )
    uri = f"{definition['OutputDataConfig']['S3OutputPath']}/{best}/output/model.tar.gz"
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.pt").write_text("best")
    fake.s3.put(uri, packed(tmp_path / "model"))
    fake.jobs[best].enter("Training")
    fake.logs.write(f"{best}/algo-1-1700000000", "epoch 1 of the best")
    fake.jobs[best].end("Completed", ModelArtifacts={"S3ModelArtifacts": uri})
    assert run_command(["logs", submitted.name, "--trial", "1"]) == 0
    assert "epoch 1 of the best" in capsys.readouterr().out
    submitted.download("model/", tmp_path / "got")
    assert [file.read_text() for file in (tmp_path / "got").rglob("model.pt")] == ["best"]


def test_the_end(fake: FakeAws, submitted: SweepRun) -> None:
    """Asked to stop, and waited for."""
    submitted.stop()
    assert fake.operations("StopHyperParameterTuningJob")
    assert submitted.status().state is ct.RunState.STOPPING
    submitted.stop()
    assert len(fake.operations("StopHyperParameterTuningJob")) == 1
    fake.jobs[submitted.name].end("Stopped")
    assert submitted.wait(DEADLINE).state is ct.RunState.STOPPED


def ended(fake: FakeAws, run: SweepRun, *values: float) -> None:
    """The tuning job has ended after trials with these values."""
    found = [
        trial(f"{run.name}-{number:03d}-abcd", "Completed", value)
        for number, value in enumerate(values, 1)
    ]
    fake.jobs.trials[run.name] = found
    counts = {
        "Completed": len(values),
        "InProgress": 0,
        "NonRetryableError": 0,
        "Stopped": 0,
        "RetryableError": 0,
    }
    fake.jobs[run.name].end("Completed", TrainingJobStatusCounters=counts)


@pytest.mark.slow
def test_it_goes_on_as_a_tuning_job_with_a_warm_start(
    fake: FakeAws, submitted: SweepRun, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of its own name, with the same code; each names all before it, and has their trials and its own."""
    assert run_command(["continue", submitted.name, "--trials", "2"]) == 2  # it has not ended
    ended(fake, submitted, 0.5, 0.75, 0.25)
    assert run_command(["continue", submitted.name]) == 2
    assert f"`cloudtrain continue {submitted.name} --trials 10` adds ten" in capsys.readouterr().err
    assert run_command(["continue", submitted.name, "--trials", "2", "--detach"]) == 0
    said = capsys.readouterr()
    second = sweep_of(ct.run(said.out.strip()))
    assert f"`{second.name}` continues `{submitted.name}`" in said.err
    first, sent = (deepcopy(item.body) for item in fake.operations("CreateHyperParameterTuningJob"))
    assert sent.pop("WarmStartConfig") == {
        "ParentHyperParameterTuningJobs": [{"HyperParameterTuningJobName": submitted.name}],
        "WarmStartType": "IdenticalDataAndAlgorithm",
    }
    limits = sent["HyperParameterTuningJobConfig"]["ResourceLimits"]
    assert limits == {"MaxNumberOfTrainingJobs": 2, "MaxParallelTrainingJobs": 1}
    limits["MaxNumberOfTrainingJobs"] = 3
    assert json.loads(json.dumps(sent).replace(second.name, submitted.name)) == first
    ended(fake, second, 0.6)
    assert [(item.number, item.value) for item in second.trials()] == [
        (1, 0.5),
        (2, 0.75),
        (3, 0.25),
        (4, 0.6),
    ]
    assert second.best is not None
    assert second.best.number == 2
    assert second.status().metrics == {"trials": 5.0, "ended": 4.0}
    assert run_command(["status", second.name]) == 0
    assert "4 of 5 ended" in capsys.readouterr().out
    assert f"continues   {submitted.name}" in second.show().to_text()
    third = second.resume(4)
    sent = fake.operations("CreateHyperParameterTuningJob")[-1].body
    names = [
        item["HyperParameterTuningJobName"]
        for item in sent["WarmStartConfig"]["ParentHyperParameterTuningJobs"]
    ]
    assert names == [submitted.name, second.name]
    del fake.jobs.by_name[submitted.name]  # a parent that was deleted
    assert [item.value for item in third.trials()] == [0.6]


@pytest.mark.slow
def test_a_sweep_that_goes_on_prints_only_what_is_new(
    fake: FakeAws,
    submitted: SweepRun,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The trials of the tuning job that it continues were printed before."""
    ended(fake, submitted, 0.5, 0.75)
    before = [line.text for line in submitted.logs()]
    log_batches = SweepRun.log_batches

    def follow(run: SweepRun, **words: Any) -> Any:
        if run.name != submitted.name:
            ended(fake, run, 0.6)
        return log_batches(run, **words)

    monkeypatch.setattr(SweepRun, "log_batches", follow)
    assert run_command(["continue", submitted.name, "--trials", "1"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert len(before) == 4
    assert [line.split(" as ")[0] for line in printed] == [
        "trial 3 started",
        "trial 3 succeeded: acc=0.6",
    ]


@pytest.mark.slow
def test_a_followed_log_repeats_no_line(fake: FakeAws, submitted: SweepRun) -> None:
    """A trial that was the best when it ended is not printed again when another one is better."""
    names = [f"{submitted.name}-{number:03d}-abcd" for number in (1, 2)]
    fake.jobs.trials[submitted.name] = [trial(names[0], "Completed", 0.5)]
    lines = submitted.logs(follow=True)
    found = [next(lines).text, next(lines).text]
    fake.jobs.trials[submitted.name].append(trial(names[1], "Completed", 0.75))
    fake.jobs[submitted.name].end("Completed")
    found += [line.text for line in lines]
    assert found == [
        f"trial 1 started as {names[0]}: lr=0.01",
        "trial 1 succeeded: acc=0.5, the best",
        f"trial 2 started as {names[1]}: lr=0.01",
        "trial 2 succeeded: acc=0.75, the best",
    ]


def test_it_goes_on_once(
    fake: FakeAws, submitted: SweepRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that dies after the request has left: the next one finds its run and starts none."""
    ended(fake, submitted, 0.5)

    def die(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        submitted.resume(2, on_run=die)
    again = submitted.resume(2)
    assert again.adopted
    assert len(fake.operations("CreateHyperParameterTuningJob")) == 2
    assert submitted.resume(2).name != again.name


@pytest.mark.slow
def test_it_cannot_go_on(
    fake: FakeAws, sweep: ct.Sweep, capsys: pytest.CaptureFixture[str]
) -> None:
    """A grid; for more money than it may cost."""
    target = ct.SageMaker(region="eu-west-1", role=ROLE)
    grid = {"strategy": "grid", "trials": None, "search": {"lr": {"choice": [0.1, 0.2]}}}
    run = sweep_of(
        ct.submit(
            ct.Sweep(**{**sweep.model_dump(exclude_unset=True), **grid}), target, online=False
        )
    )
    ended(fake, run, 0.5, 0.75)
    assert run_command(["continue", run.name, "--trials", "3"]) == 2
    assert "not `grid`" in capsys.readouterr().err
    job = sweep.job.model_copy(update={"max_runtime": 3600})
    run = sweep_of(
        ct.submit(sweep.model_copy(update={"job": job, "max_cost": 5.0}), target, online=False)
    )
    ended(fake, run, 0.5, 0.75, 0.25)
    assert run_command(["continue", run.name, "--trials", "4"]) == 2
    assert (
        "with 4 more trials the sweep can cost $5.64, and `max_cost` is $5.00"
        in capsys.readouterr().err
    )
    assert len(fake.operations("CreateHyperParameterTuningJob")) == 2
