"""Two clouds with a run that goes on, and a job that reads what it writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import cloudtrain as ct
from tests.fakes.azureml import FakeAzure
from tests.fakes.sagemaker.server import FakeAws
from tests.targets.azureml.place import INSTANCE
from tests.targets.azureml.place import TARGET as AZUREML
from tests.targets.sagemaker.place import ROLE


@dataclass
class Cloud:
    """A fake service, and what leads to it."""

    target: Any
    machine: str
    fake: Any
    created: list[Any] = field(default_factory=list)
    """Every job that it got, as often as it got it."""

    def job(self, name: str, source: Path, **fields: Any) -> ct.TrainingJob:
        """A job for it."""
        return ct.TrainingJob(
            name=name,
            source_dir=str(source),
            entry_point="train.py",
            resources={"instance_type": {self.target.type: self.machine}},
            environment={"framework": "pytorch", "version": "2.8"},
            **fields,
        )

    def reader(self, source: Path, of: str) -> ct.TrainingJob:
        """A job that reads the model of a run."""
        return self.job("train", source, inputs={"model": {self.target.type: f"run:{of}/model"}})

    def submit(self, job: ct.TrainingJob) -> ct.Run:
        """Without the questions to the account, which the fakes' empty accounts do not all answer well."""
        return ct.submit(job, self.target, online=False)

    def end(self, run: ct.Run, state: str = "Completed") -> None:
        """The service ends a job."""
        job = self.fake.jobs[run.name]
        if state != "Failed":
            job.end(state)
        elif isinstance(self.fake, FakeAws):
            job.end(state, FailureReason="AlgorithmError: no data")
        else:
            job.end(state)

    @property
    def names(self) -> list[str]:
        """The names of the jobs that it got."""
        return [job.name for job in self.created]


def _sagemaker() -> Iterator[Cloud]:
    pytest.importorskip("boto3")
    with FakeAws() as fake:
        yield Cloud(ct.SageMaker(region="eu-west-1", role=ROLE), "ml.m5.xlarge", fake)


def _azureml() -> Iterator[Cloud]:
    pytest.importorskip("azure.identity")
    with FakeAzure() as fake:
        yield Cloud(AZUREML, INSTANCE, fake)


@pytest.fixture(params=[_sagemaker, _azureml], ids=["sagemaker", "azureml"])
def cloud(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    """Each cloud, to which this process and the watchers are led."""
    for cloud in request.param():
        for name, value in {**cloud.fake.environ, "CLOUDTRAIN_WATCH_INTERVAL": "0.05"}.items():
            monkeypatch.setenv(name, value)
        cloud.fake.jobs.on_create = cloud.created.append
        yield cloud


@pytest.fixture
def source(make_source: Callable[..., Path]) -> Path:
    """The code of both jobs."""
    return make_source({"train.py": "print(1)\n"})


@pytest.fixture
def first(cloud: Cloud, source: Path) -> ct.Run:
    """A run that goes on."""
    return cloud.submit(cloud.job("prepare", source))
