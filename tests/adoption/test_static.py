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


COMMAND = """\
from azure.ai.ml import Input, MLClient, Output, PyTorchDistribution, command
from azure.ai.ml.entities import Environment, JupyterLabJobService
raise SystemExit("executed")
client = MLClient(credential, "sub", "group", workspace_name=workspace)
environment = Environment(name="mine", version=3, image="x:1", conda_file="env/conda.yml")
inputs = {"lr": 0.1, "data": Input(type="uri_folder", path="azureml:d:1", mode="download"), "other": Input(path=asset.id),
          "seed": args.seed}
job = command(
    code="./src", command="python train.py --lr ${{inputs.lr}} ${{inputs.data}} ${{inputs.other}} ${{inputs.seed}}",
    environment=environment, compute="gpu", instance_count=2, shm_size="64g", inputs=inputs, tags={"team": "a"},
    outputs={"model": Output(type="uri_folder", mode="rw_mount")}, services={"lab": JupyterLabJobService(nodes="all")},
    distribution=PyTorchDistribution(process_count_per_instance=8), display_name=f"run-{stamp}", experiment_name="x")
job.set_limits(timeout=600)
client.jobs.create_or_update(job)
"""

PLAIN_COMMAND = """\
from azure.ai.ml import command
job = command(code="src", command="python train.py", environment=f"{env.name}:{env.version}")
job.set_resources(instance_type="Standard_NC24ads_A100_v4", instance_count=1)
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


OTHERS = {
    "an image that the text does not show": (
        'Estimator(image_uris.retrieve("xgboost"), role, 1, "ml.m5.large", volume_size=10)',
        {"environment.image", "[sagemaker] role"},
    ),
    "another framework": (
        'MXNet("a.py", role="r", train_instance_count=1, train_instance_type="ml.c4.xlarge", framework_version="1.9.0",'
        ' distribution={"parameter_server": {"enabled": True}})',
        {"environment.image", "framework_version", "distribution"},
    ),
    "an algorithm": (
        'KMeans(role="r", instance_count=1, instance_type="ml.c4.xlarge", k=10)', {"environment.image"},
    ),
    "a computed entry point": (
        'PyTorch(entry_point=name, source_dir=os.path.join("a", "b"), role="r", instance_type="ml.m5.large", x=[1])',
        {"entry_point", "x"},
    ),
    "settings, and defaults of a job": (
        'PyTorch(entry_point="a.py", role="r", instance_type="ml.p4d.24xlarge", debugger_hook_config=False,'
        ' disable_profiler=True, input_mode="FastFile", checkpoint_local_path="/opt/ml/checkpoints/x",'
        ' use_spot_instances=False, max_wait=7200, compiler_config=C(), distribution={"smdistributed": '
        '{"dataparallel": {"enabled": True, "custom_mpi_options": "-x A=1"}}})',
        {"compiler_config"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", OTHERS)
def test_no_argument_is_lost_in_silence(case: str, tmp_path: Path) -> None:
    """What a draft has no field for is named with its text; nothing else is."""
    call, named = OTHERS[case]
    text = f"job = {call}\njob.set_hyperparameters(a=1)\njob.fit({{'train': TrainingInput('s3://b/t', distribution="
    text += (
        "'ShardedByS3Key', content_type='csv', shuffle_config=S(1))}, wait=True, job_name='mine')\n"
    )
    found = drafted(text, tmp_path)
    of_fit = {"inputs.train.shuffle_config", "fit.job_name", "(the whole request)"}
    assert {item.path for item in found.differences} == named | of_fit
    job, row = found.job, found.job.inputs["train"]
    assert (row.shard, row.content_type, job.spot, job.hyperparameters["a"]) == (
        True,
        "csv",
        None,
        1,
    )
    if case == "an algorithm":
        assert (job.hyperparameters["k"], job.source_dir, job.entry_point) == (10, None, None)
    if case == "a computed entry point":
        assert (job.entry_point, job.source_dir) == ("FILL-IN", "a/b")
    if case.startswith("settings"):
        assert (row.mode, job.distribution) == ("mount", ct.SMDDP(mpi_options="-x A=1"))
        wanted = {"role": "r", "checkpoint_path": "/opt/ml/checkpoints/x", "input_mode": "mount"}
        assert found.settings == wanted


@pytest.mark.parametrize("argument", ["tags=[1]", "input_mode=[1]", "metric_definitions={1: 2}"])
def test_an_argument_of_a_wrong_type(argument: str, tmp_path: Path) -> None:
    """A typed error."""
    with pytest.raises(ct.CloudtrainError) as caught:
        drafted(f"PyTorch(entry_point='a.py', {argument}).fit('s3://b/t')\n", tmp_path)
    assert caught.value.code == "CT981"


def test_a_command(tmp_path: Path) -> None:
    """azure-ai-ml's arguments and objects; what the text leaves open is named, and an input keeps its name."""
    found = drafted(COMMAND, tmp_path)
    job = found.job
    assert (job.source_dir, job.max_runtime, job.tags) == ("src", 600, {"team": "a"})
    assert job.distribution == ct.Torch(processes_per_instance=8)
    assert (job.resources.instance_count, job.resources.shm_size) == (2, 64 << 30)
    assert found.fields["environment"] == {
        "image": {"azureml": "x:1"}, "conda_file": "../env/conda.yml", "asset_name": "mine", "asset_version": "3",
    }  # fmt: skip
    assert {name: item.value or item.of("azureml") for name, item in job.inputs.items()} == {
        "lr": 0.1, "data": "azureml:d:1", "other": "azureml:FILL-IN:1", "seed": "FILL-IN",
    }  # fmt: skip
    assert found.settings == {
        "subscription_id": "sub", "resource_group": "group", "compute": "gpu", "experiment": "x",
        "services": {"lab": {"type": "jupyter_lab", "all_instances": True}},
    }  # fmt: skip
    assert {item.path: item.original for item in found.differences} == {
        "[azureml] workspace": "workspace",
        "display_name": "f'run-{stamp}'",
        "inputs.other.path": "asset.id",
        "inputs.seed": "args.seed",
        "(the whole request)": "",
    }


