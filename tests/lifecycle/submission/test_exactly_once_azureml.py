"""No submission to Azure ML is lost or doubled: killed at every point and run again, exactly one job and one row."""

from __future__ import annotations

import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import cloudtrain as ct
from cloudtrain.errors import TargetError
from cloudtrain.lifecycle.store.schema import read_store
from cloudtrain.targets.azureml.service import client
from tests.fakes.azureml import FakeAzure
from tests.fakes.azureml.job import Job
from tests.lifecycle.submission.forking import Submitter, start_submitter
from tests.lifecycle.submission.kill_points import kill_points
from tests.lifecycle.submission.later import a_minute_later

pytestmark = pytest.mark.lifecycle

CRASHING = Path(__file__).with_name("crashing_azureml.py")
POINTS = 57
TARGET = {
    "subscription_id": "00000000-0000-0000-0000-000000000000",
    "resource_group": "rg",
    "workspace": "ws",
}
PLACE = "00000000-0000-0000-0000-000000000000:rg:ws:CloudtrainFakeCloud"
JOB = r"/jobs/[^/]+$"


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAzure]:
    """A workspace, to which this process is led; pauses between tries are short."""
    monkeypatch.setattr(client, "BACKOFF", 0.01)
    with FakeAzure() as service:
        for name, value in service.environ.items():
            monkeypatch.setenv(name, value)
        yield service


@pytest.fixture(scope="module")
def submitter() -> Iterator[Submitter]:
    """The process that forks submitters."""
    with start_submitter(CRASHING) as found:
        yield found


@pytest.fixture
def job(make_source: Callable[..., Path]) -> dict[str, Any]:
    """The job that is submitted, as the fields of a model."""
    return {
        "name": "job",
        "source_dir": str(make_source({"train.py": "print(1)\n"})),
        "entry_point": "train.py",
        "environment": {
            "image": {"azureml": "mcr.microsoft.com/azureml/openmpi4.1.0-ubuntu22.04:20240709.v1"}
        },
        "resources": {"instance_type": {"azureml": "Standard_DS3_v2"}},
        "max_runtime": "1h",
    }


@pytest.fixture
def submit_dying_at(submitter: Submitter, job: dict[str, Any]) -> Callable[[int], dict[str, Any]]:
    """Submit in a process that kills itself at that point."""
    return lambda point: submitter.submit(point=point, job=job, target=TARGET)


def submit_here(job: dict[str, Any]) -> ct.Run:
    """Run the command again."""
    return ct.submit(ct.TrainingJob(**job), ct.AzureML(**TARGET))


@pytest.mark.slow
def test_the_points_are_all_known(
    fake: FakeAzure, submit_dying_at: Callable[[int], dict[str, Any]]
) -> None:
    """A submission passes exactly the points that the next test kills it at, and asks Azure no more than this."""
    answer = submit_dying_at(0)
    assert answer["ended"] == 0
    assert answer["points"] == POINTS
    calls = [
        re.sub(r"(cloudtrain|job)-[0-9a-f]{8,}(-1)?|[0-9a-f]{32}", "*", call)
        for call in fake.calls()
    ]
    assert [call for call in calls if "/code/cloudtrain/" not in call][-8:] == [
        "GET {WS}/codes/*/versions/1", "POST {WS}/codes/*/versions/1/startPendingUpload",
        "PUT {BLOB}/fakews-code-00000001/code/train.py", "PUT {WS}/codes/*/versions/1",
        "GET {WS}/environments/cloudtrain/versions/*", "PUT {WS}/environments/cloudtrain/versions/*",
        "GET {WS}/jobs/*", "PUT {WS}/jobs/*",
    ]  # fmt: skip


