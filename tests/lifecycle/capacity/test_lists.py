"""Lists of alternatives on a fake cloud: each ends as the table of the target's words says, with one run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cloudtrain as ct
from cloudtrain.plans.states import RunState
from tests.deadlines import DEADLINE
from tests.fakes.sagemaker.faults import Refused
from tests.fakes.sagemaker.server import FakeAws
from tests.targets.places import eventually
from tests.targets.sagemaker.place import ROLE

pytestmark = pytest.mark.lifecycle

QUOTA = (
    "The account-level service limit 'ml.g5.xlarge for training job usage' is 0 Instances, with current "
    "utilization of 0 Instances and a request delta of 1 Instances. Please contact AWS support to request "
    "an increase for this limit."
)
NONE_LEFT = (
    "CapacityError: Unable to provision requested ML compute capacity. Please retry using a different ML "
    "instance type."
)


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("boto3")
    with FakeAws() as fake:
        for name, value in {**fake.environ, "CLOUDTRAIN_WATCH_INTERVAL": "0.05"}.items():
            monkeypatch.setenv(name, value)
        yield fake


@pytest.fixture
def source(make_source: Callable[..., Path]) -> Path:
    return make_source({"train.py": "print(1)\n"})


SAGEMAKER = ct.SageMaker(region="eu-west-1", role=ROLE)


def listed(source: Path, *alternatives: Any, **fields: Any) -> ct.TrainingJob:
    """A job with alternatives."""
    return ct.TrainingJob(
        name="train",
        source_dir=str(source),
        entry_point="train.py",
        resources={"instance_type": {"sagemaker": "ml.g5.xlarge"}},
        environment={"framework": "pytorch", "version": "2.8"},
        max_runtime="1h",
        capacity={"alternatives": alternatives, **fields.pop("capacity", {})},
        **fields,
    )


def submit(job: ct.TrainingJob) -> ct.Run:
    return ct.submit(job, SAGEMAKER, online=False)


G4 = {"set": ["resources.instance_type.sagemaker=ml.g4dn.xlarge"]}


def test_next_type(aws: FakeAws, source: Path) -> None:
    """EC2 has none of the first type; the second runs, and is the run of the list."""
    created: list[Any] = []

    def live(job: Any) -> None:
        created.append(job)
        if len(created) == 1:
            job.end("Failed", FailureReason=NONE_LEFT)
        else:
            job.enter("Training")

    aws.jobs.on_create = live
    job = listed(source, G4)
    plan = ct.plan(job, SAGEMAKER)
    print(plan)
    run = submit(job)
    assert run.name == plan.run_name
    eventually(lambda: len(created) == 2)
    eventually(lambda: run.status().state is RunState.RUNNING)
    print(run.status())
    created[1].end("Completed")
    assert run.wait(DEADLINE).state is RunState.SUCCEEDED
    assert len(created) == 2
    requests = [attempt["request"] for attempt in plan.request["tries"]]
    assert [item.request["ResourceConfig"] for item in created] == [
        request["ResourceConfig"] for request in requests
    ]
