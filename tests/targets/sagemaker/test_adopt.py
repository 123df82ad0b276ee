"""`cloudtrain adopt sagemaker://REGION/NAME`: a job of the account, with its code where it can be read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import cloudtrain as ct
from cloudtrain.documents.archives import archive_of, files_of
from tests.adoption.test_requests import SAGEMAKER
from tests.fakes.sagemaker.s3 import Bucket, Object
from tests.fakes.sagemaker.server import FakeAws
from tests.targets.sagemaker.conftest import plan_of

pytest.importorskip("boto3")


def archive() -> bytes:
    """The code of the job."""
    return archive_of({"train.py": b"print(1)\n"})


def sent(fake: FakeAws) -> str:
    """A job of the SDK, in the account; where its code lies."""
    from cloudtrain.targets.sagemaker.service.service import SageMakerService

    request = {**SAGEMAKER["pt_torchdist"], "Tags": [{"Key": "team", "Value": "vision"}]}
    SageMakerService(fake.environ).submit(plan_of(**request))
    return str(json.loads(request["HyperParameters"]["sagemaker_submit_directory"]))


def test_a_job_of_the_account_is_adopted(fake: FakeAws, tmp_path: Path) -> None:
    """Request, tags and code, all of them the job's own."""
    bucket, _, key = sent(fake).removeprefix("s3://").partition("/")
    fake.s3.buckets[bucket] = Bucket("us-west-2", "123456789012", {key: Object(archive())})
    found = ct.adopt(
        f"sagemaker://us-west-2/{SAGEMAKER['pt_torchdist']['TrainingJobName']}", folder=tmp_path
    )
    assert found.equal
    assert (found.job.tags, found.job.source_dir) == ({"team": "vision"}, "code")
    assert found.code is not None
    assert dict(files_of(found.code)) == {"train.py": b"print(1)\n"}


def test_code_that_is_gone(fake: FakeAws, tmp_path: Path) -> None:
    """The job file says where the code was."""
    place = sent(fake)
    found = ct.adopt(
        f"sagemaker://us-west-2/{SAGEMAKER['pt_torchdist']['TrainingJobName']}", folder=tmp_path
    )
    assert found.equal
    assert found.code is None
    assert place in found.job_text


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("sagemaker://us-west-2/no-such-job", "CT974"),
        ("slurm://here/job", "CT975"),
        ("://", "CT933"),
    ],
)
def test_no_such_job(source: str, code: str, fake: FakeAws) -> None:
    """A typed error."""
    with pytest.raises(ct.CloudtrainError) as caught:
        ct.adopt(source)
    assert caught.value.code == code
