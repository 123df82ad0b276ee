"""Answers of the real service, from the public recordings of azure-ai-ml's own end-to-end tests.

The folder `tests/golden/azureml_recorded` has them, shortened, with made-up ids: what the service said, and which
recording of Azure/azure-sdk-assets or Azure/azure-sdk-for-python has it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cloudtrain as ct
from cloudtrain.errors import TargetError
from cloudtrain.plans.states import RunState
from cloudtrain.targets.azureml.service.client import Client
from cloudtrain.targets.azureml.service.service import AzureMLService
from tests.fakes.azureml import FakeAzure
from tests.fakes.azureml.job import Job
from tests.targets.azureml.conftest import NAME, PLACE, REF, plan_of
from tests.targets.azureml.place import TARGET

pytestmark = pytest.mark.lifecycle

ANSWERS: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "golden" / "azureml_recorded" / "answers.json").read_text()
)


def say(fake: FakeAzure, method: str, pattern: str, name: str) -> None:
    """The next such request gets the recorded answer."""
    answer = ANSWERS[name]
    body = (
        b""
        if answer["body"] is None and answer["status"] == 404
        else json.dumps(answer["body"]).encode()
    )
    fake.faults.say(method, pattern, answer["status"], body, headers=answer.get("headers"))


def test_a_job_is_made(fake: FakeAzure, service: AzureMLService, tmp_path: Path) -> None:
    """Its first state is Starting, absent things are null; adopted, it asks for nothing that the service filled in."""
    say(fake, "PUT", f"/jobs/{NAME}", "made")
    assert service.submit(plan_of()) == REF
    say(fake, "GET", f"/jobs/{NAME}", "made")
    status = service.status(REF)
    assert status.state is RunState.PREPARING
    assert str(status.page).startswith(f"https://ml.azure.com/runs/{NAME}?wsid=")
    say(fake, "GET", f"/jobs/{NAME}", "made")
    found = ct.adopt(f"azureml://{PLACE}/{NAME}", folder=tmp_path)
    assert found.equal, [vars(item) for item in found.differences]
    assert "queueSettings" not in found.fields.get("azureml_overrides", {})


def test_a_job_is_canceled(fake: FakeAzure, service: AzureMLService, job: Job) -> None:
    """202 with the JSON value `null` is a yes, and nobody asks for more."""
    job.enter("Running")
    say(fake, "POST", "/cancel", "canceled")
    service.stop(REF)
    assert fake.calls()[-1] == f"POST {{WS}}/jobs/{NAME}/cancel"


@pytest.mark.parametrize(
    ("name", "part", "hint"),
    [
        ("unknown_field", "Could not find member 'assetVersion'", "remove the field"),
        ("unknown_cluster", "Unknown compute target 'testCompute'", "az ml compute list"),
        ("unknown_cluster_of_a_sweep", "Compute Not Found for run ID", "az ml compute list"),
        ("unknown_component", "Not found component X (version: non_existent)", "cloudtrain check"),
    ],
)
def test_a_job_is_refused(
    fake: FakeAzure, service: AzureMLService, name: str, part: str, hint: str
) -> None:
    """The message has the service's reason, wherever it stands, and blames no workspace; the hint says what to do."""
    say(fake, "PUT", f"/jobs/{NAME}", name)
    with pytest.raises(TargetError) as caught:
        service.submit(plan_of())
    assert part in caught.value.message
    assert "in the workspace" not in caught.value.message
    assert hint in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (
            "no_access_to_read",
            "ScriptExecution.StreamAccess.Authentication: Authentication failed when trying to access the stream. Make "
            "sure you have correct permissions set up.",
        ),
        (
            "no_access_to_write",
            "ScriptExecution.WriteStreams.Authentication: Authentication failed when trying to access destination. Make "
            "sure you have correct permissions set up.",
        ),
    ],
)
def test_a_run_that_could_not_open_its_data(
    service: AzureMLService, job: Job, name: str, reason: str
) -> None:
    """The reason is the service's sentence for people; no script failed, because none ran."""
    job.end("Failed", error=ANSWERS[name]["body"]["error"])
    status = service.status(REF)
    assert (status.state, status.reason) == (RunState.FAILED, reason)
    assert any("PermissionDenied" in line for line in status.details)


def test_a_step_of_a_pipeline(
    fake: FakeAzure, service: AzureMLService, job: Job, tmp_path: Path
) -> None:
    """The resource manager shows no body of it: its state comes from the run history, and adopt says why not."""
    job.is_step = True
    job.enter("Running")
    say(fake, "GET", f"/jobs/{NAME}", "step")
    assert service.status(REF).state is RunState.RUNNING
    assert list(service.logs(REF)) == []
    fake.faults.forbid("GET", "/details")
    with pytest.raises(TargetError, match="step of a pipeline") as caught:
        service.status(REF)
    assert caught.value.hint
    with pytest.raises(ct.CloudtrainError, match="step of a pipeline") as refused:
        ct.adopt(f"azureml://{PLACE}/{NAME}", folder=tmp_path)
    assert (refused.value.code, "cloudtrain adopt" in (refused.value.hint or "")) == ("CT981", True)
    service.stop(REF)
    assert len(fake.received("POST", "/cancel")) == 1


def test_the_last_change_is_not_the_end(fake: FakeAzure, service: AzureMLService, job: Job) -> None:
    """It is earlier than the start of the run: without an end there is no time to pay for."""
    say(fake, "GET", "/details", "ended")
    status = service.status(REF)
    assert (status.state, status.ended, status.billable_seconds, status.cost) == (
        RunState.SUCCEEDED,
        None,
        None,
        None,
    )


def test_a_sweep_is_made_and_adopted(
    fake: FakeAzure, service: AzureMLService, tmp_path: Path, make_source: Callable[..., Path]
) -> None:
    """Running at once, before any trial; what the service adds to the trial is no difference, and each part of the
    search is named."""
    sweep = ct.Sweep(
        name="tune",
        job={
            "source_dir": str(make_source({"train.py": "print(1)\n"})),
            "entry_point": "train.py",
            "environment": {"framework": "pytorch", "version": "2.8"},
        },
        search={"lr": {"log": [1e-4, 1e-1]}},
        objective={"maximize": "acc"},
        trials=2,
    )
    say(fake, "PUT", "/jobs/", "sweep_made")
    run = ct.submit(sweep, TARGET, online=False)
    say(fake, "GET", f"/jobs/{run.name}", "sweep_made")
    assert run.status().state is RunState.RUNNING
    answer = tmp_path / "sweep.json"
    answer.write_text(json.dumps(ANSWERS["sweep_made"]["body"]))
    found = ct.adopt(answer, folder=tmp_path)
    assert {item.path.split(".")[0] for item in found.differences} == {
        "searchSpace", "objective", "samplingAlgorithm", "limits",
    }  # fmt: skip
    assert "--lr ${{inputs.lr}}" in str(found.job.command)


def test_a_cluster_that_is_not_there(fake: FakeAzure, client: Client) -> None:
    """404 with an empty body is the service's answer, and no broken one."""
    say(fake, "GET", "/computes/", "cluster_missing")
    with pytest.raises(TargetError) as caught:
        client.get("computes/gpu-cluster")
    assert (caught.value.code, "no `computes/gpu-cluster`" in caught.value.message) == (
        "CT947",
        True,
    )
