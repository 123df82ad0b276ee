"""The rest of the fake Azure ML: who is let in, versions, the workspace, clusters, quotas, datastores, sign-in, faults."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode

import pytest

from tests.deadlines import DEADLINE
from tests.fakes.azureml import FakeAzure
from tests.fakes.azureml.identity import read_claims
from tests.fakes.azureml.messages import Request
from tests.fakes.conftest import Answer, Caller

pytestmark = pytest.mark.lifecycle

COMPUTE, STORE, WORKSPACE = "2023-08-01-preview", "2024-10-01-preview", "2024-10-01-preview"
Submit = Callable[..., Answer]


def test_without_a_token_nobody_is_let_in(call: Caller) -> None:
    """401 with a challenge: no token, one that nobody gave, one whose time is over, one for somebody else."""
    codes = []
    old = call.token(seconds=-1)
    for token in (None, "a.b.c", old, call.token("https://storage.azure.com")):
        answer = call("GET", "{WS}/jobs", token=token)
        assert (answer.status, answer.headers["www-authenticate"].startswith("Bearer ")) == (
            401,
            True,
        )
        codes.append(answer.error["code"])
    assert codes == [
        "AuthenticationFailed", "InvalidAuthenticationToken", "ExpiredAuthenticationToken",
        "InvalidAuthenticationTokenAudience",
    ]  # fmt: skip
    assert call("GET", "{WS}/jobs", token=call.token("https://management.azure.com/")).status == 200


def test_versions_are_those_of_the_real_client(call: Caller) -> None:
    """Another one, or none, is 400 in ARM's words."""
    unknown, missing = (
        call("GET", "{WS}/jobs", version="2030-01-01"),
        call("GET", "{WS}/jobs", version=None),
    )
    assert (unknown.status, unknown.error["code"]) == (400, "NoRegisteredProviderFound")
    assert "2025-01-01-preview" in unknown.error["message"]
    assert (missing.status, missing.error["code"]) == (400, "MissingApiVersionParameter")


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/subscriptions/1/resourceGroups/rg/providers/x/workspaces/ws", "SubscriptionNotFound"),
        ("{SUB}/resourceGroups/other/providers/x/workspaces/ws", "ResourceGroupNotFound"),
        ("{SUB}/resourceGroups/rg/providers/x/workspaces/other/jobs", "ResourceNotFound"),
        ("{WS}/nope", "NotFound"),
    ],
)
def test_what_is_not_in_this_subscription(call: Caller, path: str, code: str) -> None:
    """404 in ARM's words."""
    answer = call("GET", path)
    assert (answer.status, answer.error["code"]) == (404, code)


def test_the_workspace_leads_to_run_history(fake: FakeAzure, call: Caller) -> None:
    """By an address that needs no token."""
    found = call("GET", "{WS}", version=WORKSPACE).body
    assert (found["name"], found["location"]) == ("ws", "eastus")
    services = call("GET", found["properties"]["discoveryUrl"], version=None, token=None).body
    assert services["history"] == fake.url


def test_everything_can_have_other_names() -> None:
    """Subscription, group, workspace and location."""
    with FakeAzure("1234", "group", "space", "westeurope") as fake:
        path = "/subscriptions/1234/resourceGroups/group/providers/Microsoft.MachineLearningServices/workspaces/space"
        assert fake.workspace_id == path
        assert Caller(fake)("GET", path, version=WORKSPACE).body["location"] == "westeurope"


def test_clusters(fake: FakeAzure, call: Caller) -> None:
    """Sizes in upper case, bounds, state; in pages; 404 for others."""
    fake.computes.add(
        "spot", "Standard_NC24ads_A100_v4", most=2, priority="LowPriority", state="Failed"
    )
    found = call("GET", "{WS}/computes/spot", version=COMPUTE).body["properties"]
    assert (found["computeType"], found["provisioningState"]) == ("AmlCompute", "Failed")
    assert found["properties"]["vmSize"] == "STANDARD_NC24ADS_A100_V4"
    assert found["properties"]["scaleSettings"]["maxNodeCount"] == 2
    assert found["properties"]["vmPriority"] == "LowPriority"
    fake.computes.page_size = 2
    first = call("GET", "{WS}/computes", version=COMPUTE).body
    second = call("GET", first["nextLink"], version=None).body
    assert [item["name"] for item in first["value"] + second["value"]] == [
        "gpu-cluster",
        "cpu-cluster",
        "spot",
    ]
    missing = call("GET", "{WS}/computes/nope", version=COMPUTE)
    assert (missing.status, missing.raw) == (404, b"")


