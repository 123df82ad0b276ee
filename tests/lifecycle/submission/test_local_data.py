"""Inputs that are data of this machine: a submit uploads them once, to a place that the plan has named."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import cloudtrain as ct
from cloudtrain import errors
from cloudtrain.code.tree import scan
from cloudtrain.plans.plan import Plan
from cloudtrain.targets.azureml.service import blobs
from cloudtrain.targets.azureml.service import client as azure_client
from cloudtrain.targets.registry import target_of
from tests.fakes.azureml import FakeAzure
from tests.fakes.sagemaker.server import FakeAws

pytestmark = pytest.mark.lifecycle

BUCKET = "data-bucket"
TYPES = {"sagemaker": "ml.m5.xlarge", "azureml": "Standard_NC24ads_A100_v4"}


@dataclass
class Cloud:
    """A fake cloud, as much of it as these tests need."""

    name: str
    settings: Any
    fake: Any

    def data(self) -> dict[str, bytes]:
        """What lies where data of this machine goes, by name."""
        items = {name: blob.data for box in self.boxes() for name, blob in box.items()}
        return {
            name: data
            for name, data in items.items()
            if "/data/" in f"/{name}" and "train.py" not in name
        }

    def boxes(self) -> list[dict[str, Any]]:
        """The containers of the fake, by the name of what they hold."""
        if self.name == "sagemaker":
            return [self.fake.s3.buckets[BUCKET].objects]
        return [*self.fake.blobs.containers.values()]

    def sent(self) -> int:
        """How many files of data were sent."""
        if self.name == "sagemaker":
            return len(
                [item for item in self.fake.operations("PutObject") if "/data/" in item.path]
            )
        return len(self.fake.received("PUT", "LocalUpload"))

    def uri(self, plan: Plan) -> str:
        """What the job reads."""
        if self.name == "sagemaker":
            found = plan.request["InputDataConfig"][0]["DataSource"]["S3DataSource"]["S3Uri"]
        else:
            found = plan.request["properties"]["inputs"]["train"]["uri"]
        assert isinstance(found, str)
        return found

    @property
    def jobs(self) -> int:
        """How many jobs there are."""
        return len(self.fake.jobs.by_name)


@pytest.fixture(params=["sagemaker", "azureml"])
def cloud(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    """Each cloud."""
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")
    monkeypatch.setattr(azure_client, "BACKOFF", 0.01)
    for name in ("initial_backoff", "increment_base", "random_jitter_range"):
        monkeypatch.setitem(blobs.RETRIES, name, 0.005)
    with contextlib.ExitStack() as stack:
        fake: Any = stack.enter_context(FakeAws() if request.param == "sagemaker" else FakeAzure())
        for name, value in fake.environ.items():
            monkeypatch.setenv(name, value)
        if request.param == "sagemaker":
            fake.s3.add_bucket(BUCKET)
            settings: Any = ct.SageMaker(
                region="eu-west-1",
                role="arn:aws:iam::123456789012:role/SageMakerRole",
                bucket=BUCKET,
            )
        else:
            settings = ct.AzureML(
                subscription_id="00000000-0000-0000-0000-000000000000",
                resource_group="rg",
                workspace="ws",
            )
        yield Cloud(request.param, settings, fake)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project: the code, and the data below it."""
    monkeypatch.setenv("CLOUDTRAIN_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src/data/sub").mkdir(parents=True)
    (tmp_path / "src/train.py").write_text("print(1)\n")
    (tmp_path / "src/data/a.csv").write_text("1,2\n")
    (tmp_path / "src/data/sub/b.csv").write_text("3\n")
    return tmp_path


def job_of(cloud: Cloud, place: str = "./src/data", **fields: Any) -> ct.TrainingJob:
    """A job that reads it."""
    return ct.TrainingJob(
        name="digits",
        source_dir="src",
        entry_point="train.py",
        environment={"framework": "pytorch", "version": "2.8"},
        resources={"instance_type": TYPES},
        max_runtime="1h",
        inputs={"train": {cloud.name: place, **fields}},
    )


def submit(cloud: Cloud, job: ct.TrainingJob) -> ct.Run:
    """Without asking the account, which has nothing to say here."""
    return ct.submit(job, cloud.settings, online=False)


