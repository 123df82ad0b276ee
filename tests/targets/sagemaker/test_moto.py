"""Against moto's server, a second opinion on what is sent: S3 with parts and keys, and requests by the dozen."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3  # noqa: TID253
import pytest
from moto.server import ThreadedMotoServer

from cloudtrain.plans.plan import Plan
from cloudtrain.targets.sagemaker.service.service import SageMakerService
from tests.targets.sagemaker.conftest import BUCKET, CODE, Archive, plan_of

GOLDEN = sorted((Path(__file__).parents[2] / "golden/sagemaker_sdk_v2").glob("*.json"))


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The address of a moto server."""
    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    host, port = moto.get_host_and_port()
    url = f"http://{host}:{port}"
    s3 = boto3.client(
        "s3", "eu-west-1", endpoint_url=url, aws_access_key_id="A", aws_secret_access_key="B"
    )
    s3.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    yield url
    moto.stop()


@pytest.fixture(scope="module")
def one_backend(server: str, tmp_path_factory: pytest.TempPathFactory) -> SageMakerService:
    """One for all tests: its clients take a third of a second to make."""
    return SageMakerService({}, None)


@pytest.fixture
def service(
    server: str, one_backend: SageMakerService, monkeypatch: pytest.MonkeyPatch
) -> SageMakerService:
    """A service that talks to moto."""
    environ = {"AWS_ENDPOINT_URL": server, "AWS_ACCESS_KEY_ID": "A", "AWS_SECRET_ACCESS_KEY": "B"}
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    return one_backend


@pytest.mark.slow
def test_upload_in_parts_with_a_key(service: SageMakerService) -> None:
    """The parts are one object again, encrypted with the key, and it is not sent twice."""
    plan = plan_of(OutputDataConfig={"S3OutputPath": f"s3://{BUCKET}/x", "KmsKeyId": "alias/mine"})
    content = bytes(range(256)) * (80 * 1024)
    assert service.upload(plan, Archive(content))
    assert not service.upload(plan, Archive(content))
    key = CODE.removeprefix(f"s3://{BUCKET}/")
    found = boto3.client("s3", "eu-west-1").get_object(Bucket=BUCKET, Key=key)
    assert found["Body"].read() == content
    assert (found["ServerSideEncryption"], found["SSEKMSKeyId"]) == ("aws:kms", "alias/mine")


def _requests() -> list[Any]:
    found = []
    for file in GOLDEN:
        request = json.loads(file.read_text()).get("request") or {}
        if "TrainingJobName" in request:
            found.append(pytest.param(request, id=file.stem))
    return found


@pytest.mark.parametrize("request_of_the_sdk", _requests())
@pytest.mark.slow_after(20)
def test_requests_are_accepted(
    service: SageMakerService, request_of_the_sdk: dict[str, Any]
) -> None:
    """What the SageMaker SDK sends goes through our client unchanged, and is a job that has ended, as moto has it."""
    name = request_of_the_sdk["TrainingJobName"]
    plan = Plan("sagemaker", name, name, request_of_the_sdk, place="eu-west-1")
    service.submit(plan)
    assert str(service.status(plan.ref).state) == "succeeded"