@pytest.mark.parametrize("point", kill_points(POINTS))
def test_killed_anywhere(
    point: int,
    fake: FakeAzure,
    job: dict[str, Any],
    submit_dying_at: Callable[[int], dict[str, Any]],
    state_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Killed at any point and submitted again, exactly one job exists and is in the store, and the user was told its
    name; and so it is with recover."""
    died = submit_dying_at(point)
    assert died["ended"] == -signal.SIGKILL
    there_already = list(fake.jobs.by_name)
    assert len(there_already) <= 1
    with monkeypatch.context() as elsewhere:
        _recover(fake, state_dir, elsewhere)
    was_noted = _stages(state_dir) == ["reported"]
    run = submit_here(job)
    if was_noted:  # the store knows that the user was told: a new run is meant
        assert died["told"].split() == there_already
        assert list(fake.jobs.by_name) == [*there_already, run.name]
        return
    assert list(fake.jobs.by_name) == [run.name]
    assert run.adopted == bool(there_already)
    with read_store(state_dir) as store:
        assert [(row.name, row.stage, row.place) for row in store.newest()] == [
            (run.name, "reported", PLACE)
        ]
    assert list((state_dir / "submitting").iterdir()) == []
    assert len(fake.assets.names("codes")) == len(fake.assets.names("environments")) == 1


def _stages(state_dir: Path) -> list[str]:
    """How far each submission came."""
    with read_store(state_dir) as store:
        return [record.stage for record in store.newest()]


def _recover(fake: FakeAzure, state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a copy of the store: it holds exactly what is at the service, and what became of the submission is said."""
    copy = f"{state_dir}-copy"
    if state_dir.exists():
        shutil.copytree(state_dir, copy)
    monkeypatch.setenv("CLOUDTRAIN_STATE_DIR", copy)
    soon = {found.name: found.outcome for found in ct.recover()}
    assert {name for name, outcome in soon.items() if outcome == "unknown"}.isdisjoint(
        fake.jobs.by_name
    )
    a_minute_later(copy)
    settled = {found.name: found.outcome for found in ct.recover()}
    assert set(settled) == {name for name, outcome in soon.items() if outcome == "unknown"}
    assert {run.name for run in ct.runs()} == set(fake.jobs.by_name)
    assert "unknown" not in settled.values()
    assert ct.recover() == []


DATA_POINTS = 75


@pytest.fixture
def job_with_data(job: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    """The same job with a folder of this machine."""
    (tmp_path / "data/sub").mkdir(parents=True)
    (tmp_path / "data/a.csv").write_text("1,2\n")
    (tmp_path / "data/sub/b.csv").write_text("3\n")
    return job | {"inputs": {"train": {"azureml": f"{tmp_path}/data"}}}


@pytest.mark.slow
def test_the_points_of_data_are_all_known(
    fake: FakeAzure, submitter: Submitter, job_with_data: dict[str, Any]
) -> None:
    """A listing and a request for each file are added to the points of a submission."""
    answer = submitter.submit(point=0, job=job_with_data, target=TARGET)
    assert (answer["ended"], answer["points"]) == (0, DATA_POINTS)


@pytest.mark.parametrize("point", kill_points(DATA_POINTS))
@pytest.mark.slow_after(5)
def test_killed_anywhere_with_data(
    point: int,
    fake: FakeAzure,
    submitter: Submitter,
    job_with_data: dict[str, Any],
    state_dir: Path,
) -> None:
    """Killed at any point and submitted again, each file is in storage once and whole, and one job reads it."""
    died = submitter.submit(point=point, job=job_with_data, target=TARGET)
    assert died["ended"] == -signal.SIGKILL
    was_noted = _stages(state_dir) == ["reported"]
    run = submit_here(job_with_data)
    assert len(fake.jobs.by_name) == 1 + was_noted
    stored = {
        name.rpartition("/data/")[2]: blob.data
        for box in fake.blobs.containers.values()
        for name, blob in box.items()
        if name.startswith("LocalUpload/")
    }
    assert stored == {"a.csv": b"1,2\n", "sub/b.csv": b"3\n"}
    assert run.name in fake.jobs.by_name


@pytest.mark.parametrize(
    "fault", [pytest.param("close_before", marks=pytest.mark.slow), "close_after"]
)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", r"/codes/[^/]+/versions/1$"), ("POST", "/startPendingUpload$"), ("PUT", "/code/train.py$"),
        ("PUT", r"/codes/[^/]+/versions/1$"), ("PUT", "/environments/"), ("GET", JOB), ("PUT", JOB),
    ],
)  # fmt: skip
@pytest.mark.slow_after(3)
def test_a_lost_connection_is_tried_again(
    fake: FakeAzure, job: dict[str, Any], method: str, path: str, fault: str
) -> None:
    """A connection that closes before or after the work makes neither a second job nor an error."""
    getattr(fake.faults, fault)(method, path)
    run = submit_here(job)
    assert list(fake.jobs.by_name) == [run.name]
    assert len(fake.received(method, path)) == 2