@pytest.mark.slow_after(1)
def test_a_folder_goes_up_once(cloud: Cloud, folder: Path) -> None:
    """The plan names its place; two submits send it once; it is no part of the code, and progress is told."""
    job = job_of(cloud)
    plan = ct.plan(job, cloud.settings)
    _, data = plan.uploads
    assert (data.kind, data.file_count, data.size, data.source) == (
        "data",
        2,
        6,
        str(folder / "src/data"),
    )
    assert cloud.uri(plan).rstrip("/") == data.destination
    assert data.sha256 in data.destination
    assert "of data, is uploaded once" in plan.to_text()
    told: list[tuple[int, int]] = []
    ct.submit(
        job, cloud.settings, online=False, on_bytes=lambda sent, total: told.append((sent, total))
    )
    found = cloud.data()
    assert sorted(name.rpartition(data.sha256)[2].removeprefix("/data") for name in found) == [
        "/a.csv",
        "/sub/b.csv",
    ]
    assert sorted(found.values()) == [b"1,2\n", b"3\n"]
    assert (6, 6) in told
    submit(cloud, job)
    assert cloud.jobs == 2
    assert cloud.data() == found
    assert cloud.sent() == 2


@pytest.mark.slow
def test_what_broke_off_goes_on(cloud: Cloud, folder: Path) -> None:
    """Only what is missing is sent, and nothing where the folder is gone but all is there."""
    job = job_of(cloud)
    submit(cloud, job)
    whole = cloud.data()
    gone = next(name for name in whole if name.endswith("b.csv"))
    for box in cloud.boxes():
        box.pop(gone, None)
    submit(cloud, job)
    assert cloud.data() == whole
    assert cloud.sent() == 3


@pytest.mark.slow_after(1)
def test_data_that_changed_meanwhile_is_not_sent(cloud: Cloud, folder: Path) -> None:
    """Other content at a place that is named by the content would be wrong for good."""
    plan = ct.plan(job_of(cloud), cloud.settings)
    (folder / "src/data/a.csv").write_text("other\n")
    service = target_of(cloud.name).service(environ=dict(os.environ), state_dir=folder / "state")
    bundle = scan(folder / "src")
    with pytest.raises(ct.CloudtrainError, match="has changed since"):
        service.upload(replace(plan, uploads=plan.uploads[1:]), bundle)
    assert cloud.data() == {}


def test_a_file_alone(cloud: Cloud, folder: Path) -> None:
    """Its place ends with its name."""
    plan = ct.plan(job_of(cloud, "./src/data/a.csv", type="uri_file"), cloud.settings)
    assert cloud.uri(plan) == f"{plan.uploads[1].destination}/a.csv"


@pytest.mark.parametrize(
    ("place", "fields", "message"),
    [
        ("./nowhere", {}, "there is no folder or file"),
        ("./empty", {}, "holds no file"),
        ("/", {}, "is the root of this machine's file system"),
        ("./../../../../../../../../..", {}, "is the root of this machine's file system"),
        ("./src/data/a.csv", {}, "is a file, and the input's type is `uri_folder`"),
        ("./src/data", {"type": "uri_file"}, "is a folder, and the input's type is `uri_file`"),
    ],
)
def test_what_cannot_be_sent(
    cloud: Cloud, folder: Path, place: str, fields: dict[str, Any], message: str
) -> None:
    """An error with the place of the field, before anything leaves."""
    (folder / "empty").mkdir()
    with pytest.raises(errors.JobError) as caught:
        ct.plan(job_of(cloud, place, **fields), cloud.settings)
    (problem,) = caught.value.problems
    assert (problem.code, problem.path) == ("CT986", ("inputs", "train", cloud.name))
    assert message in problem.message


def test_credentials_in_data_are_named(cloud: Cloud, folder: Path) -> None:
    """A warning: data is sent whole, whatever its name."""
    (folder / "src/data/.env").write_text("A=1\n")
    found = [
        item for item in ct.plan(job_of(cloud), cloud.settings).findings if item.code == "CT304"
    ]
    assert [item.details for item in found] == [(".env: an environment file",)]


def test_links_out_of_data_are_named(cloud: Cloud, folder: Path) -> None:
    """What they lead to is uploaded, as ever; links inside the folder, and a folder that is a link, need no word."""
    data = folder / "src/data"
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere/key").write_text("x")
    links = {"out": folder / "elsewhere/key", "up": "../train.py", "twice": "up"}
    for name, target in {**links, "below": folder / "elsewhere", "inside": "a.csv"}.items():
        (data / name).symlink_to(target)
    (folder / "entrance").symlink_to("src/data")
    for place in ("./src/data", "./entrance"):
        notes = ct.plan(job_of(cloud, place), cloud.settings).notes
        (note,) = (text for text in notes if "links lead out" in text)
        assert note.endswith("is uploaded: `below/key`, `out`, `twice`, `up`")
