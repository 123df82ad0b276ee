"""The fake Azure ML's jobs: made once per name, moved by tests, listed in pages, canceled."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.fakes.azureml import FakeAzure
from tests.fakes.azureml.identity import make_token
from tests.fakes.azureml.job import STATES
from tests.fakes.conftest import Answer, Caller

pytestmark = pytest.mark.lifecycle

Submit = Callable[..., Answer]


def test_a_job_is_made(fake: FakeAzure, submit: Submit) -> None:
    """201 with what was sent, and with what the service adds: status, studio, artifacts, properties of its own."""
    answer = submit("j1", tags={"a": "b"}, properties={"cloudtrain.run": "j1"})
    properties = answer.body["properties"]
    assert (answer.status, properties["status"], properties["command"]) == (
        201,
        "Starting",
        "python train.py",
    )
    assert properties["properties"]["cloudtrain.run"] == "j1"
    assert "_azureml.ComputeTargetType" in properties["properties"]
    assert properties["services"]["Studio"]["endpoint"].startswith(
        "https://ml.azure.com/runs/j1?wsid=/subscriptions/"
    )
    assert properties["outputs"]["default"]["uri"].endswith("/ExperimentRun/dcid.j1")
    assert answer.body["id"] == f"{fake.workspace_id}/jobs/j1"


def test_the_same_again_is_the_same_job(fake: FakeAzure, submit: Submit) -> None:
    """200, and it goes on as it was."""
    submit("j1")
    fake.jobs["j1"].enter("Running")
    assert (submit("j1").status, fake.jobs["j1"].status, len(fake.jobs.by_name)) == (
        200,
        "Running",
        1,
    )


@pytest.mark.parametrize(
    "change", [{"command": "ls"}, {"computeId": "serverless"}, {"experimentName": "other"}]
)
def test_what_a_job_does_cannot_change(
    fake: FakeAzure, submit: Submit, change: dict[str, str]
) -> None:
    """400 with the service's words and code, and the job stays what it was."""
    submit("j1")
    answer = submit("j1", **change)
    assert (answer.status, answer.error["code"], answer.inner) == (
        400,
        "UserError",
        "JobPropertyImmutable",
    )
    assert f"the existing job's {next(iter(change))} cannot be changed" in answer.error["message"]
    assert fake.jobs["j1"].properties["command"] == "python train.py"


def test_a_property_that_is_left_out_is_a_change_too(submit: Submit) -> None:
    """The new body must have all that the old one had."""
    submit("j1", environmentVariables={"A": "1"})
    assert submit("j1").status == 400


def test_five_properties_may_change(call: Caller, submit: Submit) -> None:
    """Description, tags, display name, properties and whether it is archived."""
    submit("j1")
    changes = {
        "description": "d",
        "tags": {"a": "b"},
        "displayName": "n",
        "properties": {"c": "d"},
        "isArchived": True,
    }
    assert submit("j1", **changes).status == 200
    found = call("GET", "{WS}/jobs/j1").body["properties"]
    assert {key: found[key] for key in ("description", "tags", "displayName", "isArchived")} == {
        key: changes[key] for key in ("description", "tags", "displayName", "isArchived")
    }
    assert found["properties"]["c"] == "d"


@pytest.mark.parametrize("name", ["has%20spaces", "-first", "x" * 256, "a.b"])
def test_names_that_the_service_does_not_take(submit: Submit, name: str) -> None:
    """400, whatever the client let through."""
    assert submit(name).inner == "InvalidRunId"


@pytest.mark.parametrize(
    ("key", "path", "status", "message"),
    [
        ("codeId", "codes/c/versions/1", 400, "codeId /subscriptions/"),
        ("environmentId", "environments/e/versions/1", 404, "key: /subscriptions/"),
        ("computeId", "computes/nope", 400, "Unknown compute target 'nope'."),
    ],
)
def test_a_job_refers_to_what_there_is(
    fake: FakeAzure, submit: Submit, key: str, path: str, status: int, message: str
) -> None:
    """Code, an environment or a cluster of this workspace that does not exist is refused."""
    answer = submit("j1", **{key: f"{fake.workspace_id}/{path}"})
    assert answer.status == status
    assert answer.error["message"].startswith(message)
    assert not fake.jobs.by_name


def test_a_field_that_the_version_does_not_have(fake: FakeAzure, submit: Submit) -> None:
    """400, and only the details name the field."""
    answer = submit(
        "j1", outputs={"o": {"jobOutputType": "uri_folder", "assetName": "a", "assetVersion": "3"}}
    )
    assert (answer.status, answer.inner, "assetVersion" in answer.error["message"]) == (
        400,
        "RequestInvalid",
        False,
    )
    assert answer.error["details"][0]["message"].startswith(
        "Could not find member 'assetVersion' on object of type"
    )
    assert not fake.jobs.by_name


def test_a_job_that_acts_for_its_user_needs_a_token(fake: FakeAzure, call: Caller) -> None:
    """In its own header, and for Azure ML's audience."""
    body = {"properties": {"jobType": "Command", "identity": {"identityType": "UserIdentity"}}}

    def send(**headers: str) -> int:
        return call(
            "PUT", "{WS}/jobs/j1", body, version="2025-01-01-preview", headers=headers
        ).status

    later = time.time() + 60
    assert send() == 400
    assert send(**{"x-azureml-token": make_token("https://storage.azure.com", later)}) == 400
    assert send(**{"x-azureml-token": make_token("https://ml.azure.com", later)}) == 201


