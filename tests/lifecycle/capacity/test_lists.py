"""Lists of alternatives on fake clouds: each ends as the words of its targets say, with one run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cloudtrain as ct
from cloudtrain.cli.app import run_command
from cloudtrain.errors import JobError, RunNotFound, UsageError
from cloudtrain.plans.states import RunState
from tests.deadlines import DEADLINE
from tests.lifecycle.capacity.conftest import AZURE_SETTINGS, SAGEMAKER, Clouds, listed
from tests.targets.places import eventually

pytestmark = pytest.mark.lifecycle

QUOTA = (
    "The account-level service limit 'ml.g5.xlarge for training job usage' is 0 Instances, with current "
    "utilization of 0 Instances and a request delta of 1 Instances. Please contact AWS support to request "
    "an increase for this limit."
)
NONE_LEFT = (
    "CapacityError: Unable to provision requested ML compute capacity. Please retry using a different ML "
    "instance type."
)
CORES = (
    "Job submission to AzureML Compute encountered an Exception with status code JobNodeCountExceedsCoreQuota, "
    "The specified subscription has a Standard DSv2 family vCPU quota of 2 and is less than the requested job "
    "node count of 2 which maps to 4 vCPUs."
)

Submit = Callable[..., ct.Run]
G4 = {"set": ["resources.instance_type.sagemaker=ml.g4dn.xlarge"]}
AZURE = {"target": "azureml", "settings": AZURE_SETTINGS}


def fails_first(*reasons: str) -> Callable[[int, Any], None]:
    """The first jobs end with these reasons; the next one runs."""

    def live(number: int, job: Any) -> None:
        if number <= len(reasons):
            job.end("Failed", FailureReason=reasons[number - 1])
        else:
            job.enter("Training")

    return live


def reasons_of(run: ct.Run, count: int) -> list[str]:
    """What the status says of the tries."""
    phases = run.status().transitions[:count]
    assert [phase.phase.partition(":")[0] for phase in phases] == [
        f"try {number}" for number in range(1, count + 1)
    ]
    return [phase.message or "" for phase in phases]


@pytest.mark.slow
def test_a_watcher_goes_through_the_types(
    clouds: Clouds, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a process of its own. What the plan showed is what was sent; the second run is the list's."""
    clouds.live = fails_first(NONE_LEFT)
    job = listed(source, G4)
    plan = ct.plan(job, SAGEMAKER)
    assert [len(plan.request["tries"]), dict(plan.summary)["try 2"]] == [
        2,
        "1 x ml.g4dn.xlarge on sagemaker eu-west-1\nat most $0.74 at list prices\n"
        f"run {plan.run_name}-t002",
    ]
    run = ct.submit(job, SAGEMAKER, online=False)
    assert run.name == plan.run_name
    eventually(lambda: run.status().state is RunState.RUNNING)
    clouds.created[1].end("Completed")
    assert run.wait(DEADLINE).state is RunState.SUCCEEDED
    sent = [item.request for item in clouds.created]
    assert [item["TrainingJobName"] for item in sent] == [f"{run.name}-t001", f"{run.name}-t002"]
    planned = [item["request"]["ResourceConfig"] for item in plan.request["tries"]]
    assert [item["ResourceConfig"] for item in sent] == planned
    assert run_command(["show", run.name]) == 0
    assert NONE_LEFT[:20] in capsys.readouterr().out


def test_a_quota_and_no_capacity_move_on(clouds: Clouds, source: Path, driven: Submit) -> None:
    """One is refused, one is accepted and fails; the third runs. The costs are those of the runs."""
    clouds.live = fails_first(NONE_LEFT)
    clouds.aws.faults.refuse("CreateTrainingJob", "ResourceLimitExceeded", QUOTA)
    third = {"set": ["resources.instance_type.sagemaker=ml.p3.2xlarge"]}
    run = driven(listed(source, G4, third))
    assert [job.name for job in clouds.created] == [f"{run.name}-t002", f"{run.name}-t003"]
    assert run.status().state is RunState.RUNNING
    first, second, last = reasons_of(run, 3)
    assert "account-level service limit" in first
    assert second.startswith("CapacityError")
    assert last == ""
    with pytest.raises(RunNotFound):
        ct.run(f"{run.name}-t001x")
    clouds.created[1].end("Completed")
    assert run.wait(DEADLINE).state is RunState.SUCCEEDED
    assert [item.name for item in ct.runs()] == [run.name]


