"""The command line against the fake SageMaker: a run's whole life, runs of others, and checks that ask."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import cloudtrain as ct
from tests.cli.conftest import Cli
from tests.deadlines import DEADLINE
from tests.fakes.sagemaker.server import FakeAws

pytestmark = pytest.mark.lifecycle

TYPE = "ml.m5.xlarge"
JOB = (
    "name: digits\nentry_point: train.py\nenvironment: {framework: pytorch, version: '2.14'}\n"
    f"resources: {{instance_type: {{sagemaker: {TYPE}}}}}\nmax_runtime: 1h\n"
)
SETTINGS = (
    '[sagemaker]\nrole = "arn:aws:iam::123456789012:role/SageMakerRole"\nregion = "eu-west-1"\n'
)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAws]:
    """An account in which everything is right."""
    with FakeAws() as service:
        service.identity.quotas[f"{TYPE} for training job usage"] = 4.0
        for name, value in service.environ.items():
            monkeypatch.setenv(name, value)
        yield service


@pytest.fixture
def job_file(make_source: Callable[..., Path], fake: FakeAws) -> str:
    """A job in its folder, with the account settings beside it."""
    return str(
        make_source({"train.py": "print(1)\n", "job.yaml": JOB, "cloudtrain.toml": SETTINGS})
        / "job.yaml"
    )


@pytest.fixture
def name(cli: Cli, job_file: str) -> str:
    """The name of a run that was just submitted."""
    result = cli("submit", job_file, "--target", "sagemaker", "--detach")
    assert result.code == 0, result.err
    return result.out.strip()


def test_the_life_of_a_run(cli: Cli, fake: FakeAws, name: str, tmp_path: Path) -> None:
    """Submitted, looked at, followed to its end, downloaded; each command says what it should."""
    job = fake.jobs[name]
    assert "state      preparing" in cli("status", name).out
    job.enter("Downloading", at=1_700_000_000.0)
    job.enter("Training", at=1_700_000_060.0)
    fake.logs.write(f"{name}/algo-1-17", "hello", "[1,1]<stdout>:there", at=1_700_000_061.0)
    assert cli("logs", name).out == "[rank 0] hello\n[rank 1] there\n"
    assert cli("logs", name, "--host", "algo-2").out == ""
    assert cli("logs", name, "--instance", "0", "--rank", "1", "--no-prefix").out == "there\n"
    job.end("Completed", at=1_700_000_120.0, BillableTimeInSeconds=120, TrainingTimeInSeconds=120)
    result = cli("wait", name)
    assert result.code == 0, result.err
    shown = cli("status", name).out
    assert "2m billed on each instance, $" in shown
    assert "Downloading" in shown
    status = json.loads(cli("status", name, "--json").out)
    assert (status["state"], status["billable_seconds"]) == ("succeeded", 120)
    assert [item["phase"] for item in status["transitions"]] == [
        "Starting",
        "Downloading",
        "Training",
        "Completed",
    ]
    got = cli("download", name, "logs/", "--to", str(tmp_path / "got"))
    assert got.out == f"{tmp_path / 'got/algo-1.log'}\n"


def test_submit_offline_asks_nothing(cli: Cli, fake: FakeAws, job_file: str) -> None:
    """The job is sent without a question about the role or the quota, which would stop it here."""
    fake.identity.roles.clear()
    assert cli("submit", job_file, "--target", "sagemaker", "--detach").code == 2
    asked = len(fake.received)
    result = cli("submit", job_file, "--target", "sagemaker", "--detach", "--offline")
    assert result.code == 0, result.err
    assert fake.jobs[result.out.strip()]
    assert not {"GetRole", "ListServiceQuotas"} & {item.operation for item in fake.received[asked:]}


def test_a_failed_run(cli: Cli, fake: FakeAws, name: str) -> None:
    """Why, in one line, and exit code 1."""
    fake.jobs[name].enter("Training", at=1_700_000_000.0)
    fake.jobs[name].end(
        "Failed",
        at=1_700_000_010.0,
        FailureReason="AlgorithmError: rank 0 failed with exit code 1: KeyError: 'x'",
    )
    result = cli("wait", name)
    assert result.code == 1
    assert "rank 0 failed with exit code 1: KeyError: 'x'" in " ".join(result.err.split())


def test_stop(cli: Cli, fake: FakeAws, name: str) -> None:
    """The job is asked to stop."""
    assert cli("stop", name).code == 0
    assert fake.jobs[name].status == "Stopping"


def test_runs_of_others(cli: Cli, fake: FakeAws, name: str) -> None:
    """`ps --target` lists the account's jobs, and a reference attaches to one that this machine did not submit."""
    theirs = {**fake.jobs[name].request, "TrainingJobName": "their-job", "Tags": []}
    fake.jobs.handle("CreateTrainingJob", theirs)
    fake.jobs["their-job"].end("Completed", at=1_700_000_000.0)
    listed = json.loads(cli("ps", "--target", "sagemaker", "--json").out)
    assert [run["name"] for run in listed] == ["their-job", name]
    assert [run["name"] for run in json.loads(cli("ps", "--json").out)] == [name]
    only = json.loads(cli("ps", "--target", "sagemaker", "--state", "succeeded", "--json").out)
    assert [run["name"] for run in only] == ["their-job"]
    status = json.loads(cli("status", "sagemaker://eu-west-1/their-job", "--json").out)
    assert (status["state"], status["job"]) == ("succeeded", "their-job")
    unknown = cli("status", "sagemaker://eu-west-1/nobody-1")
    assert unknown.code == 3
    assert "SageMaker has no run `nobody-1` in `eu-west-1`" in unknown.err


