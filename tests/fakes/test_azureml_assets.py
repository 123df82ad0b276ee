"""The fake Azure ML's code, environments and data: versions that are made once, uploads to places that it gives."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.azureml import FakeAzure
from tests.fakes.conftest import Caller

pytestmark = pytest.mark.lifecycle

CODE, ENVIRONMENT = "2023-04-01", "2023-04-01-preview"
PATH = "{WS}/codes/c1/versions/1"
PUT_BLOB = {"x-ms-blob-type": "BlockBlob", "x-ms-version": "2021-08-06"}


def upload(call: Caller, files: dict[str, bytes]) -> str:
    """Put files where startPendingUpload says; the address of the container."""
    body = {"pendingUploadType": "TemporaryBlobReference"}
    place = call("POST", f"{PATH}/startPendingUpload", body, version=CODE).body[
        "blobReferenceForConsumption"
    ]
    url, _, signature = place["credential"]["sasUri"].partition("?")
    for name, data in files.items():
        answer = call(
            "PUT", f"{url}/{name}?{signature}", data, version=None, token=None, headers=PUT_BLOB
        )
        assert answer.status == 201
    assert place["blobUri"] == url
    return str(place["blobUri"])


def register(call: Caller, uri: str, **more: Any) -> Any:
    return call(
        "PUT", PATH, {"properties": {"codeUri": uri, "isAnonymous": True, **more}}, version=CODE
    )


def test_code_is_uploaded_and_made_a_version(fake: FakeAzure, call: Caller) -> None:
    """404 before, 201 with its id, 200 after."""
    assert call("GET", PATH, version=CODE).status == 404
    uri = upload(call, {"train.py": b"print(1)"})
    answer = register(call, uri)
    assert (answer.status, answer.body["id"]) == (201, f"{fake.workspace_id}/codes/c1/versions/1")
    assert call("GET", PATH, version=CODE).body["properties"]["codeUri"] == uri
    assert fake.assets.names("codes") == [("c1", "1")]


def test_code_that_was_not_uploaded_is_refused(call: Caller) -> None:
    """400 for a place with nothing in it, and for a folder that is not there."""
    assert register(call, upload(call, {})).status == 400
    assert register(call, upload(call, {"a": b""}) + "/nope").status == 400


def test_every_upload_has_a_place_of_its_own(fake: FakeAzure, call: Caller) -> None:
    """Two that go on at once do not meet, and the first of them makes the version."""
    first, second = upload(call, {"a": b"1"}), upload(call, {"a": b"2"})
    assert first != second
    assert [register(call, uri).status for uri in (first, first, second)] == [201, 200, 409]
    assert call("GET", PATH, version=CODE).body["properties"]["codeUri"] == first


def test_code_is_found_by_its_hash(call: Caller) -> None:
    """Under whatever name; an unknown hash is an empty list, an unknown name is 404."""
    register(
        call, upload(call, {"a": b"1"}), properties={"hash_sha256": "abc", "hash_version": 202208}
    )
    found = call("GET", "{WS}/codes/any/versions?hash=abc&hashVersion=202208", version=CODE).body[
        "value"
    ]
    assert [item["id"].rpartition("/workspaces/ws/")[2] for item in found] == [
        "codes/c1/versions/1"
    ]
    assert call("GET", "{WS}/codes/any/versions?hash=def", version=CODE).body["value"] == []
    assert call("GET", "{WS}/codes/any/versions", version=CODE).status == 404


def test_a_version_of_an_environment_never_changes(call: Caller) -> None:
    """The same again is 200, but for tags; another image is 409."""

    def send(image: str, **more: Any) -> int:
        body = {"properties": {"image": image, **more}}
        return call("PUT", "{WS}/environments/e/versions/1", body, version=ENVIRONMENT).status

    assert [send("a"), send("a"), send("a", tags={"x": "y"}), send("b")] == [201, 200, 200, 409]


def test_the_latest_version_is_found(fake: FakeAzure, call: Caller) -> None:
    """By a list in that order, and by the container; the usual order is the other one."""
    for version in ("1", "2", "3"):
        fake.assets.add("environments", "e", version, image=f"image:{version}")
    path = "{WS}/environments/e"
    latest = call(
        "GET", f"{path}/versions?$orderBy=createdtime%20desc&$top=1", version=ENVIRONMENT
    ).body["value"]
    assert [item["properties"]["image"] for item in latest] == ["image:3"]
    assert [
        item["name"] for item in call("GET", f"{path}/versions", version=ENVIRONMENT).body["value"]
    ] == [
        "1",
        "2",
        "3",
    ]
    assert call("GET", path, version=ENVIRONMENT).body["properties"]["latestVersion"] == "3"


def test_a_job_can_use_what_was_made(fake: FakeAzure, call: Caller) -> None:
    """By version and by label; ARM ids are compared whatever their case."""
    environment = fake.assets.add("environments", "e", "1", image="image")
    code = fake.assets.add("codes", "c", "1")
    for number, reference in enumerate(
        [environment, environment.replace("versions/1", "labels/latest")]
    ):
        body = {"properties": {"jobType": "Command", "environmentId": reference, "codeId": code}}
        assert (
            call("PUT", f"{{WS}}/jobs/j{number}", body, version="2025-01-01-preview").status == 201
        )
    upper = fake.workspace_id.replace("resourceGroups", "resourcegroups")
    assert call("GET", f"{upper}/jobs/j0").status == 200


def test_data_is_found(fake: FakeAzure, call: Caller) -> None:
    """By version; another one is 404."""
    fake.assets.add("data", "digits", "1", dataType="uri_folder", dataUri="azureml://x")
    assert (
        call("GET", "{WS}/data/digits/versions/1", version=ENVIRONMENT).body["properties"][
            "dataType"
        ]
        == "uri_folder"
    )
    assert call("GET", "{WS}/data/digits/versions/2", version=ENVIRONMENT).status == 404
