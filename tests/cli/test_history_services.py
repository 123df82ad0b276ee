"""The same on this machine, and against the fakes of the services: what they receive twice is the same."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path

import pytest

import cloudtrain as ct
from tests.cli import test_azureml, test_sagemaker
from tests.cli.conftest import Cli
from tests.fakes.azureml import FakeAzure
from tests.fakes.sagemaker.server import FakeAws

pytestmark = pytest.mark.lifecycle


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAws]:
    """An account in which everything is right."""
    with FakeAws() as service:
        service.identity.quotas[f"{test_sagemaker.TYPE} for training job usage"] = 9.0
        for name, value in service.environ.items():
            monkeypatch.setenv(name, value)
        yield service


@pytest.fixture
def azure(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAzure]:
    """A workspace with a cluster."""
    with FakeAzure() as service:
        service.computes.add("a100", test_azureml.TYPE)
        for name, value in service.environ.items():
            monkeypatch.setenv(name, value)
        yield service


def submitted(cli: Cli, job_file: Path, *arguments: str) -> str:
    """The name of a run that was just submitted."""
    result = cli("submit", str(job_file), *arguments, "--detach")
    assert result.code == 0, result.err
    return result.out.strip()


def rerun(cli: Cli, name: str, *arguments: str) -> str:
    """The name of the run that repeats another one."""
    result = cli("rerun", name, *arguments, "--detach")
    assert result.code == 0, result.err
    return result.out.strip()


def test_rerun_on_this_machine(
    cli: Cli, make_source: Callable[..., Path], state_dir: Path, tmp_path: Path, python: str
) -> None:
    """Without the source folder and without the archive: the run's own folder has the code."""
    script = "from pathlib import Path\nprint('hello from', Path('part.py').read_text())\nPath('out.txt').touch()\n"
    job = "name: digits\nentry_point: train.py\n"
    source = make_source({"train.py": script, "part.py": "part", "job.yaml": job})
    name = submitted(cli, source / "job.yaml", "--python", python)
    assert cli("wait", name).code == 0
    shutil.rmtree(source)
    shutil.rmtree(state_dir / "bundles")
    new = rerun(cli, name)
    assert cli("wait", new).code == 0
    assert "hello from part" in cli("logs", new).out
    old_request, new_request = (
        (state_dir / "runs" / run / "launch.json").read_text() for run in (name, new)
    )
    assert new_request.replace(new, name) == old_request
    assert cli("code", new, str(tmp_path / "code")).code == 0
    assert {file.name for file in (tmp_path / "code").iterdir()} == {
        "train.py",
        "part.py",
        "job.yaml",
    }
    (state_dir / "runs" / name / "code" / "train.py").write_text(
        "print('changed by the script itself')"
    )
    assert cli("diff", name, new).code == 0


@pytest.mark.slow
def test_rerun_on_sagemaker(
    cli: Cli, aws: FakeAws, make_source: Callable[..., Path], tmp_path: Path
) -> None:
    """The same CreateTrainingJob but for the name, nothing is uploaded again, and the code comes from the bucket."""
    files = {
        "train.py": "print(1)\n",
        "job.yaml": test_sagemaker.JOB,
        "cloudtrain.toml": test_sagemaker.SETTINGS,
    }
    source = make_source(files)
    name = submitted(cli, source / "job.yaml", "--target", "sagemaker")
    shutil.rmtree(source)
    seen = len(aws.received)
    new = rerun(cli, name)
    assert not {"PutObject", "CreateMultipartUpload"} & {
        item.operation for item in aws.received[seen:]
    }
    bodies = [item.raw for item in aws.received if item.operation == "CreateTrainingJob"]
    assert len(bodies) == 2
    assert bodies[1].replace(new.encode(), name.encode()) == bodies[0]
    assert cli("code", new, str(tmp_path / "code")).code == 0
    assert (tmp_path / "code/train.py").read_text() == "print(1)\n"
    changed = rerun(cli, name, "--set", "hyperparameters.epochs=2", "--offline")
    found = json.loads(cli("diff", name, changed, "--json").out)
    assert found["job"] == [{"field": "hyperparameters.epochs", "after": 2}]
    assert found["code"] == []


@pytest.mark.slow
def test_rerun_on_azure(
    cli: Cli, azure: FakeAzure, make_source: Callable[..., Path], tmp_path: Path
) -> None:
    """The same PUT but for the name, the same code asset, whose files can be had again."""
    files = {
        "train.py": "print(1)\n",
        "job.yaml": test_azureml.JOB,
        "cloudtrain.toml": test_azureml.SETTINGS,
    }
    source = make_source(files)
    (source / "run.sh").write_text("echo\n")
    (source / "run.sh").chmod(0o755)
    (source / "link.py").symlink_to("train.py")
    name = submitted(cli, source / "job.yaml", "--target", "azureml")
    shutil.rmtree(source)
    new = rerun(cli, name)
    bodies = {item.path.rpartition("/")[2]: item.raw for item in azure.received("PUT", "/jobs/")}
    assert {name, new} <= bodies.keys()
    assert bodies[new].replace(new.encode(), name.encode()) == bodies[name]
    assert len(azure.assets.names("codes")) == 1
    assert cli("code", new, str(tmp_path / "code")).code == 0
    assert (tmp_path / "code/link.py").readlink() == Path("train.py")
    assert (tmp_path / "code/run.sh").stat().st_mode & 0o100


