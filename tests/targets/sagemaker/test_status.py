"""Where a job is: every word of the service, the reason of a failure, phases, restarts, metrics and money."""

from __future__ import annotations

from pathlib import Path

import botocore.session  # noqa: TID253
import pytest

from cloudtrain.errors import SettingsError
from cloudtrain.plans.states import RunState
from cloudtrain.targets.sagemaker.service.service import STATES, SageMakerService, state_of
from tests.fakes.sagemaker.jobs import Job
from tests.fakes.sagemaker.server import FakeAws
from tests.guards import skip_older_botocore
from tests.targets.sagemaker.conftest import NAME, REF, plan_of


def enum(shape: str) -> set[str]:
    """What the service may say, by botocore's model of it."""
    model = botocore.session.get_session().get_service_model("sagemaker")
    return set(model.shape_for(shape).enum)


def test_every_state_is_mapped() -> None:
    """Every value of both enums, and no value that does not exist."""
    skip_older_botocore()
    # of a job in progress, the secondary status decides
    primary = {"InProgress", *STATES["primary"]}
    assert enum("TrainingJobStatus") == primary
    assert enum("ProcessingJobStatus") <= primary
    assert enum("SecondaryStatus") == set(STATES["secondary"])


def test_words_of_a_newer_service() -> None:
    """They mean that the job goes on, never that it ended."""
    assert state_of("InProgress", "Pondering") is RunState.RUNNING
    assert state_of("Pondering", None) is RunState.RUNNING


PHASES = [
    ("Pending", "pending"), ("Starting", "preparing"), ("Downloading", "preparing"), ("Training", "running"),
    ("Interrupted", "pending"), ("Restarting", "preparing"), ("Training", "running"), ("Uploading", "running"),
]  # fmt: skip


def test_the_phases_of_a_spot_job(service: SageMakerService, job: Job) -> None:
    """Each one as it comes, with its times; an interruption says so, and counts as a restart."""
    for phase, state in PHASES:
        job.enter(phase, f"now {phase}")
        assert service.status(REF).state.value == state
    status = service.status(REF)
    assert [item.phase for item in status.transitions] == [
        "Starting",
        *(phase for phase, _ in PHASES),
    ]
    assert all(item.ended for item in status.transitions[:-1])
    assert status.transitions[-1].ended is None
    assert status.restarts == 2
    job.enter("Interrupted")
    assert "spot capacity was taken away" in str(service.status(REF).reason)


def test_a_job_that_waits_says_for_what(service: SageMakerService, job: Job) -> None:
    """The service's last message is the reason."""
    job.enter("Pending", "Insufficient capacity error,\n retrying")
    assert service.status(REF).reason == "Insufficient capacity error, retrying"


@pytest.mark.parametrize(
    ("secondary", "reason"),
    [
        ("MaxRuntimeExceeded", "it reached `max_runtime` (1h)"),
        ("MaxWaitTimeExceeded", "it reached `spot.max_wait`"),
    ],
)
def test_a_limit(service: SageMakerService, job: Job, secondary: str, reason: str) -> None:
    """A job that ran out of time was stopped, and says which limit it was."""
    job.enter("Training")
    job.enter(secondary)
    assert service.status(REF).state is RunState.STOPPING
    job.end("Stopped", secondary)
    status = service.status(REF)
    assert status.state is RunState.STOPPED
    assert str(status.reason).startswith(reason)


TOOLKIT = (
    "AlgorithmError: ExecuteUserScriptError:\nExitCode 1\n"
    'ErrorMessage "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n Traceback"\n'
    'Command "/usr/bin/python3 train.py --epochs 3", exit code: 1'
)
OURS = (
    "AlgorithmError: rank 3 failed with exit code 1: ValueError: bad thing\nTraceback (most recent call last):\n"
    '  File "train.py", line 3, in <module>\nValueError: bad thing, exit code: 1'
)
REASONS = {
    "toolkit": (
        TOOLKIT,
        "the script failed with exit code 1: torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB",
        None, 1,
    ),
    "ours": (OURS, "rank 3 failed with exit code 1: ValueError: bad thing", 3, 1),
    "user": ("ClientError: Data download failed: NoSuchKey", "ClientError: Data download failed: NoSuchKey", None, None),
    "capacity": (
        "CapacityError: Unable to provision requested ML compute capacity. Please retry",
        "CapacityError: Unable to provision requested ML compute capacity. Please retry", None, None,
    ),
    "killed": ("AlgorithmError: , exit code: 137", "the service gives no reason", None, 137),
    "nothing": ("", "the service gives no reason", None, None),
}  # fmt: skip


