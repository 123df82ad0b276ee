"""The fake Azure ML's run history: status, times, errors, logs, tags, outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.fakes.azureml import FakeAzure
from tests.fakes.conftest import Answer, Caller

pytestmark = pytest.mark.lifecycle

Submit = Callable[..., Answer]
LOG = "user_logs/std_log_process_3.txt"


@pytest.fixture
def details(call: Caller, submit: Submit) -> Callable[[], dict[str, Any]]:
    """Asks for the details of the job `j1`, which was just submitted."""
    submit("j1")
    return lambda: call("GET", "/history/v1.0{WS}/runs/j1/details", version="v1.0").body


def test_times_and_errors_come_with_the_end(
    fake: FakeAzure, details: Callable[[], dict[str, Any]]
) -> None:
    """No start before Running, no end before it ended, and the error as the service nests it."""
    assert not {"startTimeUtc", "endTimeUtc", "error"} & details().keys()
    fake.jobs["j1"].enter("Running", at=1_700_000_000)
    assert details()["startTimeUtc"] == "2023-11-14T22:13:20.0000000+00:00"
    fake.jobs["j1"].end("Failed", error="Execution failed. ExitCode: 1", at=1_700_000_060.5)
    found = details()
    assert found["endTimeUtc"] == "2023-11-14T22:14:20.5000000+00:00"
    assert found["error"]["error"] == {
        "code": "UserError",
        "message": "Execution failed. ExitCode: 1",
        "details": [],
    }


def test_logs_appear_when_they_are_written(
    fake: FakeAzure, call: Caller, details: Callable[[], dict[str, Any]]
) -> None:
    """Each under a name and an address that opens it without a token, in ranges too; it grows."""
    assert details()["logFiles"] == {}
    fake.logs.write("j1", LOG, "one", "two")
    fake.outputs.write_artifact("j1", "outputs/metrics.json", b"{}")
    ((name, url),) = details()["logFiles"].items()
    assert name == LOG
    assert call("GET", url, version=None, token=None).raw == b"one\ntwo\n"
    fake.logs.write("j1", LOG, "three")
    rest = call("GET", url, version=None, token=None, headers={"Range": "bytes=8-"})
    assert (rest.status, rest.raw, rest.headers["content-range"]) == (
        206,
        b"three\n",
        "bytes 8-13/14",
    )
    beyond = call("GET", url, version=None, token=None, headers={"Range": "bytes=14-"})
    assert (beyond.status, beyond.headers["x-ms-error-code"]) == (416, "InvalidRange")


def test_the_address_of_a_log_is_good_for_a_while(
    fake: FakeAzure, call: Caller, details: Callable[[], dict[str, Any]]
) -> None:
    """Then it is refused in the blob service's words, and details have a new one."""
    fake.logs.write("j1", LOG, "one")
    fake.history.sas_seconds = -1
    old = call("GET", details()["logFiles"][LOG], version=None, token=None)
    assert (old.status, old.headers["x-ms-error-code"]) == (403, "AuthenticationFailed")
    fake.history.sas_seconds = 60
    assert call("GET", details()["logFiles"][LOG], version=None, token=None).status == 200


def test_a_scripted_life_goes_one_step_at_each_question(
    fake: FakeAzure, details: Callable[[], dict[str, Any]]
) -> None:
    """A status, or something to call; then it stays where it is."""
    fake.jobs["j1"].script("Running", lambda: fake.logs.write("j1", LOG, "one"), "Completed")
    seen = [details() for _ in range(4)]
    assert [found["status"] for found in seen] == ["Running", "Running", "Completed", "Completed"]
    assert [list(found["logFiles"]) for found in seen] == [[], [LOG], [LOG], [LOG]]


def test_a_run_is_patched(call: Caller, submit: Submit) -> None:
    """Tags are added, `hidden` archives, and another experiment is not found."""
    submit("j1", tags={"a": "1"})
    path = "/history/v1.0{WS}/experiments/exp/runs/j1"
    assert call("PATCH", path, {"tags": {"b": "2"}}, version="v1.0").body["tags"] == {
        "a": "1",
        "b": "2",
    }
    assert call("GET", "{WS}/jobs/j1").body["properties"]["tags"] == {"a": "1", "b": "2"}
    call("PATCH", path, {"hidden": True}, version="v1.0")
    assert call("GET", "{WS}/jobs").body["value"] == []
    assert call("PATCH", path.replace("/exp/", "/other/"), {}, version="v1.0").status == 404


def test_outputs_are_told_by_asset_and_by_address(
    fake: FakeAzure, call: Caller, submit: Submit
) -> None:
    """A run names its outputs; the data plane says where each is: in the job's place, or where the job says."""
    own = {"uri": "azureml://datastores/other/paths/x/", "jobOutputType": "uri_folder"}
    submit("j1", outputs={"model": {"jobOutputType": "uri_folder"}, "own": own})
    run = call("POST", "/history/v1.0{WS}/rundata", {"runId": "j1"}, version="v1.0").body[
        "runMetadata"
    ]
    assert {name: output["type"] for name, output in run["outputs"].items()} == {
        "model": "UriFolder",
        "own": "UriFolder",
    }
    assets = [output["assetId"] for output in run["outputs"].values()]
    found = call(
        "POST",
        "/data/v1.0{WS}/dataversion/batchGetResolvedUris",
        {"values": assets},
        version="1.5.0",
    ).body
    addresses = [found["values"][asset]["uri"] for asset in assets]
    assert addresses[0].endswith(
        "/workspaces/ws/datastores/workspaceblobstore/paths/azureml/j1/model/"
    )
    assert addresses[1] == own["uri"]


def test_a_run_that_does_not_exist(call: Caller) -> None:
    """404 from every service."""
    for path in ("/history/v1.0{WS}/runs/nope/details", "/history/v1.0{WS}/runs/nope"):
        assert call("GET", path, version="v1.0").status == 404
