"""Sending: exactly the plan's request, exactly once, and nothing of anybody else's is taken for ours."""

from __future__ import annotations

import json
from typing import Any

import pytest

import cloudtrain
from cloudtrain.errors import NameTaken, TargetError
from cloudtrain.targets.sagemaker.service.service import SageMakerService
from tests.fakes.sagemaker.server import FakeAws
from tests.targets.sagemaker.conftest import BUCKET, CODE, NAME, REF, Archive, plan_of

pytestmark = pytest.mark.lifecycle

PROCESSING: dict[str, Any] = {
    "ProcessingJobName": "prep-1",
    "RoleArn": "arn:aws:iam::123456789012:role/SageMakerRole",
    "AppSpecification": {"ImageUri": "image:1"},
    "ProcessingResources": {
        "ClusterConfig": {"InstanceCount": 1, "InstanceType": "ml.m5.xlarge", "VolumeSizeInGB": 30}
    },
    "Tags": [{"Key": "cloudtrain:run", "Value": "prep-1"}],
}


def test_the_bytes_sent(fake: FakeAws, service: SageMakerService) -> None:
    """The body is the plan's request, as boto3 writes it, and we say who we are."""
    plan = plan_of()
    assert service.submit(plan) == REF
    (received,) = fake.operations("CreateTrainingJob")
    assert received.body == plan.request
    assert received.raw == json.dumps(plan.request).encode()
    assert f"cloudtrain/{cloudtrain.__version__}" in received.headers["user-agent"]


def test_a_submission_may_be_repeated(fake: FakeAws, service: SageMakerService) -> None:
    """`ResourceInUse` for a job with our tag means that it is there already, where an earlier request may have arrived;
    otherwise it is another one."""
    assert service.submit(plan_of()) == service.submit(plan_of(), again=True) == REF
    with pytest.raises(NameTaken):
        service.submit(plan_of())
    assert list(fake.jobs.by_name) == [NAME]


@pytest.mark.parametrize("tags", [[], [{"Key": "cloudtrain:run", "Value": "other-1"}]])
def test_a_job_of_somebody_else(
    fake: FakeAws, service: SageMakerService, tags: list[dict[str, str]]
) -> None:
    """A job of our name without our tag, or with that of another run, is refused, by `has` too."""
    fake.jobs.handle("CreateTrainingJob", {**plan_of().request, "Tags": tags})
    with pytest.raises(TargetError, match="has a different training job"):
        service.submit(plan_of(), again=True)
    with pytest.raises(TargetError, match="has a different training job"):
        service.has(REF)


def test_tags_that_may_not_be_read(fake: FakeAws, service: SageMakerService) -> None:
    """Then the job itself is compared with the request: role, hyperparameters with the bundle's hash, limits."""
    service.submit(plan_of())
    fake.faults.refuse(
        "ListTags",
        "AccessDeniedException",
        "not authorized to perform: sagemaker:ListTags",
        times=9,
    )
    assert service.submit(plan_of(), again=True) == REF
    assert service.has(REF)
    with pytest.raises(TargetError, match="has a different training job"):
        service.submit(plan_of(HyperParameters={"sagemaker_program": '"other.py"'}), again=True)


def test_a_request_whose_tag_was_overridden(fake: FakeAws, service: SageMakerService) -> None:
    """It is recognised by its content."""
    assert (
        service.submit(plan_of(Tags=None)) == service.submit(plan_of(Tags=None), again=True) == REF
    )


@pytest.mark.parametrize(
    ("code", "message", "match"),
    [
        ("ResourceLimitExceeded", "The account-level service limit 'x' is 0", "quota"),
        (
            "AccessDeniedException",
            "User: ada is not authorized to perform: sagemaker:AddTags",
            "sagemaker:AddTags",
        ),
        ("ValidationException", "1 validation error detected: Value 'x'", "refuses the request"),
    ],
)
def test_a_refusal(
    fake: FakeAws, service: SageMakerService, code: str, message: str, match: str
) -> None:
    """It is passed on in our words after one try, and there is no job."""
    fake.faults.refuse("CreateTrainingJob", code, message)
    with pytest.raises(TargetError, match=match):
        service.submit(plan_of())
    assert len(fake.operations("CreateTrainingJob")) == 1
    assert not service.has(REF)


@pytest.mark.slow
def test_throttled_longer_than_patience_lasts(fake: FakeAws, service: SageMakerService) -> None:
    """The service is asked for the job before the error is passed on."""
    fake.faults.throttle("CreateTrainingJob", times=3)
    with pytest.raises(TargetError, match="Rate exceeded"):
        service.submit(plan_of())
    assert [item.operation for item in fake.received][:3] == ["CreateTrainingJob"] * 3
    assert "DescribeTrainingJob" in [item.operation for item in fake.received]


def test_a_processing_job_has_the_same_life(fake: FakeAws, service: SageMakerService) -> None:
    """Submitted, found, followed and stopped under its own operations."""
    plan = plan_of(TrainingJobName="prep-1")
    plan = type(plan)("sagemaker", "prep-1", "prep", PROCESSING, place="eu-west-1")
    ref = service.submit(plan)
    assert service.submit(plan, again=True) == ref
    assert service.has(ref)
    job = fake.jobs["prep-1"]
    job.started = job.created
    fake.logs.write("prep-1/algo-1-1", "done", group="ProcessingJobs")
    assert [line.text for line in service.logs(ref)] == ["done"]
    service.stop(ref)
    job.end("Stopped")
    assert str(service.status(ref).state) == "stopped"