def test_sizes_usages_and_quotas(fake: FakeAzure, call: Caller) -> None:
    """Of the location."""
    fake.computes.quotas[0].used = 96
    places = "{SUB}/providers/Microsoft.MachineLearningServices/locations/eastus"
    sizes = call("GET", f"{places}/vmSizes", version=COMPUTE).body["value"]
    assert (sizes[0]["gpus"], sizes[0]["estimatedVMPrices"]["values"][0]["retailPrice"]) == (
        8,
        98.32,
    )
    usages = {
        item["name"]["value"]: item
        for item in call("GET", f"{places}/usages", version=COMPUTE).body["value"]
    }
    family = usages["standardNDISRH100V5Family"]
    assert (family["currentValue"], family["limit"]) == (96, 192)
    assert usages["TotalDedicatedCores"]["currentValue"] == 96
    assert len(call("GET", f"{places}/quotas", version=COMPUTE).body["value"]) == 3


def test_skus_say_more_to_those_who_may(fake: FakeAzure, call: Caller) -> None:
    """GPUs and RDMA; 403 to others."""
    path = "{SUB}/providers/Microsoft.Compute/skus"
    first = call("GET", path, version="2021-07-01").body["value"][0]
    capabilities = {item["name"]: item["value"] for item in first["capabilities"]}
    assert (capabilities["GPUs"], capabilities["RdmaEnabled"]) == ("8", "True")
    fake.computes.skus_allowed = False
    assert call("GET", path, version="2021-07-01").status == 403


@pytest.mark.parametrize(
    ("secrets", "kind", "key"),
    [("sas", "Sas", "sasToken"), ("key", "AccountKey", "key"), ("none", None, None)],
)
def test_secrets_of_datastores(
    fake: FakeAzure, call: Caller, secrets: Any, kind: str | None, key: str | None
) -> None:
    """A signature, the account's key, or none at all."""
    fake.datastores["workspaceblobstore"].secrets = secrets
    path = "{WS}/datastores/workspaceblobstore"
    properties = call("GET", path, version=STORE).body["properties"]
    answer = call(
        "POST",
        f"{path}/listSecrets",
        {"expirableSecret": True, "expireAfterHours": 1},
        version=STORE,
    )
    if kind is None:
        assert properties["credentials"] == {"credentialsType": "None"}
        assert (answer.status, answer.error["message"]) == (
            400,
            "No secrets for credentials of type None.",
        )
    else:
        assert properties["accountName"] == fake.blobs.account_name
        assert answer.body["secretsType"] == kind
        assert answer.body[key]
        assert answer.body[key].startswith("?") == (secrets == "sas")


def test_the_default_datastore_is_found(call: Caller) -> None:
    """By a list with one entry."""
    found = call("GET", "{WS}/datastores?isDefault=true", version=STORE).body["value"]
    assert [item["name"] for item in found] == ["workspaceblobstore"]
    assert len(call("GET", "{WS}/datastores", version=STORE).body["value"]) == 2
    assert call("GET", "{WS}/datastores/nope", version=STORE).status == 404


def ask_for_token(fake: FakeAzure, **headers: str) -> dict[str, Any]:
    query = urlencode({"api-version": "2019-08-01", "resource": fake.url})
    request = urllib.request.Request(
        f"{fake.environ['IDENTITY_ENDPOINT']}?{query}", headers=headers
    )
    with urllib.request.urlopen(request, timeout=DEADLINE) as response:
        found: dict[str, Any] = json.load(response)
        return found


def test_tokens_are_given_to_those_who_know_the_header(fake: FakeAzure, call: Caller) -> None:
    """They say for whom and how long, are counted, and are let in; without the header, or an identity, there is none."""
    header = {"X-IDENTITY-HEADER": fake.environ["IDENTITY_HEADER"]}
    fake.identity.lifetime = 120
    asked = int(time.time())
    token = ask_for_token(fake, **header)["access_token"]
    claims = read_claims(token)
    assert claims["aud"] == fake.url
    assert asked <= claims["exp"] - 120 <= time.time()
    assert call("GET", "{WS}/jobs", token=token).status == 200
    assert fake.identity.asked == [fake.url]
    with pytest.raises(HTTPError, match="401"):
        ask_for_token(fake)
    fake.identity.refuses = True
    with pytest.raises(HTTPError, match="400"):
        ask_for_token(fake, **header)


def test_requests_are_kept_as_they_came(fake: FakeAzure, submit: Submit) -> None:
    """Method, path, query, headers, bytes."""
    submit("j1", command="échö")
    (request,) = fake.received("PUT", r"^\{WS\}/jobs/j1$")
    assert str(request) == "PUT {WS}/jobs/j1"
    assert request.path == f"{fake.workspace_id}/jobs/j1"
    assert request.query == {"api-version": "2025-01-01-preview"}
    assert request.headers["authorization"].startswith("Bearer ")
    assert request.body["properties"]["command"] == "échö"
    assert json.loads(request.raw) == request.body