@pytest.mark.parametrize("case", REASONS)
def test_reason(service: SageMakerService, job: Job, case: str) -> None:
    """One line that says what went wrong, and the rank and exit code where they are known."""
    said, reason, rank, code = REASONS[case]
    job.enter("Training")
    job.end("Failed", FailureReason=said)
    status = service.status(REF)
    assert (status.state, status.reason) == (RunState.FAILED, reason)
    assert (status.failed_rank, status.exit_code) == (rank, code)


def test_the_traceback_of_our_launcher_is_kept(service: SageMakerService, job: Job) -> None:
    """The lines behind the reason are its details, and the log is not even asked."""
    job.end("Failed", FailureReason=OURS)
    assert service.status(REF).details[0] == "Traceback (most recent call last):"


def test_the_output_explains_what_the_service_does_not(
    fake: FakeAws, service: SageMakerService, job: Job
) -> None:
    """The error that a rank printed is added to the reason, with its last lines."""
    job.end("Failed", FailureReason="AlgorithmError: , exit code: 1")
    fake.logs.write(
        f"{NAME}/algo-1-1",
        "[1,2]<stderr>:Traceback (most recent call last):",
        "[1,2]<stderr>:KeyError: 'x'",
    )
    status = service.status(REF)
    assert status.reason == "the service gives no reason: KeyError: 'x'"
    assert status.failed_rank == 2
    assert status.details[-1] == "KeyError: 'x'"


def test_logs_that_may_not_be_read_hide_nothing(
    fake: FakeAws, service: SageMakerService, job: Job
) -> None:
    """The reason stays what the service said."""
    job.end("Failed", FailureReason="ClientError: no data")
    fake.faults.refuse("DescribeLogStreams", "AccessDeniedException", times=9)
    assert service.status(REF).reason == "ClientError: no data"


def test_times(service: SageMakerService, job: Job) -> None:
    """Made, begun and ended, in seconds since the epoch."""
    job.created = 1_700_000_000.0
    job.enter("Training", at=1_700_000_100.5)
    job.end("Completed", at=1_700_000_200.25)
    status = service.status(REF)
    assert (status.created, status.started, status.ended) == (
        1_700_000_000.0,
        1_700_000_100.5,
        1_700_000_200.25,
    )


def test_cost_of_a_finished_job(service: SageMakerService, job: Job) -> None:
    """Billed seconds times instances times the list price (ml.g5.12xlarge: the catalogue's), and what spot saved."""
    from cloudtrain.machines.table import instance_named

    price = instance_named("sagemaker", "ml.g5.12xlarge")
    assert price is not None
    assert price.price is not None
    job.request["EnableManagedSpotTraining"] = True
    job.end("Completed", BillableTimeInSeconds=900, TrainingTimeInSeconds=3600)
    status = service.status(REF)
    assert status.billable_seconds == 900
    assert status.cost == pytest.approx(2 * price.price / 4)
    assert status.saved == 0.75


def test_cost_so_far(service: SageMakerService, job: Job) -> None:
    """The meter starts with the download, not while instances are looked for."""
    assert service.status(REF).billable_seconds is None
    job.enter("Downloading", at=1_700_000_000.0)
    job.enter("Training", at=1_700_000_060.0)
    status = service.status(REF)
    assert status.billable_seconds is not None
    assert status.billable_seconds > 3600
    assert status.cost is not None


def test_cost_of_an_unknown_type(fake: FakeAws, service: SageMakerService) -> None:
    """None, never zero."""
    service.submit(
        plan_of(
            ResourceConfig={
                "InstanceCount": 1,
                "InstanceType": "ml.new1.xlarge",
                "VolumeSizeInGB": 1,
            }
        )
    )
    fake.jobs[NAME].end("Completed", BillableTimeInSeconds=900)
    status = service.status(REF)
    assert (status.billable_seconds, status.cost) == (900, None)