def test_spot_then_on_demand(clouds: Clouds, source: Path, driven: Submit) -> None:
    """SageMaker stops a job whose spot capacity did not come in time."""

    def live(number: int, job: Any) -> None:
        if number == 1:
            job.end("Stopped", "MaxWaitTimeExceeded")
        else:
            job.enter("Training")

    clouds.live = live
    job = listed(source, {"set": ["spot=null"]}, spot={"max_wait": "2h"})
    run = driven(job)
    spot = [item.request.get("EnableManagedSpotTraining") for item in clouds.created]
    assert spot == [True, None]
    assert run.status().state is RunState.RUNNING


def test_this_machine_is_no_spot_capacity(clouds: Clouds, source: Path) -> None:
    """It can only be the last, and the plan says `spot` of the others."""
    job = listed(source, {"target": "local"}, spot={"max_wait": "2h"})
    summary = dict(ct.plan(job, SAGEMAKER).summary)
    assert "spot" in summary["try 1"]
    assert "spot" not in summary["try 2"]


def test_another_region(clouds: Clouds, source: Path, driven: Submit) -> None:
    """The code is uploaded to the bucket of the region when its turn comes."""
    clouds.aws.s3.add_bucket("sagemaker-us-west-2-123456789012", region="us-west-2")
    clouds.live = fails_first(NONE_LEFT)
    run = driven(listed(source, {"settings": {"region": "us-west-2"}}))
    places = [attempt["place"] for attempt in run.show().plan["request"]["tries"]]
    assert places == ["eu-west-1", "us-west-2"]
    outputs = [item.request["OutputDataConfig"]["S3OutputPath"] for item in clouds.created]
    assert [path.split("/")[2] for path in outputs] == [
        "sagemaker-eu-west-1-123456789012",
        "sagemaker-us-west-2-123456789012",
    ]
    assert run.status().state is RunState.RUNNING


def test_from_one_cloud_to_another(clouds: Clouds, source: Path, driven: Submit) -> None:
    """And back: Azure ML's words count on Azure ML."""

    def live(number: int, job: Any) -> None:
        if number == 1:
            job.end("Failed", FailureReason=NONE_LEFT)
        elif number == 2:
            job.end("Failed", error=CORES)
        else:
            job.enter("Training")

    clouds.live = live
    run = driven(listed(source, AZURE, G4))
    assert len(clouds.created) == 3
    assert reasons_of(run, 3)[1].find("vCPU quota of 2") > 0
    assert run.status().state is RunState.RUNNING


@pytest.mark.parametrize(
    "reason",
    [
        "ClientError: Cannot pull the image",
        "AlgorithmError: CapacityError is what my script says, exit code: 1",
        "AccessDenied: the role may not read s3://data",
    ],
)
def test_another_fault_ends_the_list(
    clouds: Clouds, source: Path, driven: Submit, reason: str
) -> None:
    """Of an image, a script or a role."""
    clouds.live = fails_first(reason)
    run = driven(listed(source, G4))
    assert run.status().state is RunState.FAILED
    assert len(clouds.created) == 1


def test_a_refusal_for_another_reason_ends_the_list(
    clouds: Clouds, source: Path, driven: Submit
) -> None:
    clouds.aws.faults.refuse("CreateTrainingJob", "ValidationException", "no such role")
    run = driven(listed(source, G4))
    status = run.status()
    assert (status.state, clouds.created) == (RunState.FAILED, [])
    assert "no such role" in (status.reason or "")


