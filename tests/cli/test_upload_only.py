"""`submit --upload-only`: code and data are in place for another tool, and nothing else has happened."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.fakes.azureml import FakeAzure
from tests.fakes.sagemaker.server import FakeAws

pytestmark = pytest.mark.lifecycle

JOB = """\
name: digits
entry_point: train.py
max_runtime: 1h
environment: {framework: pytorch, version: "2.8"}
resources: {instance_type: {sagemaker: ml.m5.xlarge, azureml: Standard_NC24ads_A100_v4}}
inputs: {train: {sagemaker: ./data, azureml: ./data, slurm: /data}}
"""
SETTINGS = """\
[sagemaker]
role = "arn:aws:iam::123456789012:role/SageMakerRole"
region = "eu-west-1"
[azureml]
subscription_id = "00000000-0000-0000-0000-000000000000"
resource_group = "rg"
workspace = "ws"
compute = "a100"
[slurm]
shared_dir = "SHARED"
"""


@pytest.fixture
def job_file(make_source: Callable[..., Path], clean_environment: Path) -> str:
    """A job for three targets, with data beside it."""
    settings = SETTINGS.replace("SHARED", str(clean_environment / "shared"))
    files = {
        "train.py": "print(1)\n",
        "data/a.csv": "1\n",
        "job.yaml": JOB,
        "cloudtrain.toml": settings,
    }
    return str(make_source(files) / "job.yaml")


def put(cli: Cli, *arguments: str) -> list[str]:
    """Upload twice; the places, which the plan names too. The next run has the name that it had before."""
    planned = cli("plan", *arguments, "--json")
    assert planned.code == 0, planned.err
    plan = json.loads(planned.out)
    results = [cli("submit", *arguments, "--upload-only") for _ in range(2)]
    assert [item.code for item in results] == [0, 0], results[0].err
    assert results[0].out == results[1].out
    assert "nothing was submitted" in results[0].err
    assert results[0].out.splitlines() == [item["destination"] for item in plan["uploads"]]
    assert json.loads(cli("submit", *arguments, "--upload-only", "--json").out) == {
        "uploads": plan["uploads"]
    }
    assert json.loads(cli("plan", *arguments, "--json").out) == plan
    assert json.loads(cli("ps", "--json").out) == []
    return results[0].out.splitlines()


@pytest.mark.slow
def test_sagemaker(cli: Cli, job_file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bundle and data are in S3, once, and no job is there."""
    with FakeAws() as fake:
        for name, value in fake.environ.items():
            monkeypatch.setenv(name, value)
        code, data = put(cli, job_file, "--target", "sagemaker")
        names = {
            f"s3://{bucket}/{key}"
            for bucket, kept in fake.s3.buckets.items()
            for key in kept.objects
        }
        assert names == {code, f"{data.rstrip('/')}/a.csv"}
        operations = [item.operation for item in fake.received]
        assert operations.count("PutObject") == 2
        assert fake.jobs.by_name == {}
        assert not {"DescribeTrainingJob", "CreateTrainingJob"} & set(operations)


SWEEP = """\
kind: sweep
name: tune
job: JOB
strategy: random
trials: 2
driver: service
objective: {minimize: loss}
search: {lr: {uniform: [0.1, 1.0]}}
"""


def test_a_sweep_of_the_service(cli: Cli, job_file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tuner of SageMaker's takes the code from the same place."""
    sweep = Path(job_file).with_name("sweep.yaml")
    sweep.write_text(SWEEP.replace("JOB", "job.yaml"))
    with FakeAws() as fake:
        for name, value in fake.environ.items():
            monkeypatch.setenv(name, value)
        metric = ("--set", "job.metrics={loss: 'loss=([0-9.]+)'}")
        assert len(put(cli, str(sweep), "--target", "sagemaker", *metric)) == 2
        assert not {"CreateHyperParameterTuningJob"} & {item.operation for item in fake.received}


@pytest.mark.slow
def test_azureml(cli: Cli, job_file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code is an asset of the workspace, and no job is there."""
    with FakeAzure() as fake:
        for name, value in fake.environ.items():
            monkeypatch.setenv(name, value)
        assert any("/codes/" in place for place in put(cli, job_file, "--target", "azureml"))
        made = fake.calls("PUT", "/codes/[^/]+/versions/[^/]+$")
        assert len(made) == 1, made
        assert fake.calls("*", "/jobs/") == []


def test_slurm(cli: Cli, job_file: str, state_dir: Path) -> None:
    """The bundle lies in the shared folder, and this machine has no store."""
    (place,) = put(cli, job_file, "--target", "slurm")
    assert Path(place).is_file()
    assert not state_dir.exists()


@pytest.mark.parametrize(
    ("target", "form"), [("sagemaker", "aws-cli"), ("azureml", "az-cli"), ("slurm", "sbatch")]
)
def test_formats_name_the_command(cli: Cli, job_file: str, target: str, form: str) -> None:
    """Beside what another tool takes stands, on stderr, what uploads the code."""
    result = cli("plan", job_file, "--target", target, "--format", form, "--set", "tags.team=a b")
    said = " ".join(result.err.split())
    assert (
        f"cloudtrain submit --upload-only --target {target} --set 'tags.team=a b' {job_file}"
        in said
    )
    assert cli("plan", job_file, "--target", target, "--json").err == ""


def test_what_cannot_be(cli: Cli, job_file: str) -> None:
    """Options of runs, a job with mistakes, and what cloudtrain alone can start are refused."""
    for option in ("--detach", "--dry-run", "--queue"):
        result = cli("submit", job_file, "--upload-only", option)
        assert (result.code, f"remove `{option}`" in result.err) == (2, True)
    wrong = cli(
        "submit", job_file, "--target", "slurm", "--upload-only", "--set", "entry_point=none.py"
    )
    assert (wrong.code, "CT101" in wrong.err) == (2, True)
    here = cli("submit", job_file, "--upload-only", "--set", "inputs={}")
    assert (here.code, "CT977" in here.err) == (2, True)
    sweep = cli(
        "submit",
        job_file,
        "--target",
        "slurm",
        "--upload-only",
        "--each",
        "hyperparameters.seed=1,2",
    )
    assert (sweep.code, "CT977" in sweep.err) == (2, True)