OWN = """
[sagemaker."ml.g5.12xlarge"]
price = 1.0
[sagemaker."ml.new1.xlarge"]
vcpus = 4
memory_gib = 16
gpus = 4
gpu = "A10G-24GB"
price = 3.0
"""


@pytest.mark.parametrize(("name", "cost"), [("ml.g5.12xlarge", 0.5), ("ml.new1.xlarge", 1.5)])
def test_cost_by_the_users_own_prices(
    fake: FakeAws, service: SageMakerService, folder: Path, name: str, cost: float
) -> None:
    """`instances.toml` counts in a status as it does in a plan: two instances for a quarter of an hour."""
    (folder / "instances.toml").write_text(OWN)
    service.submit(
        plan_of(ResourceConfig={"InstanceCount": 2, "InstanceType": name, "VolumeSizeInGB": 1})
    )
    fake.jobs[NAME].end("Completed", BillableTimeInSeconds=900)
    assert service.status(REF).cost == pytest.approx(cost)


def test_ranks_of_the_users_own_types(
    fake: FakeAws, service: SageMakerService, folder: Path
) -> None:
    """A type that only `instances.toml` has starts one process for each of its GPUs."""
    (folder / "instances.toml").write_text(OWN)
    config = {"InstanceCount": 2, "InstanceType": "ml.new1.xlarge", "VolumeSizeInGB": 1}
    torch = {"sagemaker_program": '"train.py"', "sagemaker_torch_distributed_enabled": "true"}
    service.submit(plan_of(ResourceConfig=config, HyperParameters=torch))
    fake.logs.write(f"{NAME}/algo-2-17", "[default1]: hello")
    assert [line.rank for line in service.logs(REF)] == [5]


def test_prices_that_cannot_be_read_do_not_keep_a_job_running(
    service: SageMakerService, folder: Path, job: Job
) -> None:
    """A broken `instances.toml` is told by a status; a stop needs no prices."""
    (folder / "instances.toml").write_text("[broken")
    with pytest.raises(SettingsError, match=r"instances\.toml:1:8: not valid TOML"):
        service.status(REF)
    service.stop(REF)
    assert job.status == "Stopping"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The project's folder, in which a person works."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_metrics(service: SageMakerService, job: Job) -> None:
    """The last values of the metrics that the service extracted."""
    job.more["FinalMetricDataList"] = [{"MetricName": "loss", "Value": 0.25, "Timestamp": 1.0}]
    assert service.status(REF).metrics == {"loss": 0.25}


def test_a_job_that_ends_between_two_requests(
    fake: FakeAws, service: SageMakerService, job: Job
) -> None:
    """Stopping it is no error."""
    job.enter("Training")
    fake.faults.refuse(
        "StopTrainingJob", "ValidationException", "the training job is in status Completed"
    )
    fake.jobs.on_stop = None
    find = service._find_job
    asked: list[object] = []

    def found(ref: object) -> object:
        if asked:
            job.end("Completed")
        asked.append(ref)
        return find(ref)

    service._find_job = found  # type: ignore[method-assign,assignment]
    service.stop(REF)


def test_stop_asks_once(fake: FakeAws, service: SageMakerService, job: Job) -> None:
    """A job that is stopping or has ended is left alone."""
    for _ in range(3):
        service.stop(REF)
    assert service.status(REF).state is RunState.STOPPING
    job.end("Stopped")
    service.stop(REF)
    assert len(fake.operations("StopTrainingJob")) == 1


def test_the_accounts_jobs(fake: FakeAws, service: SageMakerService) -> None:
    """Page by page, newest first, whoever made them, and no page that nobody looks at."""
    fake.jobs.page_size = 10
    for number in range(25):
        fake.jobs.handle(
            "CreateTrainingJob",
            {**plan_of().request, "TrainingJobName": f"job-{number}", "Tags": []},
        )
    found = service.runs("eu-west-1")
    assert [next(found).ref.name for _ in range(10)] == [
        f"job-{number}" for number in range(24, 14, -1)
    ]
    assert len(fake.operations("ListTrainingJobs")) == 1
    assert len(list(found)) == 15
    assert len(fake.operations("ListTrainingJobs")) == 3
