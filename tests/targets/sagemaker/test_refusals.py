"""Every error of AWS that a user can meet becomes one of ours, with something to type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import botocore.exceptions as theirs  # noqa: TID253
import pytest
from botocore.parsers import ResponseParserError  # noqa: TID253

from cloudtrain.errors import NameTaken, RunNotFound, SettingsError, TargetError, TargetUnreachable
from cloudtrain.targets.common.services import Denied, Expired, NotThere
from cloudtrain.targets.sagemaker.aws_errors import FailedCall, error_templates, translate_error
from cloudtrain.targets.sagemaker.service.service import SageMakerService
from tests.fakes.sagemaker.server import FakeAws
from tests.targets.sagemaker.conftest import REF, plan_of

CALL = FailedCall("sagemaker", "CreateTrainingJob", "eu-west-1", "research", "digits-1")


def answered(code: str, message: str = "", status: int = 400) -> theirs.ClientError:
    response: Any = {
        "Error": {"Code": code, "Message": message},
        "ResponseMetadata": {"HTTPStatusCode": status},
    }
    return theirs.ClientError(response, "CreateTrainingJob")


@pytest.mark.parametrize("code", error_templates("codes"))
def test_every_code(code: str) -> None:
    """One line, without a final stop, with the service's own words where it has some, and a hint that can be typed."""
    error = translate_error(answered(code, "Because it is so.\n  Really."), CALL)
    assert isinstance(error, TargetError)
    assert "\n" not in error.message
    assert not error.message.endswith(".")
    assert "{" not in error.message + (error.hint or "")
    assert error.hint or isinstance(error, NotThere)


@pytest.mark.parametrize(
    ("code", "message", "kind", "part", "hint"),
    [
        ("ResourceInUse", "", NameTaken, "`digits-1`", "another name"),
        (
            "ResourceLimitExceeded",
            "The account-level service limit 'ml.p4d.24xlarge for training job usage' is 0 Instances",
            TargetError, "is 0 Instances", "`ml.p4d.24xlarge for training job usage` in Service Quotas",
        ),
        ("AccessDeniedException", "User is not authorized", Denied, "User is not authorized", "sagemaker:CreateTrainingJob"),
        ("ValidationException", "1 validation error detected", TargetError, "1 validation error", "cloudtrain check"),
        ("ValidationException", "Requested resource not found.", NotThere, "digits-1", ""),
        ("ThrottlingException", "Rate exceeded", TargetUnreachable, "Rate exceeded", "again"),
        ("ExpiredTokenException", "", Expired, "expired", "`aws sso login --profile research`"),
        ("UnrecognizedClientException", "bad token", TargetError, "does not accept", "aws sts get-caller-identity"),
        ("SomethingNew", "who knows", TargetError, "(SomethingNew): who knows", ""),
    ],
)  # fmt: skip
def test_what_is_said(code: str, message: str, kind: type, part: str, hint: str) -> None:
    """The words that matter."""
    error = translate_error(answered(code, message), CALL)
    assert type(error) is kind
    assert part in error.message
    assert hint in (error.hint or "")


def test_an_unknown_code_of_a_broken_service_may_be_tried_again() -> None:
    """By its HTTP status."""
    assert type(translate_error(answered("Oops", status=503), CALL)) is TargetUnreachable


