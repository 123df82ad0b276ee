"""No submission to SageMaker is lost or doubled: killed at every point and run again, exactly one job and one row."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import cloudtrain as ct
from cloudtrain import api
from cloudtrain.errors import TargetError
from cloudtrain.store.store import read_store
from tests.fakes.sagemaker.server import FakeAws
from tests.submission.later import a_minute_later

pytestmark = pytest.mark.lifecycle

CRASHING = str(Path(__file__).with_name("crashing_sagemaker.py"))
POINTS = 37
INSTANCE = "ml.m5.xlarge"

TARGET = {"role": "arn:aws:iam::123456789012:role/SageMakerRole", "region": "eu-west-1"}
IGNORED: tuple[str, ...] = ()


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAws]:
    """An account with a bucket, a role and a quota, to which boto3 in this process talks."""
    with FakeAws() as service:
        service.identity.quotas[f"{INSTANCE} for training job usage"] = 4.0
        for name, value in service.environ.items():
            monkeypatch.setenv(name, value)
        yield service


@pytest.fixture(scope="module")
def submitter() -> Iterator[subprocess.Popen[str]]:
    """The process that forks submitters."""
    command = [sys.executable, CRASHING]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture
def job(make_source: Callable[..., Path]) -> dict[str, Any]:
    """The job that is submitted, as the fields of a model."""
    return {
        "name": "job",
        "source_dir": str(make_source({"train.py": "print(1)\n"})),
        "entry_point": "train.py",
        "environment": {"framework": "pytorch", "version": "2.8"},
        "resources": {"instance_type": {"sagemaker": INSTANCE}},
        "max_runtime": "1h",
    }


@pytest.fixture
def submit_dying_at(submitter: subprocess.Popen[str], job: dict[str, Any]) -> Callable[[int], dict[str, Any]]:
    """Submit in a process that kills itself at that point."""

    def submit(point: int) -> dict[str, Any]:
        order = {
            "point": point,
            "job": job,
            "target": TARGET,
            "ignore": IGNORED,
            "environ": dict(os.environ),
            "cwd": str(Path.cwd()),
        }
        assert submitter.stdin is not None
        assert submitter.stdout is not None
        submitter.stdin.write(json.dumps(order) + "\n")
        submitter.stdin.flush()
        answer: dict[str, Any] = json.loads(submitter.stdout.readline())
        return answer

    return submit


def submit_here(job: dict[str, Any]) -> ct.Run:
    """Run the command again."""
    return ct.submit(ct.TrainingJob(**job), ct.SageMaker(**TARGET), ignore=IGNORED)


def test_the_points_are_all_known(fake: FakeAws, submit_dying_at: Callable[[int], dict[str, Any]]) -> None:
    """A submission passes exactly the points that the next test kills it at, and asks AWS no more than this."""
    answer = submit_dying_at(0)
    assert answer["ended"] == 0
    assert answer["points"] == POINTS
    assert [item.operation for item in fake.received] == [
        "GetCallerIdentity", "GetRole", "ListServiceQuotas", "HeadBucket", "HeadObject", "PutObject",
        "CreateTrainingJob",
    ]  # fmt: skip


@pytest.mark.parametrize("point", range(1, POINTS + 1))
def test_killed_anywhere(
    point: int,
    fake: FakeAws,
    job: dict[str, Any],
    submit_dying_at: Callable[[int], dict[str, Any]],
    state_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Killed at any point and submitted again, exactly one job exists and is in the store; and so it is with recover."""
    assert submit_dying_at(point)["ended"] == -signal.SIGKILL
    there_already = list(fake.jobs.by_name)
    assert len(there_already) <= 1
    with monkeypatch.context() as elsewhere:
        _recover(fake, state_dir, elsewhere)
    run = submit_here(job)
    if point == POINTS:  # after the store was told that the submitter knows: a new run is meant
        assert list(fake.jobs.by_name) == [*there_already, run.name]
        return
    assert list(fake.jobs.by_name) == [run.name]
    assert run.adopted == bool(there_already)
    with read_store(state_dir) as store:
        assert store is not None
        assert [(row.name, row.stage, row.place) for row in store.newest()] == [(run.name, "reported", "eu-west-1")]
    assert list((state_dir / "submitting").iterdir()) == []


