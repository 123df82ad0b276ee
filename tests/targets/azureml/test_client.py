"""Requests to a workspace: repeated as the service asks, paged, and quick to start."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from cloudtrain.errors import TargetError, TargetUnreachable
from cloudtrain.targets.azureml.service.client import COMPUTE, JOB, WORKSPACE, Client
from tests.fakes.azureml import FakeAzure

pytestmark = pytest.mark.lifecycle

METHODS = ("GET", "PUT", "POST", "PATCH", "DELETE")


def ask(client: Client, method: str) -> None:
    """Something about a job that there is not."""
    client.send(
        method,
        "jobs/nobody",
        api_version=JOB,
        content=None if method in ("GET", "DELETE") else b"{}",
    )


def test_paths(fake: FakeAzure, client: Client) -> None:
    """Of the workspace, of the resource manager, and whole addresses."""
    place = f"/subscriptions/{fake.subscription_id}/providers/Microsoft.MachineLearningServices/locations/eastus"
    assert client.get("", api_version=WORKSPACE)["name"] == "ws"
    assert client.get(f"{place}/vmSizes", api_version=COMPUTE)
    assert client.get(f"{fake.url}{fake.workspace_id}", api_version=WORKSPACE)["name"] == "ws"
    assert [request.short for request in fake.requests[1:]] == [
        "{WS}", "{SUB}/providers/Microsoft.MachineLearningServices/locations/eastus/vmSizes", "{WS}",
    ]  # fmt: skip


def test_a_name_with_signs_in_it(fake: FakeAzure, client: Client) -> None:
    """Stays one part of the path."""
    with pytest.raises(TargetError):
        client.get("jobs/a b#c?d&e%f", api_version=JOB)
    assert fake.requests[-1].path.endswith("/jobs/a b#c?d&e%f")
    assert fake.requests[-1].query == {"api-version": JOB}
    with pytest.raises(TargetError):
        client.history("runs/a b#c?d&e%f/details")
    assert fake.requests[-1].path.endswith("/runs/a b#c?d&e%f/details")


def test_pages(fake: FakeAzure, client: Client) -> None:
    """All of them, each when it is wanted."""
    fake.computes.page_size = 1
    pages = client.pages("computes", api_version=COMPUTE)
    assert [item["name"] for item in next(pages)] == ["gpu-cluster"]
    assert len(fake.received("GET", "/computes")) == 1
    assert [item["name"] for page in pages for item in page] == ["cpu-cluster"]


def test_the_workspaces_own_services_are_looked_up_once(fake: FakeAzure, client: Client) -> None:
    """The document that names them is open to everybody, and gets no token."""
    for _ in range(2):
        with pytest.raises(TargetError):
            client.history("runs/nobody/details")
    (discovery,) = fake.received("GET", "^/discovery$")
    assert "authorization" not in discovery.headers
    assert len(fake.received("GET", r"^\{WS\}$")) == 1


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("fault", ["close_before", "close_after", "unavailable", "throttle"])
@pytest.mark.slow_after(6)
def test_every_kind_of_request_is_repeated(
    fake: FakeAzure, client: Client, method: str, fault: str
) -> None:
    """A POST whose answer was lost too, which azure-core alone gives up."""
    options = {"retry_after": None} if fault == "throttle" else {}
    getattr(fake.faults, fault)(method, "/jobs/nobody", 2, **options)
    with pytest.raises(TargetError) as caught:
        ask(client, method)
    assert not isinstance(caught.value, TargetUnreachable)
    assert len(fake.received(method, "/jobs/nobody")) == 3


@pytest.mark.slow
@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_a_service_that_stays_broken(fake: FakeAzure, client: Client, status: int) -> None:
    """Is tried eight times, and may be tried again later."""
    fake.faults.unavailable("GET", "/jobs/nobody", 99, status=status)
    with pytest.raises(TargetUnreachable):
        ask(client, "GET")
    assert len(fake.received("GET", "/jobs/nobody")) == 8


@pytest.mark.parametrize("status", [400, 403, 404, 409])
def test_a_refusal_is_not_repeated(fake: FakeAzure, client: Client, status: int) -> None:
    """It would be the same again."""
    fake.faults.refuse("GET", "/jobs/nobody", status, "Whatever", times=9)
    with pytest.raises(TargetError):
        ask(client, "GET")
    assert len(fake.received("GET", "/jobs/nobody")) == 1


def test_half_an_answer(fake: FakeAzure, client: Client) -> None:
    """Is asked for again."""
    fake.faults.cut("GET", r"^\{WS\}$", after=20)
    assert client.get("", api_version=WORKSPACE)["name"] == "ws"


def test_somebody_elses_certificate(
    fake: FakeAzure, monkeypatch: pytest.MonkeyPatch, client: Client
) -> None:
    """Is not trusted, and the hint says how a proxy's can be."""
    monkeypatch.delenv("REQUESTS_CA_BUNDLE")
    with pytest.raises(TargetError, match="not trusted") as caught:
        client.get("", api_version=WORKSPACE)
    assert "REQUESTS_CA_BUNDLE" in (caught.value.hint or "")
    assert not isinstance(caught.value, TargetUnreachable)


def test_certificates_that_are_not_there(
    fake: FakeAzure, monkeypatch: pytest.MonkeyPatch, client: Client
) -> None:
    """The variable names no file: said, without a traceback."""
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/nowhere/ca.pem")
    with pytest.raises(TargetError, match=r"/nowhere/ca\.pem") as caught:
        client.get("", api_version=WORKSPACE)
    assert "REQUESTS_CA_BUNDLE" in (caught.value.hint or "")


def test_nobody_listens(fake: FakeAzure, client: Client) -> None:
    """A closed port is tried again, and may be tried later."""
    with pytest.raises(TargetUnreachable, match="does not answer"):
        client.get("https://localhost:1/x", api_version=JOB)


def test_a_name_that_cannot_be_resolved(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Says that it is the address, and what private endpoints have to do with it."""

    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(TargetUnreachable, match="cannot be found") as caught:
        client.send("GET", "https://nowhere.invalid/x", is_signed=False)
    assert "private endpoint" in (caught.value.hint or "")


SCRIPT = """
import sys
import cloudtrain.targets.azureml.target, cloudtrain.targets.azureml.service.service
print([name for name in sys.modules if name.split(".")[0] in ("azure", "requests", "msal")])
from cloudtrain.targets.azureml.service.service import AzureMLService
import os
try:
    AzureMLService(os.environ, None).status(__import__("cloudtrain.plans.states").plans.states.RunRef("azureml", sys.argv[1], "x"))
except Exception as error:
    print(type(error).__name__)
print([name for name in sys.modules if name.startswith("azure.ai") or name == "azure.storage.blob"])
"""


@pytest.mark.slow
def test_what_is_imported(fake: FakeAzure) -> None:
    """Nothing of Azure before the first question; for `status`, no SDK and no storage."""
    place = f"{fake.subscription_id}:rg:ws"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, place], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["[]", "RunNotFound", "[]"]