EXCEPTIONS: list[tuple[Exception, type, str]] = [
    (theirs.NoCredentialsError(), TargetError, "aws sso login --profile research"),
    (theirs.PartialCredentialsError(provider="env", cred_var="x"), TargetError, "aws configure"),
    (theirs.ProfileNotFound(profile="research"), SettingsError, "aws configure list-profiles"),
    (theirs.NoRegionError(), SettingsError, "`region`"),
    (theirs.InvalidRegionError(region_name="x y"), SettingsError, "`region`"),
    (theirs.EndpointConnectionError(endpoint_url="https://x"), TargetUnreachable, "network"),
    (theirs.ConnectTimeoutError(endpoint_url="https://x"), TargetUnreachable, "network"),
    (theirs.ReadTimeoutError(endpoint_url="https://x"), TargetUnreachable, "network"),
    (theirs.ConnectionClosedError(endpoint_url="https://x"), TargetUnreachable, "network"),
    (theirs.ProxyConnectionError(proxy_url="https://x"), TargetUnreachable, "proxy"),
    (theirs.SSLError(endpoint_url="https://x", error="self-signed"), TargetError, "AWS_CA_BUNDLE"),
    (theirs.SSOTokenLoadError(error_msg="no token"), Expired, "aws sso login --profile research"),
    (theirs.UnauthorizedSSOTokenError(), Expired, "aws sso login --profile research"),
    (
        theirs.TokenRetrievalError(provider="sso", error_msg="old"),
        Expired,
        "aws sso login --profile research",
    ),
    (
        theirs.CredentialRetrievalError(provider="process", error_msg="exit 1"),
        TargetError,
        "aws configure",
    ),
    (theirs.ParamValidationError(report="Unknown parameter"), TargetError, "upgrade boto3"),
    (theirs.IncompleteReadError(actual_bytes=1, expected_bytes=2), TargetUnreachable, ""),
    (ResponseParserError("not XML"), TargetUnreachable, "again"),
    (theirs.UnknownServiceError(service_name="x", known_service_names=""), TargetError, ""),
]


@pytest.mark.parametrize(
    ("error", "kind", "hint"), EXCEPTIONS, ids=lambda value: type(value).__name__
)
def test_what_never_reached_the_service(error: Exception, kind: type, hint: str) -> None:
    """Missing credentials, no network, a wrong profile."""
    ours = translate_error(error, CALL)
    assert type(ours) is kind
    assert hint in (ours.hint or "")
    assert "\n" not in ours.message


def test_no_credentials(fake: FakeAws, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Said through the service, before anything is sent."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(TargetError, match="no AWS credentials") as caught:
        SageMakerService({}, None).submit(plan_of())
    assert "aws sso login" in (caught.value.hint or "")
    assert fake.received == []


def test_expired_credentials_are_read_again(
    fake: FakeAws, service: SageMakerService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One refusal makes a new session, which finds the credentials that a login has left meanwhile."""
    service.submit(plan_of())
    fake.faults.refuse(
        "DescribeTrainingJob", "ExpiredTokenException", "The security token is expired"
    )
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDNEW")
    assert not service.status(REF).state.is_final
    before, after = (
        item.headers["authorization"] for item in fake.operations("DescribeTrainingJob")
    )
    assert "AKIDEXAMPLE" in before
    assert "AKIDNEW" in after


def test_credentials_that_stay_expired(fake: FakeAws, service: SageMakerService) -> None:
    """After one new session it is an error that says how to log in."""
    fake.faults.refuse("DescribeTrainingJob", "ExpiredToken", times=2)
    with pytest.raises(TargetError, match="have expired") as caught:
        service.status(REF)
    assert "aws sso login" in (caught.value.hint or "")


def test_who_may_not_look_at_processing_jobs(fake: FakeAws, service: SageMakerService) -> None:
    """Has none: a run that is no training job does not exist, so that a broken submission can be forgotten."""
    fake.faults.refuse("DescribeProcessingJob", "AccessDeniedException", "not authorized", times=9)
    assert not service.has(REF)
    with pytest.raises(RunNotFound):
        service.status(REF)


def test_an_unknown_run(fake: FakeAws, service: SageMakerService) -> None:
    """Whether the service says so with one error code or with the other."""
    with pytest.raises(RunNotFound, match="eu-west-1"):
        service.status(REF)
    for operation in ("DescribeTrainingJob", "DescribeProcessingJob"):
        fake.faults.refuse(operation, "ResourceNotFound", "no such job")
    with pytest.raises(RunNotFound):
        service.status(REF)


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_SAGEMAKER"])
def test_an_endpoint_without_its_scheme(
    variable: str, fake: FakeAws, service: SageMakerService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot be talked to; what is missing is named."""
    monkeypatch.setenv(variable, "localhost:4566")
    with pytest.raises(SettingsError, match="localhost:4566") as caught:
        service.status(REF)
    assert "`http://`" in (caught.value.hint or "")
