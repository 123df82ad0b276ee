"""Checks that ask the account: what is wrong is found, what may not be looked at is a warning, nothing is changed."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from typing import Any

import pytest

import cloudtrain as ct
from cloudtrain.plans.plan import Finding
from cloudtrain.rules.engine import registered
from cloudtrain.targets.sagemaker.service.service import SageMakerService
from tests.fakes.sagemaker.server import FakeAws
from tests.targets.sagemaker.conftest import BUCKET, plan_of

INPUTS = [
    {
        "ChannelName": "train",
        "DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": "s3://data/cifar/"}},
    }
]
JOB = ct.TrainingJob(name="digits", entry_point="train.py")
READING = {
    "GetCallerIdentity", "GetRole", "ListServiceQuotas", "HeadBucket", "ListObjectsV2",
}  # fmt: skip


def check(fake: FakeAws, service: SageMakerService, **changes: Any) -> list[Finding]:
    """The findings for the request with an input, and never anything but questions."""
    plan = plan_of(InputDataConfig=INPUTS, **changes)
    found = service.check(JOB, ct.SageMaker(), plan)
    assert {item.operation for item in fake.received} <= READING
    return found


@pytest.fixture(autouse=True)
def account(fake: FakeAws) -> None:
    """An account in which everything is right."""
    fake.s3.put("s3://data/cifar/part-1", b"x")
    fake.identity.quotas |= {
        "a for training job usage": 1,
        "b": 2,
        "ml.g5.12xlarge for training job usage": 2,
    }


def test_all_is_well(fake: FakeAws, service: SageMakerService) -> None:
    """No finding, and everything was looked at."""
    assert check(fake, service) == []
    assert {item.operation for item in fake.received} == READING


def test_the_role_has_to_read_the_secrets(fake: FakeAws, service: SageMakerService) -> None:
    """IAM is asked about the role, and never for a value."""
    places = {"HF": "secretsmanager:prod/hf#token", "KEY": "ssm:/keys/wandb"}
    plan = plan_of(Environment={"CLOUDTRAIN_SECRETS": json.dumps(places)})
    assert service.check(JOB, ct.SageMaker(), plan) == []
    fake.identity.denied = {
        "secretsmanager:GetSecretValue arn:aws:secretsmanager:eu-west-1:123456789012:secret:prod/hf-??????",
        "ssm:GetParameter arn:aws:ssm:eu-west-1:123456789012:parameter/keys/wandb",
    }
    found = service.check(JOB, ct.SageMaker(), plan)
    assert [(item.code, item.path) for item in found] == [
        ("SM522", ("environment", "secrets", "HF")), ("SM522", ("environment", "secrets", "KEY"))
    ]  # fmt: skip
    assert "secretsmanager:GetSecretValue" in (found[0].hint or "")
    assert "GetSecretValue" not in {item.operation for item in fake.received}


def _trust(service: str, effect: str = "Allow") -> dict[str, Any]:
    statement = {
        "Effect": effect,
        "Principal": {"Service": [service]},
        "Action": ["sts:AssumeRole"],
    }
    return {"Statement": statement}


CASES: dict[str, tuple[Callable[[FakeAws], object], str, str]] = {
    "no role": (lambda fake: fake.identity.roles.clear(), "SM903", "there is no role `SageMakerRole`"),
    "role of another account": (
        lambda fake: setattr(fake.identity, "account", "999999999999"), "SM903", "belongs to the account 123456789012",
    ),
    "trusts EC2": (
        lambda fake: fake.identity.roles.update(SageMakerRole=_trust("ec2.amazonaws.com")), "SM904", "does not trust",
    ),
    "denies": (
        lambda fake: fake.identity.roles.update(SageMakerRole=_trust("sagemaker.amazonaws.com", "Deny")), "SM904", "trust",
    ),
    "no bucket": (lambda fake: fake.s3.buckets.pop(BUCKET), "SM905", f"no bucket `{BUCKET}`"),
    "bucket elsewhere": (
        lambda fake: setattr(fake.s3.buckets[BUCKET], "region", "us-east-1"), "SM906", "is in `us-east-1`",
    ),
    "no input": (lambda fake: fake.s3.buckets["data"].objects.clear(), "SM907", "nothing under `s3://data/cifar/`"),
    "no bucket of the input": (lambda fake: fake.s3.buckets.pop("data"), "SM905", "no bucket `data`"),
    "quota": (
        lambda fake: fake.identity.quotas.update({"ml.g5.12xlarge for training job usage": 1}), "SM908", "the job needs 2",
    ),
    "no quota": (
        lambda fake: fake.identity.quotas.update({"ml.g5.12xlarge for training job usage": 0}), "SM908", "may use 0 of",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
@pytest.mark.slow_after(5)
def test_found(fake: FakeAws, service: SageMakerService, case: str) -> None:
    """One finding, at the level of its rule, with a hint."""
    spoil, code, part = CASES[case]
    spoil(fake)
    (found,) = check(fake, service)
    assert (found.code, found.level) == (code, registered[code].level)
    assert part in found.message
    assert found.hint


def test_spot_has_a_quota_of_its_own(fake: FakeAws, service: SageMakerService) -> None:
    """The one for training jobs does not help."""
    fake.identity.quotas["ml.g5.12xlarge for spot training job usage"] = 0
    (found,) = check(fake, service, EnableManagedSpotTraining=True)
    assert "spot training job usage" in found.message


@pytest.mark.slow
@pytest.mark.parametrize("operation", sorted(READING - {"GetCallerIdentity"}))
def test_what_may_not_be_looked_at(
    fake: FakeAws, service: SageMakerService, operation: str
) -> None:
    """A warning that names the permission; the other checks go on."""
    code = (
        "AccessDenied"
        if operation in ("GetRole", "HeadBucket", "ListObjectsV2")
        else "AccessDeniedException"
    )
    fake.faults.refuse(operation, code, f"not authorized: {operation}", status=403, times=9)
    (found,) = check(fake, service)
    assert (found.code, str(found.level)) == ("SM902", "warning")
    assert operation in found.message


@pytest.mark.parametrize("code", ["ExpiredToken", "InvalidClientTokenId"])
def test_credentials_that_do_not_work(fake: FakeAws, service: SageMakerService, code: str) -> None:
    """One error, and nothing else is asked."""
    fake.faults.refuse("GetCallerIdentity", code, times=9)
    (found,) = check(fake, service)
    assert found.code == "SM901"
    assert {item.operation for item in fake.received} == {"GetCallerIdentity"}


@pytest.mark.slow
def test_an_endpoint_that_drops_packets(
    fake: FakeAws, service: SageMakerService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All questions share one deadline, and the warning says that it cut them."""
    monkeypatch.setenv("CLOUDTRAIN_CHECK_TIMEOUT", "1.5")
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, and never answers
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", f"http://127.0.0.1:{silent.getsockname()[1]}")
        (found,) = check(fake, service)
    assert (found.code, str(found.level)) == ("SM902", "warning")
    assert "within 1.5 s" in found.message
    assert "--offline" in (found.hint or "")


@pytest.mark.slow
def test_one_service_that_does_not_answer(
    fake: FakeAws, service: SageMakerService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the others found is told all the same."""
    fake.s3.buckets["data"].objects.clear()
    # in which the others answer on a busy machine, too
    monkeypatch.setenv("CLOUDTRAIN_CHECK_TIMEOUT", "30")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL_IAM", f"http://127.0.0.1:{silent.getsockname()[1]}")
        found = check(fake, service)
    assert {item.code for item in found} == {"SM902", "SM907"}
    late = next(item.message for item in found if item.code == "SM902")
    assert "AWS gave no answer about the role within" in late


def test_a_quota_that_is_not_listed(fake: FakeAws, service: SageMakerService) -> None:
    """Nobody knows then whether the job may start, which is no success."""
    fake.identity.quotas.clear()
    (found,) = check(fake, service)
    assert (found.code, found.path) == ("SM902", ("resources", "instance_count"))
    assert "for training job usage" in found.message


def test_no_network(fake: FakeAws, service: SageMakerService) -> None:
    """One warning: a plan can be checked on a train."""
    fake.faults.close_before("*", times=99)
    (found,) = check(fake, service)
    assert (found.code, str(found.level)) == ("SM902", "warning")
