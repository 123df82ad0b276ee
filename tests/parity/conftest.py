"""Skips everything here where the SDK is missing; otherwise cuts the network and quietens the SDK's own warnings."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import pytest

from tests.parity.wire import Wire

Sent = Callable[[Any, dict[str, Any]], dict[str, Any]]
"""Runs `fit` of an estimator with these arguments, and returns the request that was sent."""

SDK_WARNINGS = (
    "ignore::DeprecationWarning",
    "ignore::PendingDeprecationWarning",
    "ignore::FutureWarning",
    "ignore::UserWarning",
    "ignore::pydantic.warnings.PydanticDeprecatedSince20",
)
"""Raised by the SDKs about themselves and their dependencies. Tests of this folder alone let them pass."""


SDKS = {3: "sagemaker-train", 2: "sagemaker", "azureml": "azure-ai-ml"}
"""What the marker `parity` names, and the package that has it: a version of SageMaker's SDK, or Azure ML's."""


@cache
def sdk_version() -> int | str | None:
    """The SDK that is installed here: one of `SDKS`."""
    for sdk, package in SDKS.items():
        try:
            version(package)
        except PackageNotFoundError:
            continue
        return sdk
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Every test that needs an SDK runs where that one is installed."""
    for item in items:
        if "tests/parity" not in item.path.as_posix():
            continue
        for warning in SDK_WARNINGS:
            item.add_marker(pytest.mark.filterwarnings(warning))
        wanted = next((mark.args[0] for mark in item.iter_markers("parity") if mark.args), None)
        if wanted is not None and wanted != sdk_version():
            item.add_marker(pytest.mark.skip(reason=f"needs {SDKS[wanted]}"))


LOOKUPS: list[str] = []
"""Names of hosts that something other than botocore looked for: telemetry."""


@pytest.fixture(scope="session")
def no_other_host() -> Iterator[None]:
    """There is no other host in the world. Until the end, because version 3 sends telemetry from threads."""
    getaddrinfo = socket.getaddrinfo

    def look_up(host: str, *more: Any, **others: Any) -> Any:
        if host == "127.0.0.1":  # the server of another test
            return getaddrinfo(host, *more, **others)
        LOOKUPS.append(host)
        raise socket.gaierror(f"the network is cut: {host}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", look_up)
        yield


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch, no_other_host: None) -> Wire:
    """The network, cut below botocore and at the resolver, and credentials that nobody will check."""
    from botocore.httpsession import URLLib3Session

    wire = Wire()
    monkeypatch.setattr(URLLib3Session, "send", lambda session, request: wire.send(request))
    for name, value in {
        "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_EC2_METADATA_DISABLED": "true",
        "SAGEMAKER_SUPPRESS_V2_WARNING": "1",
    }.items():
        monkeypatch.setenv(name, value)
    return wire


@pytest.fixture
def session(wire: Wire) -> Any:
    """A session of the SDK without any configuration, made once for all tests.

    It is quick: with any configuration, such as the one of the session that cloudtrain makes, both SDKs validate their
    whole schema some twenty times for each job, which takes a second. It also sends telemetry.
    """
    return session_of("us-west-2")


@cache
def session_of(region: str) -> Any:
    """The same for a region. Sends nothing by itself; needs the fixture `wire` when it is used."""
    from boto3 import Session as Boto

    boto = Boto(
        region_name=region, aws_access_key_id="AKIAIOSFODNN7EXAMPLE", aws_secret_access_key="secret"
    )
    if sdk_version() == 2:
        from sagemaker.session import Session

        return Session(boto_session=boto)
    from sagemaker.core.helper.session_helper import Session as Session3

    return Session3(boto_session=boto, default_bucket="my-bucket")


@pytest.fixture
def sent(wire: Wire) -> Sent:
    """Run `fit` of an estimator; the one request that CreateTrainingJob received."""

    def fit(estimator: Any, arguments: dict[str, Any]) -> dict[str, Any]:
        estimator.fit(**arguments, wait=False)
        for_telemetry = ["sts:GetCallerIdentity"]
        assert wire.calls == ["sagemaker:CreateTrainingJob", *for_telemetry]
        return wire.training_jobs.pop()

    return fit
