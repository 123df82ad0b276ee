"""Two fake clouds in one environment, and lists of alternatives whose watcher runs in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import cloudtrain as ct
from cloudtrain.lifecycle.capacity.service import CapacityService
from cloudtrain.lifecycle.detached.driven import DrivenFolder
from cloudtrain.lifecycle.watcher import watch
from tests.fakes.azureml import FakeAzure
from tests.fakes.sagemaker.server import FakeAws
from tests.targets.azureml.place import INSTANCE
from tests.targets.azureml.place import TARGET as AZUREML
from tests.targets.sagemaker.place import ROLE

SAGEMAKER = ct.SageMaker(region="eu-west-1", role=ROLE)
AZURE_SETTINGS = {
    name: getattr(AZUREML, name) for name in ("subscription_id", "resource_group", "workspace")
}

Live = Callable[[int, Any], None]
"""What becomes of a job: called with its number, over both clouds, and the job."""


@dataclass
class Clouds:
    """What both fakes got, in order."""

    aws: FakeAws
    azure: FakeAzure
    created: list[Any] = field(default_factory=list)
    live: Live = lambda number, job: job.enter("Training")

    def on_create(self, job: Any) -> None:
        self.created.append(job)
        self.live(len(self.created), job)


@pytest.fixture
def clouds(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clouds]:
    pytest.importorskip("boto3")
    pytest.importorskip("azure.identity")
    with FakeAws() as aws, FakeAzure() as azure:
        both = {**aws.environ, **azure.environ, "CLOUDTRAIN_WATCH_INTERVAL": "0.02"}
        for name, value in both.items():
            monkeypatch.setenv(name, value)
        clouds = Clouds(aws, azure)
        aws.jobs.on_create = azure.jobs.on_create = clouds.on_create
        yield clouds


@pytest.fixture
def source(make_source: Callable[..., Path]) -> Path:
    return make_source({"train.py": "print(1)\n"})


def listed(source: Path, *alternatives: Any, **fields: Any) -> ct.TrainingJob:
    """A job for either cloud, with alternatives. `limits` are further fields of `capacity`."""
    limits = fields.pop("limits", {})
    return ct.TrainingJob(
        name="train",
        source_dir=str(source),
        entry_point="train.py",
        resources={"instance_type": {"sagemaker": "ml.g5.xlarge", "azureml": INSTANCE}},
        environment={"framework": "pytorch", "version": "2.8"},
        max_runtime="1h",
        capacity={"alternatives": alternatives, **limits},
        **fields,
    )


@pytest.fixture
def driven(monkeypatch: pytest.MonkeyPatch, state_dir: Path) -> Callable[..., ct.Run]:
    """Submits a list, and drives it here until it has settled."""
    monkeypatch.setattr(CapacityService, "_start", lambda _self, _folder: None)

    def drive(run: ct.Run, moment: Callable[[str], None] = lambda _: None) -> None:
        watch(DrivenFolder(state_dir, "chain", run.name), lambda: None, moment)

    def submit(job: ct.TrainingJob, target: Any = SAGEMAKER, **options: Any) -> ct.Run:
        moment = options.pop("moment", lambda _: None)
        run = ct.submit(job, target, online=False, **options)
        drive(run, moment)
        return run

    submit.drive = drive  # type: ignore[attr-defined]
    return submit
