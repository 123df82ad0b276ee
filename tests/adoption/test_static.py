"""`--static`: a draft from the text of a script, which is not executed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import cloudtrain as ct
from tests.cli.conftest import Cli, cli

__all__ = ["cli"]

ESTIMATOR = """\
import sagemaker
from sagemaker.pytorch import PyTorch
from sagemaker.inputs import TrainingInput
raise SystemExit("executed")
bucket = sagemaker.Session().default_bucket()
parameters = {"epochs": 3, "lr": -1e-3}
parameters["batch"] = 2 * 32
common = dict(instance_count=2, role=sagemaker.get_execution_role(), max_run=3600)
if bucket:
    kind = "ml.p4d.24xlarge"
else:
    kind = "ml.p5.48xlarge"
def main():
    count = 1
    count += 1
    estimator = PyTorch(
        entry_point="train.py", source_dir="src", framework_version="2.8.0", py_version="py312",
        instance_type="ml.p4d.24xlarge", hyperparameters=parameters, output_path=f"s3://{bucket}/out",
        base_job_name="{}-job".format("mine"), **common, volume_size=100, use_spot_instances=True, max_wait=7200,
        distribution={"mpi": {"enabled": True, "processes_per_host": 4, "custom_mpi_options": "-x A=1"}},
        tags=[{"Key": "team", "Value": "a"}], metric_definitions=[{"Name": "loss", "Regex": "loss=(.*)"}], rules=[1], volume_kms_key=kind, keep_alive_period_in_seconds=count)
    estimator.fit({"train": TrainingInput("s3://data/train"), "test": f"s3://{bucket}/test"})
"""

TRAINER = """\
from sagemaker.train import ModelTrainer
from sagemaker.train.configs import Compute, InputData, SourceCode
code = SourceCode(source_dir="src", entry_script="train.py")
ModelTrainer(training_image="i:1", source_code=code, distributed=Torchrun(process_count_per_node=2),
             compute=Compute(instance_type="ml.g5.12xlarge", instance_count=2), hyperparameters={"epochs": 3}
             ).train(input_data_config=[InputData(channel_name="train", data_source="s3://data/train")])
"""

REQUEST = """\
import boto3
boto3.client("sagemaker").create_training_job(
    TrainingJobName="mine", RoleArn=role, AlgorithmSpecification={"TrainingImage": "i:1", "TrainingInputMode": "File"},
    ResourceConfig={"InstanceType": "ml.g5.xlarge", "InstanceCount": 2, "VolumeSizeInGB": size})
"""


def drafted(text: str, folder: Path, name: str = "job.py") -> ct.Adoption:
    """The draft of a script of this text."""
    (folder / name).write_text(text)
    return ct.adopt(folder / name, static=True, folder=folder)


def test_an_estimator(tmp_path: Path) -> None:
    """Literals, and what follows from them; the rest is named. A draft is never equal."""
    found = drafted(ESTIMATOR, tmp_path)
    job = found.job
    assert (job.name, job.entry_point, job.source_dir) == ("mine-job", "train.py", "src")
    assert job.hyperparameters == {"epochs": 3, "lr": -0.001, "batch": 64}
    assert job.distribution == ct.MPI(processes_per_instance=4, options="-x A=1")
    assert (job.max_runtime, job.spot and job.spot.max_wait) == (3600, 7200)
    assert (job.tags, job.metrics) == ({"team": "a"}, {"loss": "loss=(.*)"})
    assert job.resources.volume_size == 100 << 30
    assert list(job.inputs) == ["train"]
    assert not found.equal
    assert {item.path: item.original for item in found.differences} == {
        "[sagemaker] output": "f's3://{bucket}/out'",
        "[sagemaker] role": "sagemaker.get_execution_role(...)",
        "inputs.test.sagemaker": "f's3://{bucket}/test'",
        "rules": "[1]",
        "[sagemaker] volume_kms_key": "kind, by `if bucket`",
        "[sagemaker] keep_alive": "count += 1",
        "(the whole request)": "",
    }
    assert "# [sagemaker] role was: sagemaker.get_execution_role(...)" in found.job_text


def test_a_trainer(tmp_path: Path) -> None:
    """Version 3's parts say the same in other words."""
    job = drafted(TRAINER, tmp_path).job
    assert job.distribution == ct.Torch(processes_per_instance=2)
    assert (job.resources.instance_count, job.entry_point) == (2, "train.py")
    assert job.inputs["train"].of("sagemaker") == "s3://data/train"


def test_a_request(tmp_path: Path) -> None:
    """boto3's arguments, as far as they are literals; from a notebook too."""
    cells = {"cells": [{"cell_type": "code", "source": ["%%time\n", REQUEST]}, {"cell_type": "code", "source": "a b"}]}
    found = drafted(json.dumps(cells), tmp_path, "job.ipynb")
    assert found.job.resources.instance_count == 2
    assert [item.original for item in found.differences] == ["role", "size", ""]


@pytest.mark.parametrize(("text", "code"), [("print(1)\n", "CT976"), ("def (:\n", "CT981")])
def test_no_draft(text: str, code: str, tmp_path: Path) -> None:
    """A typed error."""
    with pytest.raises(ct.CloudtrainError) as caught:
        drafted(text, tmp_path)
    assert caught.value.code == code


def test_the_command(cli: Cli, tmp_path: Path) -> None:
    """It asks nothing, prints a job file, and says that it is a draft; other sources have no text to read."""
    (tmp_path / "job.py").write_text(TRAINER)
    found = cli("adopt", str(tmp_path / "job.py"), "--static")
    assert found.code == 1
    assert "entry_point: train.py" in found.out
    assert "a draft, compared with nothing" in found.err
    assert cli("adopt", str(tmp_path), "--static").code == 2