def test_upload_once(fake: FakeAws, service: SageMakerService) -> None:
    """The bundle goes to its content's address, marked with its hash; the second time nothing is even written here."""
    archive = Archive()
    assert [service.upload(plan_of(), archive) for _ in range(2)] == [True, False]
    assert archive.written == 1
    item = fake.s3.get(CODE)
    assert item.data == b"code"
    assert item.headers["x-amz-meta-cloudtrain-sha256"] == "ab" * 32
    assert len(fake.operations("PutObject")) == 1


def test_an_object_that_is_not_ours_is_replaced(fake: FakeAws, service: SageMakerService) -> None:
    """Half an upload of another tool at the same address is not taken for the bundle."""
    fake.s3.put(CODE, b"")
    assert service.upload(plan_of(), Archive())
    assert fake.s3.get(CODE).data == b"code"


PART = 16 << 20


@pytest.mark.parametrize("size", [0, 1, PART - 1, PART, PART + 1, 2 * PART])
@pytest.mark.slow_after(3)
def test_what_is_there_is_known_to_be_whole(
    fake: FakeAws, service: SageMakerService, size: int
) -> None:
    """By its size and by the checksum that S3 keeps, of one part as of several; then it is not sent again."""
    archive = Archive(b"x" * size)
    assert [service.upload(plan_of(), archive) for _ in range(2)] == [True, False]
    assert fake.s3.get(CODE).checksum


@pytest.mark.slow
@pytest.mark.parametrize("size", [100, PART + 5])
@pytest.mark.parametrize("fault", ["shorter", "other bytes", "other hash", "an earlier version's"])
def test_what_is_there_and_is_not_whole_is_replaced(
    fake: FakeAws, service: SageMakerService, size: int, fault: str
) -> None:
    """Other bytes under our metadata, whoever put them there, and objects that do not say how long they should be."""
    archive = Archive(b"x" * size)
    service.upload(plan_of(), archive)
    item = fake.s3.get(CODE)
    if fault == "shorter":
        item.data = item.data[:-1]
    elif fault == "other bytes":
        item.data, item.checksum = b"y" * size, "c29tZXRoaW5nIGVsc2U="
    elif fault == "other hash":
        item.headers["x-amz-meta-cloudtrain-sha256"] = "cd" * 32
    else:
        del item.headers["x-amz-meta-cloudtrain-bytes"]
    assert [service.upload(plan_of(), archive) for _ in range(2)] == [True, False]
    assert fake.s3.get(CODE).data == archive.content


def test_a_service_without_checksums(fake: FakeAws, service: SageMakerService) -> None:
    """Where it keeps none, the size has to do."""
    service.upload(plan_of(), Archive())
    fake.s3.get(CODE).checksum = ""
    assert not service.upload(plan_of(), Archive())
    fake.s3.get(CODE).data += b"!"
    assert service.upload(plan_of(), Archive())


def test_a_key_that_only_encrypts(fake: FakeAws, service: SageMakerService) -> None:
    """Who may not use the KMS key to read is not told the checksum; the bundle is not sent twice for that."""
    plan = plan_of(OutputDataConfig={"S3OutputPath": f"s3://{BUCKET}/x", "KmsKeyId": "key-1"})
    fake.s3.may_decrypt = False
    assert [service.upload(plan, Archive()) for _ in range(2)] == [True, False]


@pytest.mark.slow
def test_a_large_bundle_goes_up_in_parts_and_tells_how_far_it_is(
    fake: FakeAws, service: SageMakerService
) -> None:
    """Parts that are lost are sent again; the last report is the whole."""
    fake.faults.close_before("UploadPart")
    content = bytes(range(256)) * (160 * 1024)
    reports: list[tuple[int, int]] = []
    assert service.upload(
        plan_of(), Archive(content), on_bytes=lambda *report: reports.append(report)
    )
    assert fake.s3.get(CODE).data == content
    assert len(fake.operations("UploadPart")) == 4
    assert reports[-1] == (len(content), len(content))
    assert all(0 <= sent <= total for sent, total in reports)


def test_encryption_and_the_owner_of_the_bucket(fake: FakeAws, service: SageMakerService) -> None:
    """The output's key encrypts the code too, and the default bucket must be the account's own."""
    plan = plan_of(OutputDataConfig={"S3OutputPath": f"s3://{BUCKET}/x", "KmsKeyId": "key-1"})
    service.upload(plan, Archive())
    headers = fake.operations("PutObject")[0].headers
    assert headers["x-amz-server-side-encryption-aws-kms-key-id"] == "key-1"
    assert headers["x-amz-expected-bucket-owner"] == "123456789012"
    fake.s3.buckets[BUCKET].owner = "999999999999"
    with pytest.raises(TargetError, match="may not do `s3:PutObject`"):
        service.upload(plan, Archive(sha256="cd" * 32))


def test_no_such_bucket(fake: FakeAws, service: SageMakerService) -> None:
    """The hint makes it."""
    del fake.s3.buckets[BUCKET]
    with pytest.raises(TargetError, match=f"no bucket `{BUCKET}`") as caught:
        service.upload(plan_of(), Archive())
    assert caught.value.hint is not None
    assert f"aws s3 mb s3://{BUCKET} --region eu-west-1" in caught.value.hint
