"""The life of a processing job on SageMaker, against the fake service."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import cloudtrain as ct
from cloudtrain.api import check
from cloudtrain.plans.plan import Finding, Level
from cloudtrain.plans.states import RunState
from tests.fakes.sagemaker.jobs import Job
from tests.fakes.sagemaker.server import FakeAws

pytestmark = pytest.mark.lifecycle

BUCKET = "sagemaker-eu-west-1-123456789012"
TARGET = ct.SageMaker(region="eu-west-1", role="arn:aws:iam::123456789012:role/SageMakerRole")
MESSAGE = "the script on algo-2 failed with exit code 1: ValueError: no such volume\nTraceback (most recent call last):\n"


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAws]:
    """The account, to which boto3 in this process talks, with one file of data."""
    pytest.importorskip("boto3")
    with FakeAws() as service:
        for name, value in service.environ.items():
            monkeypatch.setenv(name, value)
        service.s3.put(f"s3://{BUCKET}/raw/part-0", b"0")
        yield service


@pytest.fixture
def job(make_source: Callable[..., Path]) -> ct.ProcessingJob:
    return ct.ProcessingJob(
        name="prep",
        source_dir=str(make_source({"prep.py": "print(1)"})),
        entry_point="prep.py",
        resources={"instance_count": 2, "instance_type": "ml.m5.xlarge"},
        environment={"framework": "pytorch", "version": "2.8"},
        inputs={"raw": {"sagemaker": f"s3://{BUCKET}/raw", "shard": True}},
        outputs={"lists": {}},
        max_runtime="1h",
    )


@pytest.fixture
def run(fake: FakeAws, job: ct.ProcessingJob) -> ct.Run:
    """A job that was submitted."""
    del fake  # it must be there first
    return ct.submit(job, TARGET)


@pytest.fixture
def there(fake: FakeAws, run: ct.Run) -> Job:
    """The job as the service has it."""
    return fake.jobs[run.name]


def test_the_service_gets_what_the_plan_shows(fake: FakeAws, job: ct.ProcessingJob) -> None:
    """Once, with nothing added, and the bundle is where the request says."""
    plan = ct.plan(job, TARGET)
    run = ct.submit(job, TARGET)
    (received,) = fake.operations("CreateProcessingJob")
    assert json.loads(received.raw) == plan.request
    assert run.name == plan.run_name == received.body["ProcessingJobName"]
    code = plan.request["ProcessingInputs"][-1]["S3Input"]["S3Uri"]
    assert fake.s3.get(code).data[:2] == b"\x1f\x8b"


NO_BUCKET = "ClientError: no such bucket"
STATES: list[tuple[str, dict[str, str], RunState, str | None]] = [
    ("InProgress", {}, RunState.RUNNING, None),
    ("Stopping", {}, RunState.STOPPING, None),
    ("Completed", {"ExitMessage": "11 files"}, RunState.SUCCEEDED, None),
    ("Stopped", {}, RunState.STOPPED, None),
    ("Failed", {"FailureReason": NO_BUCKET}, RunState.FAILED, NO_BUCKET),
    ("Failed", {"FailureReason": NO_BUCKET, "ExitMessage": "11 files"}, RunState.FAILED, NO_BUCKET),
    (
        "Failed",
        {"FailureReason": "AlgorithmError: , exit code: 1", "ExitMessage": MESSAGE},
        RunState.FAILED,
        "the script on algo-2 failed with exit code 1: ValueError: no such volume",
    ),
]


@pytest.mark.slow
def test_every_state_of_the_service_is_known(run: ct.Run, there: Job) -> None:
    """With the reason of a failure: the container's own message, where the service knows only that it failed."""
    for status, more, state, reason in STATES:
        there.status, there.more = status, more
        found = run.status()
        assert (found.state, found.reason) == (state, reason)


@pytest.mark.slow
def test_the_log_is_that_of_processing_jobs(fake: FakeAws, run: ct.Run, there: Job) -> None:
    """Of all instances, in order, followed to the end."""
    for number, at in ((1, 10.0), (2, 11.0)):
        fake.logs.write(
            f"{run.name}/algo-{number}-1700000000", f"part {number}", at=at, group="ProcessingJobs"
        )
    there.status, there.ended = "Completed", 12.0
    assert [(line.instance, line.text) for line in run.logs(follow=True)] == [
        (0, "part 1"),
        (1, "part 2"),
    ]


