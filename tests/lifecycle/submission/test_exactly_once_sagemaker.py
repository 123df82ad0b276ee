"""No submission to SageMaker is lost or doubled: killed at every point and run again, exactly one job and one row."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import cloudtrain as ct
from cloudtrain.errors import TargetError
from cloudtrain.lifecycle.store.schema import read_store
from cloudtrain.targets.sagemaker.service.service import SageMakerService
from tests.fakes.sagemaker.server import FakeAws
from tests.lifecycle.submission.forking import Submitter, start_submitter
from tests.lifecycle.submission.kill_points import kill_points
from tests.lifecycle.submission.later import a_minute_later

pytestmark = pytest.mark.lifecycle

CRASHING = Path(__file__).with_name("crashing_sagemaker.py")
POINTS = 45
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
        "environment": {"framework": "pytorch", "version": "2.8"},
        "resources": {"instance_type": {"sagemaker": INSTANCE}},
        "max_runtime": "1h",
    }


@pytest.fixture
def submit_dying_at(submitter: Submitter, job: dict[str, Any]) -> Callable[[int], dict[str, Any]]:
    """Submit in a process that kills itself at that point."""
    return lambda point: submitter.submit(point=point, job=job, target=TARGET, ignore=IGNORED)


def submit_here(job: dict[str, Any]) -> ct.Run:
    """Run the command again."""
    return ct.submit(ct.TrainingJob(**job), ct.SageMaker(**TARGET), ignore=IGNORED)


@pytest.mark.slow
def test_the_points_are_all_known(
    fake: FakeAws, submit_dying_at: Callable[[int], dict[str, Any]]
) -> None:
    """A submission passes exactly the points that the next test kills it at, and asks AWS no more than this."""
    answer = submit_dying_at(0)
    assert answer["ended"] == 0
    assert answer["points"] == POINTS
    asked = [item.operation for item in fake.received]
    assert asked[0] == "GetCallerIdentity"
    assert sorted(asked[1:4]) == ["GetRole", "HeadBucket", "ListServiceQuotas"]  # at the same time
    assert asked[4:] == [
        "HeadObject",
        "PutObject",
        "DescribeTrainingJob",
        "DescribeProcessingJob",
        "CreateTrainingJob",
    ]


@pytest.mark.parametrize("point", kill_points(POINTS))
def test_killed_anywhere(
    point: int,
    fake: FakeAws,
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
            (run.name, "reported", "eu-west-1")
        ]
    assert list((state_dir / "submitting").iterdir()) == []


def _stages(state_dir: Path) -> list[str]:
    """How far each submission came."""
    with read_store(state_dir) as store:
        return [record.stage for record in store.newest()]


def _recover(fake: FakeAws, state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


DATA_POINTS = 54


@pytest.fixture
def job_with_data(job: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    """The same job with a folder of this machine."""
    (tmp_path / "data/sub").mkdir(parents=True)
    (tmp_path / "data/a.csv").write_text("1,2\n")
    (tmp_path / "data/sub/b.csv").write_text("3\n")
    return job | {"inputs": {"train": {"sagemaker": f"{tmp_path}/data"}}}


@pytest.mark.slow
def test_the_points_of_data_are_all_known(
    fake: FakeAws, submitter: Submitter, job_with_data: dict[str, Any]
) -> None:
    """A listing and a request for each file are added to the points of a submission."""
    answer = submitter.submit(point=0, job=job_with_data, target=TARGET, ignore=IGNORED)
    assert (answer["ended"], answer["points"]) == (0, DATA_POINTS)


@pytest.mark.parametrize("point", kill_points(DATA_POINTS))
@pytest.mark.slow_after(5)
def test_killed_anywhere_with_data(
    point: int, fake: FakeAws, submitter: Submitter, job_with_data: dict[str, Any], state_dir: Path
) -> None:
    """Killed at any point and submitted again, each file is in storage once and whole, and one job reads it."""
    died = submitter.submit(point=point, job=job_with_data, target=TARGET, ignore=IGNORED)
    assert died["ended"] == -signal.SIGKILL
    was_noted = _stages(state_dir) == ["reported"]
    run = submit_here(job_with_data)
    assert len(fake.jobs.by_name) == 1 + was_noted
    stored = {
        name.rpartition("/data/")[2].partition("/")[2]: item.data
        for bucket in fake.s3.buckets.values()
        for name, item in bucket.objects.items()
        if "/data/" in name
    }
    assert stored == {"a.csv": b"1,2\n", "sub/b.csv": b"3\n"}
    assert run.name in fake.jobs.by_name


@pytest.mark.parametrize(
    "fault", [pytest.param("close_before", marks=pytest.mark.slow), "close_after"]
)
@pytest.mark.parametrize("operation", ["HeadObject", "PutObject", "CreateTrainingJob"])
def test_a_lost_connection_is_tried_again(
    fake: FakeAws, job: dict[str, Any], operation: str, fault: str
) -> None:
    """A connection that closes before or after the work makes neither a second job nor an error."""
    getattr(fake.faults, fault)(operation)
    run = submit_here(job)
    assert list(fake.jobs.by_name) == [run.name]
    assert len(fake.operations(operation)) == 2


def test_an_answer_that_never_comes(
    fake: FakeAws, job: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
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
    real = SageMakerService.submit

    def silenced(*args: Any, **kwargs: Any) -> Any:
        # asked after the request, and by recover
        fake.faults.close_before("DescribeTrainingJob", times=2)
        return real(*args, **kwargs)

    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setattr(SageMakerService, "submit", silenced)
    fake.faults.close_after("CreateTrainingJob")
    with pytest.raises(TargetError, match="does not answer"):
        submit_here(job)
    assert [found.outcome for found in ct.recover()] == ["unknown"]
    assert [found.outcome for found in ct.recover()] == ["finished"]
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
    """A job that has our name and was not made by us stays as it is, and the next name is taken."""
    plan = ct.plan(ct.TrainingJob(**job), ct.SageMaker(**TARGET), ignore=IGNORED)
    theirs = {**plan.request, "Tags": [{"Key": "cloudtrain:run", "Value": "another"}]}
    fake.jobs.handle("CreateTrainingJob", theirs)
    run = submit_here(job)
    assert run.name == plan.run_name.removesuffix("-1") + "-2"
    assert list(fake.jobs.by_name) == [plan.run_name, run.name]
    assert [known.name for known in ct.runs()] == [run.name]


def test_a_job_that_appears_between_the_question_and_the_request(
    fake: FakeAws, job: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another store was faster with the very same request: its job is not taken for this one."""
    planned = ct.plan(ct.TrainingJob(**job), ct.SageMaker(**TARGET), ignore=IGNORED)
    real = SageMakerService.submit

    def late(backend: SageMakerService, plan: ct.Plan, *, again: bool = False) -> Any:
        if not fake.jobs.by_name:
            fake.jobs.handle("CreateTrainingJob", plan.request)
        return real(backend, plan, again=again)

    monkeypatch.setattr(SageMakerService, "submit", late)
    run = submit_here(job)
    assert list(fake.jobs.by_name) == [planned.run_name, run.name]
    assert [known.name for known in ct.runs()] == [run.name]