def test_an_answer_that_never_comes(fake: FakeAzure, job: dict[str, Any]) -> None:
    """When every answer to the request is lost, the job is found by its name."""
    fake.faults.close_after("PUT", JOB, times=9)
    run = submit_here(job)
    assert list(fake.jobs.by_name) == [run.name]
    assert fake.calls()[-1] == f"GET {{WS}}/jobs/{run.name}"


@pytest.mark.slow
def test_a_service_out_of_reach_keeps_the_question_open(
    fake: FakeAzure, job: dict[str, Any]
) -> None:
    """When the service cannot even be asked, the submission is neither forgotten nor repeated; later it is settled."""

    def silence(_: object) -> None:
        fake.faults.close_before("GET", JOB, times=99)

    fake.after("PUT", JOB, silence)
    fake.faults.close_after("PUT", JOB, times=9)
    with pytest.raises(TargetError, match="does not answer"):
        submit_here(job)
    assert [found.outcome for found in ct.recover()] == ["unknown"]
    fake.faults.clear()
    assert [found.outcome for found in ct.recover()] == ["finished"]
    assert [run.name for run in ct.runs()] == list(fake.jobs.by_name)


def test_the_bytes_received_are_those_of_the_plan(fake: FakeAzure, job: dict[str, Any]) -> None:
    """What arrives is the plan's request, byte for byte the text that its hash covers."""
    plan = ct.plan(ct.TrainingJob(**job), ct.AzureML(**TARGET))
    run = submit_here(job)
    (received,) = fake.received("PUT", JOB)
    assert run.ref == plan.ref
    assert received.raw == plan.request_json.encode()
    assert received.body == plan.request


@pytest.mark.slow
def test_a_job_of_somebody_else(fake: FakeAzure, job: dict[str, Any]) -> None:
    """A job that has our name and was not made by us stays as it is, and the next name is taken."""
    plan = ct.plan(ct.TrainingJob(**job), ct.AzureML(**TARGET))
    theirs = {**plan.request["properties"], "properties": {"cloudtrain.run": "another"}}
    fake.jobs.by_name[plan.run_name] = Job(
        plan.run_name, {"properties": theirs}, fake.workspace_id, time.time()
    )
    run = submit_here(job)
    assert run.name == plan.run_name.removesuffix("-1") + "-2"
    assert fake.jobs[plan.run_name].request == {"properties": theirs}
    assert len(fake.received("PUT", JOB)) == 1
    assert [known.name for known in ct.runs()] == [run.name]


@pytest.mark.slow
def test_a_job_of_an_earlier_store(fake: FakeAzure, job: dict[str, Any], state_dir: Path) -> None:
    """With the store lost a job of a second ago is not taken for the new run, nor changed."""
    earlier = [submit_here(job).name, submit_here(job).name]
    shutil.rmtree(state_dir)
    run = submit_here(job)
    assert list(fake.jobs.by_name) == [*earlier, run.name]
    assert [len(fake.received("PUT", f"/jobs/{name}$")) for name in earlier] == [1, 1]
    assert [known.name for known in ct.runs()] == [run.name]


@pytest.mark.slow
def test_throttling_is_waited_out(fake: FakeAzure, job: dict[str, Any]) -> None:
    """`TooManyRequests` is tried again until it works."""
    fake.faults.throttle("PUT", JOB, times=2, retry_after=None)
    run = submit_here(job)
    assert list(fake.jobs.by_name) == [run.name]
    assert len(fake.received("PUT", JOB)) == 3