@pytest.mark.slow
def test_diff_of_two_runs_of_a_service(
    cli: Cli, aws: FakeAws, make_source: Callable[..., Path]
) -> None:
    """A hyperparameter, a line of code and the image, from what was uploaded."""
    files = {
        "train.py": "print(1)\n",
        "job.yaml": test_sagemaker.JOB,
        "cloudtrain.toml": test_sagemaker.SETTINGS,
    }
    source = make_source(files)
    first = submitted(
        cli, source / "job.yaml", "--target", "sagemaker", "--set", "hyperparameters.lr=0.1"
    )
    (source / "train.py").write_text("print(2)\n")
    image = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/mine:2"
    second = submitted(
        cli, source / "job.yaml", "--target", "sagemaker", "--offline", "--set", "hyperparameters.lr=0.2",
        *("--set", f"environment={{image: {{sagemaker: '{image}'}}}}"),
    )  # fmt: skip
    shutil.rmtree(source)
    found = json.loads(cli("diff", first, second, "--json").out)
    assert {"field": "hyperparameters.lr", "before": 0.1, "after": 0.2} in found["job"]
    requested = {item["field"]: item["after"] for item in found["request"] if "after" in item}
    assert requested["AlgorithmSpecification.TrainingImage"] == image
    assert [line for line in found["code"][0]["diff"] if "print" in line] == [
        "-print(1)",
        "+print(2)",
    ]
    for bucket in list(aws.s3.buckets.values()):
        bucket.objects.clear()
    gone = cli("diff", first, second)
    assert gone.code == 1
    assert "the lines of changed files are not shown" in gone.out


@pytest.mark.slow
def test_code_that_is_gone_from_the_bucket(
    cli: Cli, aws: FakeAws, make_source: Callable[..., Path], tmp_path: Path
) -> None:
    """A clear error, and no job."""
    files = {
        "train.py": "print(1)\n",
        "job.yaml": test_sagemaker.JOB,
        "cloudtrain.toml": test_sagemaker.SETTINGS,
    }
    name = submitted(cli, make_source(files) / "job.yaml", "--target", "sagemaker")
    for bucket in list(aws.s3.buckets.values()):
        bucket.objects.clear()
    result = cli("rerun", name, "--detach")
    assert (result.code, "CT972" in result.err) == (4, True), result.err
    assert len([item for item in aws.received if item.operation == "CreateTrainingJob"]) == 1


@pytest.mark.slow
def test_cost(cli: Cli, aws: FakeAws, make_source: Callable[..., Path]) -> None:
    """Billed where the service says it, estimated else; runs without a price are counted; the same over its list."""
    files = {
        "train.py": "print(1)\n",
        "job.yaml": test_sagemaker.JOB,
        "cloudtrain.toml": test_sagemaker.SETTINGS,
    }
    source = make_source(files)
    job_file, here = source / "job.yaml", ("--target", "sagemaker", "--offline")
    billed = submitted(cli, job_file, *here, "--set", "tags.team=vision")
    other = submitted(cli, job_file, *here, "--set", "name=other", "--set", "tags.team=speech")
    unknown = submitted(
        cli, job_file, *here, "--set", "resources.instance_type.sagemaker=ml.made-up.xlarge",
        *("--set", "name=unknown", "--ignore", "SM201"),
    )  # fmt: skip
    local = submitted(cli, job_file)
    assert cli("wait", local).code == 0
    for name in (billed, other, unknown):
        aws.jobs[name].enter("Training", at=1_700_000_000.0)
    aws.jobs[billed].end(
        "Completed", at=1_700_003_600.0, BillableTimeInSeconds=3600, TrainingTimeInSeconds=3600
    )
    aws.jobs[unknown].end(
        "Completed", at=1_700_003_600.0, BillableTimeInSeconds=3600, TrainingTimeInSeconds=3600
    )
    ct.run(billed).status()
    hourly = ct.run(billed).show().kept.hourly
    assert hourly is not None
    data = json.loads(cli("cost", "--json", "--offline").out)
    groups = {item["group"]: item for item in data["groups"]}
    assert groups["digits"]["billed"] == round(hourly, 4)
    assert groups["digits"]["runs"] == 2
    assert groups["digits"]["free_runs"] == 1
    online = {item["group"]: item for item in json.loads(cli("cost", "--json").out)["groups"]}
    assert online["unknown"]["without_price"] == 1
    assert online["unknown"]["total"] == 0
    by_tag = {
        item["group"]: item
        for item in json.loads(cli("cost", "--by", "tag:team", "--json").out)["groups"]
    }
    assert set(by_tag) == {"vision", "speech", "(none)"}
    assert by_tag["vision"]["billed"] == round(hourly, 4)
    table = cli("cost", "--by", "target")
    assert table.code == 0
    assert "without a price" in table.err
    assert "free" in table.err
    rows = list(csv.DictReader(StringIO(cli("cost", "--by", "month", "--csv").out)))
    assert sum(int(row["runs"]) for row in rows) == 4
    listed = {
        item["group"]: item
        for item in json.loads(cli("cost", "--target", "sagemaker", "--json").out)["groups"]
    }
    assert listed["digits"]["runs"] == 1
    assert listed["digits"]["billed"] == round(hourly, 4)
    assert json.loads(cli("cost", "--since", "2200-01-01", "--json").out)["all"]["runs"] == 0
    for arguments in (
        ("--by", "moon"),
        ("--by", "tag"),
        ("--csv", "--json"),
        ("--since", "yesterdayish"),
    ):
        assert cli("cost", *arguments).code == 2