def test_a_job_is_stopped_once(fake: FakeAws, run: ct.Run, there: Job) -> None:
    """A second stop changes nothing."""
    run.stop()
    run.stop()
    assert there.status == "Stopping"
    assert len(fake.operations("StopProcessingJob")) == 1


@pytest.mark.slow
def test_outputs_are_downloaded(fake: FakeAws, run: ct.Run, there: Job, tmp_path: Path) -> None:
    """From where the request said; no model is offered."""
    there.status = "Completed"
    uri = there.request["ProcessingOutputConfig"]["Outputs"][0]["S3Output"]["S3Uri"]
    fake.s3.put(f"{uri}/deep/names.txt", b"a b c")
    assert run.download("outputs/lists", tmp_path) == [tmp_path / "deep/names.txt"]
    assert (tmp_path / "deep/names.txt").read_bytes() == b"a b c"


@pytest.mark.slow
def test_both_kinds_of_jobs_are_listed_newest_first(
    fake: FakeAws, run: ct.Run, job: ct.ProcessingJob
) -> None:
    """`cloudtrain ps --target sagemaker` shows the account's processing jobs between its training jobs."""
    fields = {
        name: getattr(job, name)
        for name in ("source_dir", "entry_point", "resources", "environment")
    }
    newer = ct.submit(ct.TrainingJob(name="train", **fields), TARGET)
    newest = ct.submit(job.replace(name="again"), TARGET)
    assert [item.name for item in ct.runs(target=TARGET)] == [newest.name, newer.name, run.name]
    del fake


def test_who_may_not_list_processing_jobs_sees_training_jobs(fake: FakeAws, run: ct.Run) -> None:
    """The policy may leave processing out."""
    fake.faults.refuse("ListProcessingJobs", "AccessDeniedException", times=1)
    assert [item.name for item in ct.runs(target=TARGET)] == []
    del run


def test_a_job_over_its_budget_is_not_sent(fake: FakeAws, job: ct.ProcessingJob) -> None:
    """`max_cost` holds for processing, too, for what the overrides make of a job, and for the default of a day."""
    budget = TARGET.replace(max_cost=1.0)
    a_day = job.replace(max_runtime=None)
    config = {"InstanceCount": 50, "InstanceType": "ml.g5.12xlarge"}
    many = job.replace(sagemaker_overrides={"ProcessingResources": {"ClusterConfig": config}})
    assert "SM412" not in {finding.code for finding in ct.plan(job, budget).findings}
    assert refused(many, budget) == {
        (
            "CT210",
            "`resources.instance_count` has no effect, because `sagemaker_overrides` sets another value",
        ),
        (
            "SM412",
            "this can spend up to $354.50 (50 x ml.g5.12xlarge for 1h), and your cap is $1.00 (`max_cost`)",
        ),
    }
    assert refused(a_day, budget) == {
        (
            "SM412",
            "this can spend up to $11.04 (2 x ml.m5.xlarge for 1d), and your cap is $1.00 (`max_cost`)",
        )
    }
    assert fake.operations("CreateProcessingJob") == []


def test_a_budget_without_a_price_is_told(job: ct.ProcessingJob) -> None:
    """The type that decides is the one of the request."""
    config = {"InstanceType": "ml.m8i.24xlarge"}
    dear = job.replace(sagemaker_overrides={"ProcessingResources": {"ClusterConfig": config}})
    found = {
        finding.code: finding.message
        for finding in ct.plan(dear, TARGET.replace(max_cost=1.0)).findings
    }
    assert (
        found["SM413"]
        == "the price of `ml.m8i.24xlarge` is not known, so `max_cost` cannot be checked"
    )