@pytest.mark.slow
def test_a_job_of_an_earlier_store(fake: FakeAws, job: dict[str, Any], state_dir: Path) -> None:
    """With the store lost a job of a second ago is not taken for the new run."""
    earlier = [submit_here(job).name, submit_here(job).name]
    shutil.rmtree(state_dir)
    run = submit_here(job)
    assert list(fake.jobs.by_name) == [*earlier, run.name]
    assert [known.name for known in ct.runs()] == [run.name]


@pytest.mark.slow
def test_two_state_folders_give_two_names(
    fake: FakeAws, job: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One user, one host, one plan, to the byte: only the stores tell the two runs apart."""
    names = []
    for folder in ("one", "two"):
        monkeypatch.setenv("CLOUDTRAIN_STATE_DIR", str(tmp_path / folder))
        names.append(submit_here(job).name)
    assert list(fake.jobs.by_name) == names
    assert [name.rpartition("-")[2] for name in names] == ["1", "1"]


@pytest.mark.slow
def test_throttling_is_waited_out(fake: FakeAws, job: dict[str, Any]) -> None:
    """`Rate exceeded` is tried again until it works."""
    fake.faults.throttle("CreateTrainingJob", times=2)
    run = submit_here(job)
    assert list(fake.jobs.by_name) == [run.name]
    assert len(fake.operations("CreateTrainingJob")) == 3
