"""What a newcomer types on the first day: each answer says what to type instead."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Cli

JOB = "name: job\nentry_point: train.py\n"


@pytest.fixture
def project(clean_environment: Path) -> Path:
    """A script and its job."""
    (clean_environment / "train.py").write_text("print(1)\n")
    (clean_environment / "job.yaml").write_text(JOB)
    (clean_environment / "four.yaml").write_text(JOB + "resources: {gpu: 4}\n")
    return clean_environment


def said(cli: Cli, line: str) -> str:
    """What a refused command says, on one line."""
    result = cli(*line.split())
    assert result.code == 2, result.out
    return " ".join(result.err.split())


ANSWERS = {
    # an option of another command
    "plan job.yaml --offline": "leave it out: a plan contacts no service",
    "check job.yaml --dry-run": "leave it out: a check sends nothing",
    "check job.yaml --short": "it is an option of `cloudtrain plan`",
    "plan job.yaml --detach": "it is an option of `cloudtrain submit`",
    "plan job.yaml --online": "it is an option of `cloudtrain check`",
    "submit job.yaml --epochs 3": "`--set hyperparameters.epochs=3`",
    # nothing where a job or a run is needed
    "submit": "`cloudtrain submit job.yaml`",
    "check": "`cloudtrain check job.yaml`",
    "logs": "`cloudtrain logs last`",
    "stop": "`cloudtrain stop last`",
    # settings of the target in a job
    "check job.yaml --set target.region=eu-west-1": "`--target NAME`",
    "check job.yaml --set target=sagemaker": "`--target NAME`",
    "check job.yaml --set sagemaker.region=eu-west-1": "under `[sagemaker]`",
    "check job.yaml --set slurm.partition=gpu": "under `[slurm]`",
    "check job.yaml --set profile=big": "`--profile NAME`",
    # a number for a GPU
    "check four.yaml": "`gpus_per_instance: 4`",
    "check -t sagemaker job.yaml --set resources.gpu=4xA100": "`gpu: A100` and `gpus_per_instance: 4`",
    "check -t azureml job.yaml --set resources.gpu=8:H100": "`gpu: H100` and `gpus_per_instance: 8`",
    "check -t sagemaker --gpu 2 train.py": "`--set resources.gpus_per_instance=2`",
}  # fmt: skip


@pytest.mark.parametrize("line", ANSWERS)
def test_the_hint_is_what_to_type(cli: Cli, project: Path, line: str) -> None:
    """And not another field, a script's option or the help."""
    assert ANSWERS[line] in said(cli, line)


def test_a_job_of_another_format_is_found(cli: Cli, project: Path) -> None:
    """The hint names the file that there is; without one, the help."""
    (project / "job.yaml").rename(project / "job.toml")
    assert "`cloudtrain plan job.toml`" in said(cli, "plan")
    (project / "job.toml").unlink()
    assert "`cloudtrain plan train.py`" in said(cli, "plan")
    (project / "train.py").unlink()
    assert "see `cloudtrain plan --help`" in said(cli, "plan")


@pytest.mark.parametrize("region", ["us-esat-1", "eu-wset-1", "ap-southeats-2", "eu-cental-1"])
def test_a_misspelt_region_is_no_missing_image(cli: Cli, project: Path, region: str) -> None:
    """The error is about the region, and names those that it may be."""
    role = 'role = "arn:aws:iam::123456789012:role/R"'
    (project / "cloudtrain.toml").write_text(f'[sagemaker]\n{role}\nregion = "{region}"\n')
    answer = said(
        cli,
        "check job.yaml -t sagemaker --set environment.framework=pytorch "
        "--set resources.instance_type.sagemaker=ml.m5.xlarge",
    )
    assert f"`{region}` is not a region" in answer
    assert "did you mean" in answer
    assert "image" not in answer