def test_the_name_of_the_other_type_is_refused_by_code(
    fake: FakeAws, job: ct.ProcessingJob
) -> None:
    """An override may write `TrainingJobName` into a processing job, and the reverse: the plan stands, and says it."""
    training = ct.TrainingJob(
        name="train",
        **{
            name: getattr(job, name)
            for name in ("source_dir", "entry_point", "resources", "environment")
        },
        sagemaker_overrides={"ProcessingJobName": "x"},
    )
    processing = job.replace(sagemaker_overrides={"TrainingJobName": "x"})
    assert (
        {code for code, _ in refused(processing)}
        == {code for code, _ in refused(training)}
        == {"SM110"}
    )
    assert list(ct.plan(processing, TARGET).outputs) == ["outputs/lists"]
    assert list(ct.plan(training, TARGET).outputs) == ["model", "outputs"]
    assert not fake.operations("CreateProcessingJob") + fake.operations("CreateTrainingJob")


def refused(
    job: ct.TrainingJob | ct.ProcessingJob, target: ct.SageMaker = TARGET
) -> set[tuple[str, str]]:
    """Code and message of the errors that stopped a submit."""
    with pytest.raises(ct.PreflightError) as caught:
        ct.submit(job, target)
    findings = [item for item in caught.value.findings if isinstance(item, Finding)]
    return {(finding.code, finding.message) for finding in findings if finding.level is Level.ERROR}


@pytest.mark.slow
def test_a_training_job_reads_the_output_once_it_is_there(
    fake: FakeAws, run: ct.Run, there: Job, job: ct.ProcessingJob
) -> None:
    """`run:prep/output/lists` is the place of the processing job's own request. A submit asks whether that job has
    succeeded, whatever was last seen of it. While it goes on, what it has not written yet is no mistake."""
    uri = there.request["ProcessingOutputConfig"]["Outputs"][0]["S3Output"]["S3Uri"]
    train = ct.TrainingJob(
        name="train",
        source_dir=job.source_dir,
        entry_point="prep.py",
        resources=job.resources.replace(instance_count=1),
        environment=job.environment,
        inputs={"lists": {"sagemaker": "run:prep/output/lists"}},
    )
    nothing = ("SM907", f"there is nothing under `{uri}`")
    assert check(train, TARGET).errors == ()
    there.status = "Stopped"
    assert refused(train) == {
        ("CT531", f"the run `{run.name}` is stopped, so its output is incomplete"),
        nothing,
    }
    there.status = "Completed"
    assert refused(train) == {nothing}
    fake.s3.put(f"{uri}/names.txt", b"a")
    ct.submit(train, TARGET)
    (received,) = fake.operations("CreateTrainingJob")
    assert received.body["InputDataConfig"][0]["DataSource"]["S3DataSource"]["S3Uri"] == uri


def test_the_account_is_asked_about_a_processing_job(fake: FakeAws, job: ct.ProcessingJob) -> None:
    """Its inputs, its buckets and its quota."""
    fake.identity.quotas["ml.m5.xlarge for processing job usage"] = 1
    inputs = {"raw": {"sagemaker": f"s3://{BUCKET}/nothing", "shard": True}}
    outputs = {"lists": {"sagemaker": "s3://no-such-bucket-here/lists"}}
    found = {
        item.code: item
        for item in check(job.replace(inputs=inputs, outputs=outputs), TARGET).findings
    }
    assert found["SM907"].path == ("inputs", "raw", "sagemaker")
    assert found["SM905"].path == ("outputs", "lists", "sagemaker")
    assert "needs 2" in found["SM908"].message


def test_what_the_service_would_refuse_is_told_before(job: ct.ProcessingJob) -> None:
    """Instance types that processing lacks, and more inputs than it takes, from the service's own model."""
    findings = ct.plan(job.replace(resources={"instance_type": "ml.p4d.24xlarge"}), TARGET).errors
    assert any("ml.p4d.24xlarge" in finding.message for finding in findings)
    # and the code
    inputs = {f"i{number}": {"sagemaker": f"s3://{BUCKET}/{number}"} for number in range(10)}
    assert any(
        "ProcessingInputs" in finding.message
        for finding in ct.plan(job.replace(inputs=inputs), TARGET).errors
    )


def test_the_sdks_estimators_are_for_training_jobs(job: ct.ProcessingJob) -> None:
    """The request can be printed for the AWS command line; the SDK's objects are for training jobs."""
    forms = ct.plan(job, TARGET).forms()
    assert list(forms) == ["aws-cli"]
    assert json.loads(forms["aws-cli"]()) == ct.plan(job, TARGET).request