def test_a_run_that_started_is_the_end(clouds: Clouds, source: Path, driven: Submit) -> None:
    """Even if it fails with the word of a lack."""

    def live(_: int, job: Any) -> None:
        job.enter("Training")
        job.end("Failed", FailureReason=NONE_LEFT)

    clouds.live = live
    run = driven(listed(source, G4))
    assert (run.status().state, len(clouds.created)) == (RunState.FAILED, 1)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("comes", [True, False])
def test_a_wait_is_over(clouds: Clouds, source: Path, driven: Submit, comes: bool) -> None:
    """The job is stopped, and the next is sent when it has stopped. If capacity comes while it is being stopped, it is
    the run of the list, which has failed: the user did not stop it."""

    def live(number: int, job: Any) -> None:
        if number == 2:
            job.enter("Training")

    def stop(job: Any) -> None:
        if comes:
            job.enter("Training")
        job.end("Stopped")

    clouds.live = live
    clouds.aws.jobs.on_stop = stop
    run = driven(listed(source, G4, limits={"wait": 1}))
    assert len(clouds.created) == (1 if comes else 2)
    status = run.status()
    assert status.state is (RunState.FAILED if comes else RunState.RUNNING)
    assert comes == ("capacity came while cloudtrain was stopping it" in (status.reason or ""))
    assert reasons_of(run, 1)[0].startswith("no capacity within 1s")


@pytest.mark.slow
def test_none_has_capacity(clouds: Clouds, source: Path, driven: Submit) -> None:
    """Each is tried once. With `give_up_after`, they are tried again and again until then."""
    clouds.live = fails_first(*[NONE_LEFT] * 100)
    run = driven(listed(source, G4))
    status = run.status()
    assert (status.state, len(clouds.created)) == (RunState.FAILED, 2)
    assert (status.reason or "").startswith("no capacity after 2 tries")
    clouds.live = fails_first(*[NONE_LEFT] * 5)
    again = driven(listed(source, G4, limits={"give_up_after": "1h"}, tags={"a": "b"}))
    assert (again.status().state, len(clouds.created)) == (RunState.RUNNING, 6)
    assert clouds.created[-1].name == f"{again.name}-t004"
    clouds.live = fails_first(*[NONE_LEFT] * 1000)
    last = driven(listed(source, G4, limits={"give_up_after": 1}, tags={"a": "c"}))
    assert last.status().state is RunState.FAILED


def test_stop(clouds: Clouds, source: Path, driven: Submit) -> None:
    """Stops the try that is there, and nothing follows."""
    stopped: list[str] = []

    def end(job: Any) -> None:
        stopped.append(job.name)
        job.end("Stopped")

    clouds.live = lambda _number, _job: None
    clouds.aws.jobs.on_stop = end
    runs: list[ct.Run] = []

    def moment(step: str) -> None:
        if step == "sent":
            ct.run(runs[0].name).stop()

    run = ct.submit(listed(source, G4), SAGEMAKER, online=False)
    runs.append(run)
    driven.drive(run, moment)  # type: ignore[attr-defined]
    assert run.status().state is RunState.STOPPED
    assert stopped[:1] == [f"{run.name}-t001"]
    assert len(clouds.created) == 1
    run.remove()
    assert list(ct.runs()) == []


def test_stop_before_anything_was_sent(clouds: Clouds, source: Path, driven: Submit) -> None:
    run = ct.submit(listed(source, G4), SAGEMAKER, online=False)
    driven.drive(run, lambda step: run.stop() if step == "began" else None)  # type: ignore[attr-defined]
    status = run.status()
    assert (status.state, clouds.created) == (RunState.STOPPED, [])


@pytest.mark.slow
def test_no_answer_blocks_the_list(clouds: Clouds, source: Path, driven: Submit) -> None:
    """The job was made, and the answer lost. The list waits until it knows."""
    clouds.aws.faults.close_after("CreateTrainingJob", times=4)
    clouds.aws.faults.close_before("DescribeTrainingJob", times=4)
    run = driven(listed(source, G4))
    assert [job.name for job in clouds.created] == [f"{run.name}-t001"]
    assert run.status().state is RunState.RUNNING