def test_a_command_of_which_nothing_is_known(tmp_path: Path) -> None:
    """A draft all the same."""
    text = "command(command=a, code=b, environment=Environment(image=c, conda_file={'x': [d]}), inputs=e, resources=f, "
    text += "distribution=g(), outputs=h, identity=i, tags=j, instance_count=k, compute=l)\n"
    found = drafted(text, tmp_path)
    assert found.job.command == "FILL-IN"
    named = {"command", "code", "inputs", "distribution", "outputs", "identity", "tags", "compute"}
    assert {item.path for item in found.differences} > named | {
        "resources.instance_count",
        "environment.image",
    }


def test_a_command_without_a_cluster(tmp_path: Path) -> None:
    """Resources that are set later count too."""
    found = drafted(PLAIN_COMMAND, tmp_path)
    assert found.job.resources.instance_type.of("azureml") == "Standard_NC24ads_A100_v4"
    assert [item.path for item in found.differences] == ["environment", "(the whole request)"]


def test_a_request(tmp_path: Path) -> None:
    """boto3's arguments, as far as they are literals; from a notebook too."""
    cells = {
        "cells": [
            {"cell_type": "code", "source": ["%%time\n", REQUEST]},
            {"cell_type": "code", "source": "a b"},
        ]
    }
    found = drafted(json.dumps(cells), tmp_path, "job.ipynb")
    assert found.job.resources.instance_count == 2
    assert [item.original for item in found.differences] == ["role", "size", ""]


@pytest.mark.parametrize(("text", "code"), [("print(1)\n", "CT976"), ("def (:\n", "CT981")])
def test_no_draft(text: str, code: str, tmp_path: Path) -> None:
    """A typed error."""
    with pytest.raises(ct.CloudtrainError) as caught:
        drafted(text, tmp_path)
    assert caught.value.code == code


@pytest.mark.slow
@pytest.mark.parametrize(
    "value",
    [
        "number",
        "text",
        "values",
        '"{:>99999999999}".format("x")',
        '"{:>{}}".format("x", 9999999999)',
    ],
)
def test_a_value_that_a_few_lines_make_huge(value: str, tmp_path: Path) -> None:
    """It is left to the user, as any other value that the text does not show; in a list, its elements are."""
    lines = ["number, text, values = 2, 'a', [1]"]
    lines += ["number = number * number; text = text + text; values = [values, values]"] * 60
    script = ESTIMATOR.replace('{"epochs": 3,', f'{{"epochs": {value},')
    assert script != ESTIMATOR
    found = drafted("\n".join([*lines, script]), tmp_path)
    assert ("epochs" in found.job.hyperparameters) == (value == "values")
    assert len(found.job_text) < 100_000


def test_a_format_reads_no_attributes(tmp_path: Path) -> None:
    """Otherwise a text reaches the variables of cloudtrain's own modules."""
    script = ESTIMATOR.replace(
        '{"epochs": 3,', '{"epochs": "{a.__init__.__globals__}".format(a=Other()),'
    )
    found = drafted(script, tmp_path)
    assert "epochs" not in found.job.hyperparameters


def test_calls_in_calls_in_calls(tmp_path: Path) -> None:
    """A text that Python can parse, but that nobody has written."""
    with pytest.raises(ct.CloudtrainError, match="nested too deeply"):
        drafted(f"x = a{'.b()' * 900}\n", tmp_path)


def test_the_command(cli: Cli, tmp_path: Path) -> None:
    """It asks nothing, prints a job file, and says that it is a draft; other sources have no text to read."""
    (tmp_path / "job.py").write_text(TRAINER)
    found = cli("adopt", str(tmp_path / "job.py"), "--static")
    assert found.code == 1
    assert "entry_point: train.py" in found.out
    assert "not compared with the original" in found.err
    assert cli("adopt", str(tmp_path), "--static").code == 2


def test_a_secret_is_not_copied(tmp_path: Path) -> None:
    """A draft names it without its value."""
    secret = "0123456789abcdef0123456789abcdef01234567"
    text = f"PyTorch(entry_point='t.py', environment={{'WANDB_API_KEY': '{secret}', 'A': '1'}}).fit()\n"
    (tmp_path / "job.py").write_text(text)
    found = ct.adopt(tmp_path / "job.py", static=True)
    assert found.job.environment.variables == {"WANDB_API_KEY": "FILL-IN", "A": "1"}
    assert secret not in found.job_text + str(found.to_dict())
    assert "environment.variables.WANDB_API_KEY" in {item.path for item in found.differences}
