"""Sweeps that this machine drives on a cloud: each trial is a job of its own, with its own checkpoints and model."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import cloudtrain as ct
from cloudtrain.cli.app import run_command
from cloudtrain.lifecycle.runs.sweep import sweep_of
from tests.deadlines import DEADLINE
from tests.fakes.azureml import FakeAzure
from tests.fakes.sagemaker.runner import packed
from tests.fakes.sagemaker.server import FakeAws
from tests.targets.azureml.place import INSTANCE
from tests.targets.azureml.place import TARGET as AZUREML
from tests.targets.sagemaker.place import ROLE

pytestmark = [pytest.mark.lifecycle, pytest.mark.slow]

SAGEMAKER = ct.SageMaker(region="eu-west-1", role=ROLE)
RATES = {"0.01": 0.25, "0.1": 0.75, "0.2": 0.5}
"""What the trial with that rate reports in the end."""


@dataclass
class Cloud:
    """A fake whose jobs report their accuracy, leave their rate as the model, and end at once."""

    target: Any
    environ: dict[str, str]
    machine: str
    job: dict[str, Any]
    places: dict[str, str] = field(default_factory=dict)
    """Name of each job to where its checkpoints go."""


def sagemaker(folder: Path) -> Iterator[Cloud]:
    with FakeAws() as fake:
        places: dict[str, str] = {}

        def live(job: Any) -> None:
            rate = json.loads(job.request["HyperParameters"]["lr"])
            places[job.name] = job.request["CheckpointConfig"]["S3Uri"]
            job.enter("Training")
            fake.logs.write(f"{job.name}/algo-1-1700000000", f"epoch 1: acc={RATES[str(rate)]}")
            uri = f"{job.request['OutputDataConfig']['S3OutputPath'].rstrip('/')}/{job.name}/output/model.tar.gz"
            (folder / job.name).mkdir()
            (folder / job.name / "rate.txt").write_text(str(rate))
            fake.s3.put(uri, packed(folder / job.name))
            job.end("Completed", ModelArtifacts={"S3ModelArtifacts": uri})

        fake.jobs.on_create = live
        job = {"checkpoint": {"sagemaker": "s3://data/ckpt"}, "metrics": {"acc": "acc=([0-9.]+)"}}
        yield Cloud(
            SAGEMAKER, {**fake.environ, "AWS_MAX_ATTEMPTS": "3"}, "ml.g5.xlarge", job, places
        )


def azureml(folder: Path) -> Iterator[Cloud]:
    with FakeAzure() as fake:
        places: dict[str, str] = {}

        def live(job: Any) -> None:
            found = re.search(r"--lr (\S+)", job.properties["command"])
            assert found
            places[job.name] = job.properties["outputs"]["checkpoint"]["uri"]
            job.enter("Running")
            fake.logs.write(
                job.name, "user_logs/std_log.txt", f"[metrics] step=1 acc={RATES[found[1]]}"
            )
            fake.outputs.write(job.name, "model", "rate.txt", found[1].encode())
            job.end("Completed")

        fake.jobs.on_create = live
        place = {"checkpoint": {"azureml": "azureml://datastores/workspaceblobstore/paths/ckpt"}}
        yield Cloud(AZUREML, fake.environ, INSTANCE, place, places)


@pytest.fixture(params=[sagemaker, azureml], ids=lambda make: make.__name__)
def cloud(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Cloud]:
    """Each cloud, to which this process and the driver are led."""
    (tmp_path / "models").mkdir()
    for cloud in request.param(tmp_path / "models"):
        for name, value in cloud.environ.items():
            monkeypatch.setenv(name, value)
        yield cloud


def test_a_sweep_that_is_driven_from_here(
    cloud: Cloud,
    make_source: Callable[..., Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The plan says why. Three jobs, three places, one best; the list of runs has one line, or all."""
    sweep = ct.Sweep(
        name="tune",
        job={
            "source_dir": str(make_source({"train.py": "print(1)\n"})),
            "entry_point": "train.py",
            "resources": {"instance_type": {cloud.target.type: cloud.machine}},
            "environment": {"framework": "pytorch", "version": "2.8"},
            **cloud.job,
        },
        search={"lr": [0.01, 0.1, 0.2]},
        objective={"maximize": "acc"},
        strategy="grid",
        parallel=2,
    )
    driver = dict(ct.plan(sweep, cloud.target).summary)["driver"]
    assert driver.startswith("cloudtrain, on this machine: ")
    assert "one address" in driver
    run = sweep_of(ct.submit(sweep, cloud.target, online=False))
    status = run.wait(DEADLINE)
    assert (status.state, status.reason) == (ct.RunState.SUCCEEDED, None)
    names = [f"{run.name}-t{number:03d}" for number in (1, 2, 3)]
    assert [(item.run, item.values["lr"], item.value) for item in run.trials()] == [
        (names[0], 0.01, 0.25),
        (names[1], 0.1, 0.75),
        (names[2], 0.2, 0.5),
    ]
    cost = run.cost()
    assert cost is not None
    assert cost.spent >= 0
    assert cost.left == 0
    given = next(iter(cloud.job["checkpoint"].values()))
    assert cloud.places == {name: f"{given}/{name}" for name in names}
    assert len({run.trial(number).written["model"] for number in (1, 2, 3)}) == 3
    run.download("model/", tmp_path / "best")
    assert [file.read_text() for file in (tmp_path / "best").rglob("rate.txt")] == ["0.1"]
    assert run_command(["ps", "--trials", "--json"]) == 0
    assert sorted(row["name"] for row in json.loads(capsys.readouterr().out)) == sorted(
        [run.name, *names]
    )
    assert run_command(["logs", run.name, "--trial", "3"]) == 0
    assert "acc=0.5" in capsys.readouterr().out


def test_failed_trials_run_again_only_within_max_cost(
    make_source: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What the failed trials have cost counts."""
    with FakeAws() as fake:
        for name, value in fake.environ.items():
            monkeypatch.setenv(name, value)
        fake.jobs.on_create = lambda job: job.end(
            "Failed", FailureReason="boom", BillableTimeInSeconds=3600
        )
        sweep = ct.Sweep(
            name="tune",
            job={
                "source_dir": str(make_source({"train.py": "print(1)\n"})),
                "entry_point": "train.py",
                "resources": {"instance_type": {"sagemaker": "ml.g5.xlarge"}},
                "environment": {"framework": "pytorch", "version": "2.8"},
                "max_runtime": "1h",
            },
            search={"lr": [0.01, 0.1]},
            strategy="grid",
            max_cost=4.0,
        )
        run = sweep_of(ct.submit(sweep, SAGEMAKER, online=False))
        assert run.wait(DEADLINE).state is ct.RunState.FAILED
        assert run_command(["rerun", run.name]) == 2
        assert (
            "with 2 more trials the sweep can cost $5.64, and `max_cost` is $4.00"
            in capsys.readouterr().err
        )
        assert len(fake.operations("CreateTrainingJob")) == 2