@pytest.mark.parametrize(
    ("target", "code", "count"), [("sagemaker", "SM101", 2), ("azureml", "AZ101", 3), ("slurm", "SL101", 1)]
)  # fmt: skip
def test_what_the_account_lacks_comes_with_the_rest(
    cli: Cli, project: Path, target: str, code: str, count: int
) -> None:
    """Also for a job that cannot be compiled: whoever corrects it meets no second round."""
    arguments = ["--set", "resources.gpu=Q1000", "--set", "inputs.x.local=/nowhere"]
    result = cli("check", "job.yaml", "--target", target, "--json", *arguments)
    codes = [item["code"] for item in json.loads(result.out)]
    assert codes.count(code) == count
    assert len(codes) > count


def test_a_missing_interpreter_comes_with_the_rest(cli: Cli, project: Path) -> None:
    """On this machine, too."""
    arguments = ["--set", "inputs.x.sagemaker=s3://b/x", "--python", "/nowhere/python"]
    codes = {
        item["code"] for item in json.loads(cli("check", "job.yaml", "--json", *arguments).out)
    }
    assert codes == {"CT032", "LO102"}


# Scripts as strangers have them.


@pytest.mark.parametrize(
    "text",
    [
        "import torch\nprint(torch.__version__)\n",
        "import torch, pydantic\nprint(torch.load('x'))\n",
        "import torch\nimport pydantic.fields\nwith torch.no_grad(): pass\n",
        "import numpy, torch\nfrom pydantic import BaseModel\nclass A(BaseModel): x: int\n",
    ],
)
def test_a_script_without_training_starts_once(cli: Cli, project: Path, text: str) -> None:
    """torch alone is no sign of several processes."""
    (project / "use.py").write_text(text)
    plan = json.loads(cli("plan", "--json", "--python", sys.executable, "use.py").out)
    assert plan["summary"]["processes"].split()[0] == "1"


def test_a_package_in_src_is_found_before_the_run(cli: Cli, project: Path) -> None:
    """The src layout needs a variable; a dependency of the project needs its file."""
    (project / "src" / "mypkg").mkdir(parents=True)
    (project / "src" / "mypkg" / "__init__.py").write_text("")
    (project / "pyproject.toml").write_text(
        '[project]\nname = "p"\ndependencies = ["nobody-has"]\n'
    )
    (project / "train.py").write_text("import mypkg, nobody_has\n")
    items = json.loads(cli("check", "job.yaml", "--json").out)
    hints = [item["hint"] for item in items if item["code"] == "CT213"]
    assert ["PYTHONPATH: src" in hints[0], "requirements: pyproject.toml" in hints[1]] == [True] * 2
    changed = ["--set", "environment.variables.PYTHONPATH=src", "--json"]
    items = json.loads(cli("check", "job.yaml", *changed).out)
    assert len([item for item in items if item["code"] == "CT213"]) == 1


# A mistake in `cloudtrain.toml` is of no concern to what was sent already.

BROKEN = {
    "no TOML": "[sagemaker\n",
    "an unknown table": "[sagemakr]\nregion = 'eu-west-1'\n",
    "a target that is a number": "target = 5\n",
    "a target of nobody": "target = 'nowhere'\n",
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_settings_stop_no_command_about_a_run(
    cli: Cli, scripted: Path, project: Path, case: str
) -> None:
    """What follows, stops or fetches a run works; what sends one says what is wrong."""
    sent = cli("submit", "job.yaml", "--detach")
    assert sent.code == 0, sent.err
    (project / "cloudtrain.toml").write_text(BROKEN[case])
    commands = ["status last", "logs last", "stop last"]
    if case == "no TOML":
        commands += ["ps", "show last", "diff last last", "cost --offline"]
    for command in commands:
        result = cli(*command.split())
        assert (command, result.code, result.err.count("cloudtrain.toml")) == (command, 0, 0)
    assert cli("wait", "last").code in (0, 1)
    refused = cli("submit", "job.yaml")
    assert refused.code == 2
    assert "cloudtrain.toml:1:" in refused.err