def test_runs_without_a_region(cli: Cli, fake: FakeAws, monkeypatch: pytest.MonkeyPatch) -> None:
    """No region is guessed."""
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    result = cli("ps", "--target", "sagemaker")
    assert result.code == 2
    assert "`region` in [sagemaker]" in result.err
    assert fake.received == []


def test_check_asks_with_credentials(cli: Cli, fake: FakeAws, job_file: str) -> None:
    """Errors of the account are found before a submit, unless nobody should ask; no opinion makes a role."""
    fake.identity.roles.clear()
    result = cli("check", job_file, "--target", "sagemaker", "--json")
    assert result.code == 2
    assert [finding["code"] for finding in json.loads(result.out)] == ["SM903"]
    assert cli("check", job_file, "--target", "sagemaker", "--offline").code == 0
    assert cli("check", job_file, "--target", "sagemaker", "--ignore", "SM903").code == 2
    refused = cli("submit", job_file, "--target", "sagemaker")
    assert refused.code == 2
    assert "SM903" in refused.err
    assert fake.jobs.by_name == {}


def test_check_without_credentials_asks_nobody(
    cli: Cli, fake: FakeAws, job_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--online` asks all the same, and says what is missing."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    assert cli("check", job_file, "--target", "sagemaker").code == 0
    assert fake.received == []
    result = cli("check", job_file, "--target", "sagemaker", "--online", "--json")
    assert [finding["code"] for finding in json.loads(result.out)] == ["SM901"]


@pytest.mark.slow
def test_waiting_through_an_outage(
    cli: Cli, fake: FakeAws, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AWS out of reach for a while is no end of a run: `wait` asks again."""
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    fake.jobs[name].end("Completed", at=1_700_000_000.0)
    fake.faults.close_before("DescribeTrainingJob", times=3)
    assert cli("wait", name, "--timeout", f"{DEADLINE:g}s").code == 0


def test_a_profile_goes_with_the_run(
    cli: Cli, fake: FakeAws, job_file: str, clean_environment: Path
) -> None:
    """A run is asked for with the credentials that it was submitted with, by any later command."""
    (clean_environment / ".aws").mkdir()
    (clean_environment / ".aws/credentials").write_text(
        "[research]\naws_access_key_id = AKIDRESEARCH\naws_secret_access_key = B\n"
    )
    settings = Path(job_file).parent / "cloudtrain.toml"
    settings.write_text(SETTINGS + 'profile = "research"\n')
    submitted = json.loads(
        cli("submit", job_file, "--target", "sagemaker", "--detach", "--json").out
    )
    assert submitted["ref"] == f"sagemaker://research@eu-west-1/{submitted['name']}"
    for reference in (
        submitted["name"],
        submitted["ref"],
        f"sagemaker://eu-west-1/{submitted['name']}",
    ):
        fake.received.clear()
        assert cli("status", reference).code == 0
        assert "AKIDRESEARCH" in fake.received[0].headers["authorization"]


def test_a_log_that_grows_is_read_on(fake: FakeAws, name: str) -> None:
    """Each reading asks for the new events alone, and finds alerts of all."""
    fake.jobs[name].enter("Training", at=1_700_000_000.0)
    stream = f"{name}/algo-1-17"
    alert = '[notice] {"kind": "alert", "text": "hot", "time": 1.0}'
    lines = [f"step {step} loss: 0.{step}" for step in range(3_500)]
    fake.logs.write(stream, alert, *lines, at=1_700_000_060.0)
    assert len(ct.run(name).observe().notices) == 1
    assert len(ct.run(name).metrics()) == 3_500
    asked = pages(fake)
    fake.logs.write(stream, "step 3500 loss: 0.5", at=1_700_000_061.0)
    column = ct.run(name).metrics().columns()["loss"]
    assert (len(column.value), column.step[-1], column.value[-1]) == (3_501, 3_500, 0.5)
    assert pages(fake) - asked == 2  # the new page, and the end
    assert [notice.text for notice in ct.run(name).observe().notices] == ["hot"]


def pages(fake: FakeAws) -> int:
    """The pages of logs that were asked for."""
    return sum(item.operation == "GetLogEvents" for item in fake.received)


def test_metrics_that_the_service_has_found(fake: FakeAws, name: str) -> None:
    """Its definitions are matched with the log; a metric that is not there has its last value."""
    job = fake.jobs[name]
    job.enter("Training", at=1_700_000_000.0)
    algorithm = job.request["AlgorithmSpecification"]
    algorithm["MetricDefinitions"] = [{"Name": "f1", "Regex": "quality ([0-9.]+)"}]
    fake.logs.write(f"{name}/algo-1-17", "step 3 quality 0.5", at=1_700_000_060.0)
    job.more["FinalMetricDataList"] = [
        {"MetricName": "f1", "Value": 0.5, "Timestamp": 1_700_000_060.0},
        {"MetricName": "lost", "Value": 2.0, "Timestamp": 1_700_000_061.0},
    ]
    for _ in range(2):
        columns = ct.run(name).metrics().columns()
        assert {key: column.source for key, column in columns.items()} == {
            "f1": "patterns",
            "lost": "service",
        }
        assert (list(columns["f1"].step), list(columns["lost"].value)) == ([3.0], [2.0])


def test_a_log_that_may_not_be_read(fake: FakeAws, name: str) -> None:
    """What the service has found is shown, and stands there once when the log can be read."""
    job = fake.jobs[name]
    job.enter("Training", at=1_700_000_000.0)
    stream = f"{name}/algo-1-17"
    fake.logs.write(stream, "step 1 acc: 0.5", at=1_700_000_060.0)
    job.more["FinalMetricDataList"] = [
        {"MetricName": "lost", "Value": 2.0, "Timestamp": 1_700_000_061.0}
    ]
    fake.faults.refuse("GetLogEvents", "AccessDeniedException", "no", status=403, times=9)
    assert set(ct.run(name).metrics().columns()) == {"lost"}
    fake.faults.clear()
    for _ in range(2):
        (values,) = ct.run(name).metrics()
        assert values == {"lost": 2.0}