def test_faults_come_once_each_and_in_order(fake: FakeAzure, submit: Submit) -> None:
    """429 with Retry-After, then an outage, then it works."""
    fake.faults.throttle("PUT", "/jobs/j1$", retry_after=2)
    fake.faults.unavailable("PUT", "/jobs/j1$", status=500)
    assert submit("j2").status == 201
    answers = [submit("j1") for _ in range(3)]
    assert [answer.status for answer in answers] == [429, 500, 201]
    assert answers[0].headers["retry-after"] == "2"
    fake.faults.forbid("*", "", times=9)
    fake.faults.clear()
    assert submit("j3").status == 201


@pytest.mark.parametrize(("order", "made"), [("close_before", False), ("close_after", True)])
def test_a_connection_is_dropped_before_or_after_the_work(
    fake: FakeAzure, submit: Submit, order: str, made: bool
) -> None:
    """The client hears nothing either way."""
    getattr(fake.faults, order)("PUT", "/jobs/j1$")
    with pytest.raises((http.client.RemoteDisconnected, ConnectionError, OSError)):
        submit("j1")
    assert ("j1" in fake.jobs.by_name) == made


def test_a_body_is_cut(fake: FakeAzure, call: Caller) -> None:
    """The length is that of the whole, and less comes."""
    fake.blobs.put("azureml", "a", b"0123456789")
    fake.faults.cut("GET", "/azureml/a$", after=4)
    with pytest.raises(http.client.IncompleteRead) as raised:
        call("GET", fake.blobs.sas_url("azureml", "a"), version=None, token=None)
    assert raised.value.partial == b"0123"


def test_an_answer_is_slow(fake: FakeAzure, call: Caller) -> None:
    """So many seconds."""
    fake.faults.slow("GET", "/jobs$", 0.2)
    began = time.monotonic()
    call("GET", "{WS}/jobs")
    assert time.monotonic() - began >= 0.2


def test_callbacks_see_requests_before_and_after_the_work(fake: FakeAzure, submit: Submit) -> None:
    """So a test can end a process at any of them."""
    seen: list[tuple[str, bool]] = []

    def look(moment: str) -> Callable[[Request], object]:
        return lambda request: seen.append((moment, "j1" in fake.jobs.by_name))

    fake.before("PUT", "/jobs/", look("before"))
    fake.after("PUT", "/jobs/", look("after"))
    submit("j1")
    fake.clear_hooks()
    submit("j2")
    assert seen == [("before", False), ("after", True)]


def test_a_process_that_is_killed_in_a_request_leaves_the_service_well(
    fake: FakeAzure, call: Caller
) -> None:
    """The work is done, nobody is there for the answer, and the next one is served."""
    script = (
        "import http.client, os, ssl, sys\n"
        "context = ssl.create_default_context(cafile=os.environ['SSL_CERT_FILE'])\n"
        "connection = http.client.HTTPSConnection(sys.argv[1], context=context)\n"
        "connection.request('PUT', sys.argv[2], sys.argv[3], {'Authorization': 'Bearer ' + sys.argv[4]})\n"
        "connection.getresponse()\n"
    )
    path = f"{fake.workspace_id}/jobs/j1?api-version=2025-01-01-preview"
    body = json.dumps({"properties": {"jobType": "Command"}})
    command = [sys.executable, "-c", script, fake.blobs.host, path, body, call.token()]
    started = threading.Event()

    def kill(request: Request) -> None:
        assert started.wait(DEADLINE)
        process.kill()
        process.wait(DEADLINE)

    fake.after("PUT", "/jobs/j1$", kill)
    process = subprocess.Popen(command, env={**os.environ, **fake.environ})
    started.set()
    assert process.wait(DEADLINE) == -signal.SIGKILL
    assert call("GET", "{WS}/jobs/j1").status == 200


def test_it_serves_other_processes(tmp_path: Path) -> None:
    """As a program of its own, which writes down how to reach it."""
    file = tmp_path / "environ.json"
    command = [sys.executable, "-m", "tests.fakes.azureml.server", "--environ-file", str(file)]
    repository = Path(__file__).parent.parent.parent
    with subprocess.Popen(command, cwd=repository) as process:
        deadline = time.monotonic() + DEADLINE
        while not file.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        environ = json.loads(file.read_text())
        authority = Path(environ["REQUESTS_CA_BUNDLE"])
        assert authority.exists()
        process.terminate()
    assert not authority.exists()
    assert environ["ARM_CLOUD_METADATA_URL"].startswith("https://localhost:")