def _recover(fake: FakeAws, state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a copy of the store: it holds exactly what is at the service, and what became of the submission is said."""
    copy = f"{state_dir}-copy"
    if state_dir.exists():
        shutil.copytree(state_dir, copy)
    monkeypatch.setenv("CLOUDTRAIN_STATE_DIR", copy)
    soon = {found.name: found.outcome for found in api.recover()}
    assert {name for name, outcome in soon.items() if outcome == "unknown"}.isdisjoint(fake.jobs.by_name)
    a_minute_later(copy)
    settled = {found.name: found.outcome for found in api.recover()}
    assert set(settled) == {name for name, outcome in soon.items() if outcome == "unknown"}
    assert {run.name for run in ct.runs()} == set(fake.jobs.by_name)
    assert "unknown" not in settled.values()
    assert api.recover() == []


@pytest.mark.parametrize("fault", ["close_before", "close_after"])
@pytest.mark.parametrize("operation", ["HeadObject", "PutObject", "CreateTrainingJob"])
def test_a_lost_connection_is_tried_again(fake: FakeAws, job: dict[str, Any], operation: str, fault: str) -> None:
    """A connection that closes before or after the work makes neither a second job nor an error."""
    getattr(fake.faults, fault)(operation)
    run = submit_here(job)
    assert list(fake.jobs.by_name) == [run.name]
    assert len(fake.operations(operation)) == 2


def test_an_answer_that_never_comes(fake: FakeAws, job: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """When every answer to the request is lost, the job is found by its name."""
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")
    fake.faults.close_after("CreateTrainingJob", times=2)
    run = submit_here(job)
    assert list(fake.jobs.by_name) == [run.name]
    assert [item.operation for item in fake.received[-2:]] == ["DescribeTrainingJob", "ListTags"]


def test_a_service_out_of_reach_keeps_the_question_open(
    fake: FakeAws, job: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the service cannot even be asked, the submission is neither forgotten nor repeated; later it is settled."""
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    fake.faults.close_after("CreateTrainingJob")
    fake.faults.close_before("DescribeTrainingJob", times=2)  # asked after the request, and by recover
    with pytest.raises(TargetError, match="does not answer"):
        submit_here(job)
    assert [found.outcome for found in api.recover()] == ["unknown"]
    assert [found.outcome for found in api.recover()] == ["finished"]
    assert [run.name for run in ct.runs()] == list(fake.jobs.by_name)


def test_the_bytes_received_are_those_of_the_plan(fake: FakeAws, job: dict[str, Any]) -> None:
    """What arrives is the plan's request: equal as JSON, and byte for byte what boto3 makes of it."""
    plan = ct.plan(ct.TrainingJob(**job), ct.SageMaker(**TARGET), ignore=IGNORED)
    run = submit_here(job)
    (received,) = fake.operations("CreateTrainingJob")
    assert run.ref == plan.ref
    assert received.body == plan.request
    assert received.raw == json.dumps(plan.request).encode()


def test_a_job_of_somebody_else(fake: FakeAws, job: dict[str, Any]) -> None:
    """A job that has our name and was not made by us is an error that names it, and nothing stays behind."""
    plan = ct.plan(ct.TrainingJob(**job), ct.SageMaker(**TARGET), ignore=IGNORED)
    theirs = {**plan.request, "Tags": [{"Key": "cloudtrain:run", "Value": "another"}]}
    fake.jobs.handle("CreateTrainingJob", theirs)
    with pytest.raises(TargetError, match="is not this one") as caught:
        submit_here(job)
    assert plan.run_name in caught.value.message
    assert len(fake.jobs.by_name) == 1


def test_a_job_of_an_earlier_store(fake: FakeAws, job: dict[str, Any], state_dir: Path) -> None:
    """With an empty store the numbers begin again: an old job of the name is not taken for the new run."""
    earlier = submit_here(job).name
    fake.jobs.by_name[earlier].created -= 3600
    shutil.rmtree(state_dir)
    run = submit_here(job)
    assert (earlier[-2:], run.name) == ("-1", earlier.removesuffix("-1") + "-2")
    assert list(fake.jobs.by_name) == [earlier, run.name]
    assert [known.name for known in ct.runs()] == [run.name]


def test_throttling_is_waited_out(fake: FakeAws, job: dict[str, Any]) -> None:
    """`Rate exceeded` is tried again until it works."""
    fake.faults.throttle("CreateTrainingJob", times=2)
    run = submit_here(job)
    assert list(fake.jobs.by_name) == [run.name]
    assert len(fake.operations("CreateTrainingJob")) == 3
