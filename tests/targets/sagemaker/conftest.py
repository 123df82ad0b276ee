"""A fake AWS account, a service that talks to it, and a plan to send there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.plans.plan import Plan, Upload
from cloudtrain.plans.states import RunRef
from cloudtrain.targets.sagemaker.service.service import SageMakerService
from tests.fakes.sagemaker.jobs import Job
from tests.fakes.sagemaker.server import FakeAws
from tests.targets.sagemaker.place import QUICK, ROLE

BUCKET = "sagemaker-eu-west-1-123456789012"
CODE = f"s3://{BUCKET}/cloudtrain/code/{'ab' * 32}/sourcedir.tar.gz"
NAME = "digits-3f9a1c22-1"
REF = RunRef("sagemaker", "eu-west-1", NAME)

REQUEST: dict[str, Any] = {
    "TrainingJobName": NAME,
    "RoleArn": ROLE,
    "AlgorithmSpecification": {"TrainingInputMode": "File", "TrainingImage": "image:1"},
    "HyperParameters": {
        "sagemaker_program": '"train.py"',
        "sagemaker_submit_directory": f'"{CODE}"',
    },
    "OutputDataConfig": {"S3OutputPath": f"s3://{BUCKET}/cloudtrain/output"},
    "ResourceConfig": {"InstanceCount": 2, "InstanceType": "ml.g5.12xlarge", "VolumeSizeInGB": 30},
    "StoppingCondition": {"MaxRuntimeInSeconds": 3600},
    "Tags": [{"Key": "team", "Value": "vision"}, {"Key": "cloudtrain:run", "Value": NAME}],
}


@dataclass
class Archive:
    """The user's code."""

    content: bytes = b"code"
    sha256: str = "ab" * 32
    written: int = field(default=0)

    def write(self, path: Path) -> None:
        self.written += 1
        path.write_bytes(self.content)


def plan_of(**changes: Any) -> Plan:
    """A plan whose request is `REQUEST` with changes; a None takes a field out."""
    request = {key: value for key, value in {**REQUEST, **changes}.items() if value is not None}
    upload = Upload("code", "ab" * 32, CODE, 4, 1)
    return Plan(
        "sagemaker",
        request["TrainingJobName"],
        "digits",
        request,
        uploads=(upload,),
        place="eu-west-1",
    )


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAws]:
    """The account, to which boto3 in this process talks."""
    with FakeAws() as service:
        for name, value in service.environ.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "3")
        yield service


@pytest.fixture
def service(fake: FakeAws, tmp_path: Path) -> SageMakerService:
    """A service as a new process has it, in a hurry."""
    return SageMakerService({**fake.environ, "AWS_MAX_ATTEMPTS": "3"}, QUICK)


@pytest.fixture
def job(fake: FakeAws, service: SageMakerService) -> Job:
    """A job that was submitted and is starting."""
    service.submit(plan_of())
    return fake.jobs[NAME]