def test_every_state_of_the_service_can_be_entered(
    fake: FakeAzure, call: Caller, submit: Submit
) -> None:
    """Thirteen, told by ARM and by run history; others are a mistake of the test."""
    submit("j1")
    assert len(STATES) == 13
    for state in STATES:
        fake.jobs["j1"].enter(state)
        assert call("GET", "{WS}/jobs/j1").body["properties"]["status"] == state
        assert (
            call("GET", "/history/v1.0{WS}/runs/j1/details", version="v1.0").body["status"] == state
        )
    with pytest.raises(ValueError, match="no status Done"):
        fake.jobs["j1"].enter("Done")


def test_jobs_are_listed_newest_first_in_pages(
    fake: FakeAzure, call: Caller, submit: Submit
) -> None:
    """nextLink leads through them, and is to be followed as it is."""
    for number in range(5):
        submit(f"j{number}")
    fake.jobs.page_size = 2
    answer = call("GET", "{WS}/jobs?listViewType=ActiveOnly")
    names = [job["name"] for job in answer.body["value"]]
    while "nextLink" in answer.body:
        answer = call("GET", answer.body["nextLink"], version=None)
        names += [job["name"] for job in answer.body["value"]]
    assert names == ["j4", "j3", "j2", "j1", "j0"]


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("", ["j2"]), ("listViewType=ArchivedOnly", ["j1"]), ("listViewType=All", ["j2", "j1"]),
        ("tag=team", ["j2"]), ("tag=team=vision", ["j2"]), ("tag=team=speech", []),
        ("jobType=Sweep", []), ("jobType=Command", ["j2"]),
    ],
)  # fmt: skip
def test_lists_are_filtered(call: Caller, submit: Submit, query: str, names: list[str]) -> None:
    """By archive, tag and type."""
    submit("j1", isArchived=True)
    submit("j2", tags={"team": "vision"})
    assert [job["name"] for job in call("GET", f"{{WS}}/jobs?{query}").body["value"]] == names


def test_a_cancel(fake: FakeAzure, call: Caller, submit: Submit) -> None:
    """202 with the four bytes `null`, by way of CancelRequested, and a place of the region to ask at."""
    submit("j1")
    answer = call("POST", "{WS}/jobs/j1/cancel", version="2023-04-01-preview")
    assert (answer.status, answer.raw) == (202, b"null")
    assert "/locations/eastus/mfeOperationResults/jc:" in answer.headers["location"]
    assert [status for status, _ in fake.jobs["j1"].history] == [
        "Starting",
        "CancelRequested",
        "Canceled",
    ]


def test_a_cancel_takes_its_time(fake: FakeAzure, call: Caller, submit: Submit) -> None:
    """The place says 202 until it is done, and then 200 without a body; the job waits for the test to end it."""
    submit("j1")
    fake.jobs.cancel_polls, fake.jobs.cancel_lingers = 2, True
    answer = call("POST", "{WS}/jobs/j1/cancel", version="2023-04-01-preview")
    answers = [(answer.status, answer.raw)]
    while answer.status == 202:
        answer = call("GET", answer.headers["location"], version=None)
        answers.append((answer.status, answer.raw))
    assert answers == [(202, b"null"), (202, b"{}"), (202, b"{}"), (200, b"")]
    assert fake.jobs["j1"].status == "CancelRequested"


@pytest.mark.parametrize("status", ["Finalizing", "Completed", "Failed", "Canceled"])
def test_a_cancel_that_comes_too_late_is_refused(
    fake: FakeAzure, call: Caller, submit: Submit, status: str
) -> None:
    """400, and the job is what it was."""
    submit("j1")
    fake.jobs["j1"].enter(status)
    assert call("POST", "{WS}/jobs/j1/cancel", version="2023-04-01-preview").status == 400
    assert fake.jobs["j1"].status == status


def test_a_job_that_ended_can_be_deleted(fake: FakeAzure, call: Caller, submit: Submit) -> None:
    """Others cannot."""
    submit("j1")
    assert call("DELETE", "{WS}/jobs/j1", version="2023-04-01-preview").status == 409
    fake.jobs["j1"].end("Failed")
    assert call("DELETE", "{WS}/jobs/j1", version="2023-04-01-preview").status == 200
    assert call("GET", "{WS}/jobs/j1").status == 404


def test_somebody_is_told_of_new_and_canceled_jobs(
    fake: FakeAzure, call: Caller, submit: Submit
) -> None:
    """Once for each, though the same was sent twice; who is told of a cancel ends the job."""
    told: list[tuple[str, str]] = []
    fake.jobs.on_create = lambda job: told.append(("made", job.name))
    fake.jobs.on_cancel = lambda job: told.append(("canceled", job.name))
    submit("j1")
    submit("j1")
    call("POST", "{WS}/jobs/j1/cancel", version="2023-04-01-preview")
    assert told == [("made", "j1"), ("canceled", "j1")]
    assert fake.jobs["j1"].status == "CancelRequested"
