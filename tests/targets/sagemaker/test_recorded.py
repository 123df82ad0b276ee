"""Answers of the real service, from the public test data of aws-controllers-k8s/sagemaker-controller.

The folder `tests/golden/sagemaker_recorded` has them, with made-up accounts and one of the metrics each. What a job lacks
is an explicit null there, unlike in the answers of our own fake.
"""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import cloudtrain as ct
from cloudtrain.plans.states import RunRef, RunState
from cloudtrain.targets.sagemaker.service.service import SageMakerService
from tests.fakes.sagemaker.server import FakeAws

pytestmark = pytest.mark.lifecycle

ANSWERS: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "golden" / "sagemaker_recorded" / "answers.json").read_text()
)


def on_the_wire(value: Any, key: str = "") -> Any:
    """The test data as the service sends it: times are seconds since 1970."""
    if isinstance(value, dict):
        return {name: on_the_wire(item, name) for name, item in value.items()}
    if isinstance(value, list):
        return [on_the_wire(item, key) for item in value]
    is_time = isinstance(value, str) and key.endswith(("Time", "Timestamp"))
    return datetime.fromisoformat(value.replace("Z", "+00:00")).timestamp() if is_time else value


def status_of_answer(fake: FakeAws, service: SageMakerService, name: str) -> ct.RunStatus:
    """What we say of a job of which the service says this."""
    body = ANSWERS[name]["body"]
    fake.faults.say("DescribeTrainingJob", on_the_wire(body))
    return service.status(RunRef("sagemaker", "eu-west-1", body["TrainingJobName"]))


def test_a_job_that_has_ended(fake: FakeAws, service: SageMakerService) -> None:
    """Its phases, times, billed seconds and last metrics."""
    status = status_of_answer(fake, service, "completed")
    assert status.state is RunState.SUCCEEDED
    assert [item.phase for item in status.transitions][:3] == [
        "Starting",
        "Downloading",
        "Training",
    ]
    assert status.started is not None
    assert status.ended is not None
    assert status.ended - status.started == pytest.approx(159.44)
    assert status.metrics == {
        "train:merror": 0.06942000240087509,
        "validation:merror": 0.07729999721050262,
    }


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("downloading", RunState.PREPARING),
        ("groups", RunState.PREPARING),
        ("stopping with a debugger", RunState.STOPPING),
        ("warm pool", RunState.SUCCEEDED),
    ],
)
def test_a_job_in_another_state(
    fake: FakeAws, service: SageMakerService, name: str, state: RunState
) -> None:
    """What it lacks is null, and the phase that goes on has a null for its end."""
    assert status_of_answer(fake, service, name).state is state


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_is_adopted(name: str, tmp_path: Path) -> None:
    """Equal: nulls and the service's own defaults are no fields of a job."""
    (tmp_path / "describe.json").write_text(json.dumps(ANSWERS[name]["body"]))
    found = ct.adopt(tmp_path / "describe.json", folder=tmp_path)
    assert found.equal, [vars(item) for item in found.differences]
    assert "CompressionType" not in json.dumps(
        found.fields.get("sagemaker_overrides", {}).get("InputDataConfig", {})
    )