def test_the_plan_of_a_list_is_the_one_that_is_sent(
    clouds: Clouds, source: Path, driven: Submit
) -> None:
    """By its hash, once."""
    job = listed(source, G4)
    plan = ct.plan(job, SAGEMAKER)
    run = driven(job, exactly=plan)
    again = ct.submit(job, SAGEMAKER, online=False, exactly=plan.sha256)
    assert (again.name, again.adopted, len(clouds.created)) == (run.name, True, 1)


def test_one_entry_without_a_price_is_too_much_for_a_cap(
    clouds: Clouds, source: Path, driven: Submit
) -> None:
    """And the dearest entry counts."""
    capped = SAGEMAKER.replace(max_cost=1000.0)
    dear = {"set": ["resources.instance_type.sagemaker=ml.unknown.9xlarge"]}
    for alternative, target in ((dear, capped), (G4, SAGEMAKER.replace(max_cost=1.0))):
        with pytest.raises((UsageError, ct.PreflightError, JobError)):
            driven(listed(source, alternative), target)
    assert clouds.created == []


def test_every_entry_is_checked_before_the_first_is_sent(
    clouds: Clouds, source: Path, driven: Submit
) -> None:
    with pytest.raises(JobError, match="try 3: SageMaker has no image"):
        ct.plan(listed(source, G4, {"set": ["environment.version=0.1"]}), SAGEMAKER)
    wrong = {"set": ["max_runtime=40d"]}
    plan = ct.plan(listed(source, G4, wrong), SAGEMAKER)
    messages = [error.message for error in plan.errors]
    assert messages
    assert all(message.startswith("try 3: ") for message in messages)
    with pytest.raises(ct.PreflightError):
        driven(listed(source, G4, wrong))
    assert clouds.created == []


@pytest.mark.parametrize(
    ("alternatives", "says"),
    [
        (({},), "sends the same as try 1"),
        (({"target": "local"}, G4), "never lacks capacity"),
        (({"set": ["resources.instance_tipe=x"]},), "try 2: "),
        (({"target": "nowhere"},), "not a target"),
    ],
)
def test_a_list_that_makes_no_sense(
    clouds: Clouds, source: Path, alternatives: Any, says: str
) -> None:
    with pytest.raises(ct.CloudtrainError, match=says):
        ct.plan(listed(source, *alternatives), SAGEMAKER)


def test_on_the_command_line(
    clouds: Clouds, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--or` names alternatives as `--set` names changes."""
    fields = {
        "name": "train",
        "entry_point": "train.py",
        "resources": {"instance_type": {"sagemaker": "ml.g5.xlarge"}},
        "environment": {"framework": "pytorch", "version": "2.8"},
        "max_runtime": "1h",
    }
    job = source / "job.json"
    job.write_text(json.dumps(fields))
    (source / "cloudtrain.toml").write_text(
        f'target = "sagemaker"\n[sagemaker]\nregion = "eu-west-1"\nrole = "{SAGEMAKER.role}"\n'
    )
    either = "resources.instance_type.sagemaker=ml.g4dn.xlarge wait=20m settings.region=us-west-2"
    assert run_command(["plan", str(job), "--json", "--or", either]) == 0
    request = json.loads(capsys.readouterr().out)["request"]
    tries = [(item["place"], item["wait"]) for item in request["tries"]]
    assert tries == [("eu-west-1", 900.0), ("us-west-2", 1200)]
    assert run_command(["plan", str(job), "--or", "spot"]) == 2
    assert "has no `=`" in capsys.readouterr().err


def test_this_machine_runs_the_job_as_it_is(source: Path) -> None:
    """It never lacks capacity, and says so."""
    plan = ct.plan(listed(source, G4), "local")
    assert "tries" not in plan.request
    details = [text for finding in plan.findings for text in finding.details]
    assert "`capacity.alternatives`: this machine never lacks capacity" in details
