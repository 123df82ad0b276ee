"""`--emulate`: the command line's way to an emulated job."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.hints import suggested

JOB = """\
name: digits
entry_point: train.py
resources: {instance_count: 2, instance_type: {sagemaker: ml.m5.xlarge}}
environment: {framework: pytorch, version: "2.8"}
"""


@pytest.fixture
def emulated(clean_environment: Path) -> str:
    """A job file for SageMaker, in a project whose default target is SageMaker."""
    (clean_environment / "train.py").write_text("import os\nprint(os.environ['SM_CURRENT_HOST'])\n")
    (clean_environment / "job.yaml").write_text(JOB)
    (clean_environment / "cloudtrain.toml").write_text('target = "sagemaker"\n')
    return "job.yaml"


def test_plan_shows_what_sagemaker_would_start(cli: Cli, emulated: str) -> None:
    """The plan is the local one, whatever the default target, and `/opt/ml` lies in the run's folder."""
    result = cli("plan", emulated, "--emulate", "sagemaker", "--instances", "2", "--json")
    assert result.code == 0, result.err
    plan = json.loads(result.out)
    assert (plan["target"], plan["request"]["emulates"]) == ("local", "sagemaker")
    assert [process["env"]["SM_CURRENT_HOST"] for process in plan["processes"]] == [
        "algo-1",
        "algo-2",
    ]
    assert plan["processes"][1]["env"]["SM_MODEL_DIR"].endswith(
        f"/{plan['run_name']}/hosts/algo-2/opt/ml/model"
    )
    assert cli("check", emulated, "--emulate", "sagemaker").code == 0


def test_submit_runs_it(cli: Cli, emulated: str) -> None:
    """Both hosts' output is followed, and the run looks like any other."""
    result = cli("submit", emulated, "--emulate", "sagemaker", "--instances", "2")
    assert result.code == 0, result.err
    assert sorted(line.split()[-1] for line in result.out.splitlines() if "algo" in line) == [
        "algo-1",
        "algo-2",
    ]


@pytest.mark.parametrize("launch", ["toolkit", "entrypoint"])
def test_a_model_beside_the_code_is_told(cli: Cli, emulated: str, launch: str) -> None:
    """SageMaker would keep nothing of `/opt/ml/code`, whoever starts the script: the end names the file, and what keeps
    it; `download` copies it, and no file of the bundle."""
    Path("train.py").write_text("open('model.pt', 'w').write('x' * 2048)\n")
    Path("cloudtrain.toml").write_text(f'[sagemaker]\nlaunch = "{launch}"\n')
    result = cli("submit", emulated, "--emulate", "sagemaker", "--instances", "1")
    assert result.code == 0, result.err
    said = " ".join(result.err.split())
    assert "wrote 1 file (2 KiB) into its working folder, such as `model.pt`" in said
    assert "a cloud would lose it: pass the script the folder '${{outputs.model}}'" in said
    assert cli("download", "last", "work/", "--to", "here").out.split() == ["here/model.pt"]


AZURE_JOB = """\
name: digits
entry_point: train.py
distribution: {type: torch}
resources: {instance_count: 2}
environment: {framework: pytorch, version: "2.8", requirements: needs.txt}
outputs: {scores: {}}
"""
AZURE_SCRIPT = """\
import os, pathlib
print("instance", os.environ["NODE_RANK"], "of", os.environ["AZUREML_NODE_COUNT"])
pathlib.Path(os.environ["AZURE_ML_OUTPUT_scores"], os.environ["RANK"]).write_text("1")
"""
AS_AZUREML = ("--emulate", "azureml", "--instances", "2", "--processes-per-instance", "1")


@pytest.fixture
def on_azureml(clean_environment: Path) -> str:
    """A job file for Azure ML."""
    (clean_environment / "train.py").write_text(AZURE_SCRIPT)
    (clean_environment / "needs.txt").write_text("/no/such-folder")
    (clean_environment / "job.yaml").write_text(AZURE_JOB)
    return "job.yaml"


def test_plan_shows_what_azureml_would_start(cli: Cli, on_azureml: str) -> None:
    """The ranks in one block with the service's variables, and what is different here."""
    result = cli("plan", on_azureml, *AS_AZUREML)
    assert result.code == 0, result.err
    shown = result.out.partition("Request")[0]
    assert "ranks 0 to 1 on instances 0 to 1" in shown
    assert "$ bash -c 'python train.py'" in shown
    assert "WORLD_SIZE=2" in shown
    assert cli("check", on_azureml, "--emulate", "azureml").code == 0


def test_submit_runs_it_as_on_azureml(cli: Cli, on_azureml: str, clean_environment: Path) -> None:
    """Both instances' output is followed, one rank's can be read alone, and outputs are downloaded by name."""
    result = cli("submit", on_azureml, *AS_AZUREML)
    assert result.code == 0, result.err
    assert sorted(
        line.partition("instance ")[2] for line in result.out.splitlines() if "instance " in line
    ) == [
        "0 of 2",
        "1 of 2",
    ]
    alone = cli("logs", "last", "--rank", "1")
    assert "instance 1 of 2" in alone.out
    assert "instance 0 of 2" not in alone.out
    assert cli("download", "last", "outputs/scores", "--to", "copy").code == 0
    assert sorted(path.name for path in (clean_environment / "copy").iterdir()) == [
        ".cloudtrainignore",
        "0",
        "1",
    ]


@pytest.mark.parametrize(
    ("flags", "message", "hint"),
    [
        (("--emulate", "sagemker"), "`emulate` cannot be", suggested("sagemaker")),
        (
            ("--emulate", "sagemaker", "--target", "sagemaker"),
            "`--emulate` works only on the local target",
            "--target local",
        ),
        (("--emulate", "azure"), "`emulate` cannot be", suggested("azureml")),
        (
            ("--emulate", "azureml", "--max-restarts", "1"),
            "Azure ML does not restart",
            "remove one of them",
        ),
        (
            ("--emulate", "sagemaker", "--max-restarts", "1"),
            "`max_restarts` has no effect",
            "remove one of them",
        ),
    ],
)
def test_wrong_flags(
    cli: Cli, emulated: str, flags: tuple[str, ...], message: str, hint: str
) -> None:
    """What makes no sense together is said, with what to type."""
    result = cli("plan", emulated, *flags)
    assert result.code == 2
    assert message in result.err
    assert hint in result.err


def test_patterns_read_what_the_script_prints(cli: Cli, clean_environment: Path) -> None:
    """Also where the job runs as on Azure ML, which has no patterns of its own."""
    (clean_environment / "train.py").write_text("print('step 2 loss: 0.25')\n")
    (clean_environment / "job.yaml").write_text(
        "name: digits\nentry_point: train.py\nenvironment: {framework: pytorch, version: '2.8'}\n"
        "metrics: {loss: 'loss: ([0-9.]+)'}\n"
    )
    assert cli("submit", "job.yaml", "--emulate", "azureml").code == 0
    assert json.loads(cli("status", "last", "--json").out)["metrics"] == {"step": 2.0, "loss": 0.25}


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("target", ["azureml", "local", "sagemaker"])
def test_nothing_to_download_is_no_failure(cli: Cli, clean_environment: Path, target: str) -> None:
    """A run that saved nothing is followed by no command that would fail; `download` says what to do, with exit code 1,
    also where the job has no output for a model."""
    emulate = () if target == "local" else ("--emulate", target)
    (clean_environment / "job.yaml").write_text(
        "name: digits\ncommand: echo trained\nenvironment: {framework: pytorch, version: '2.8'}\n"
        "resources: {instance_type: {sagemaker: ml.m5.xlarge}}\n"
    )
    result = cli("submit", "job.yaml", *emulate)
    assert result.code == 0, result.err
    assert "download" not in result.err
    nothing = cli("download", "last", "model/")
    assert nothing.code == 1
    assert "wrote no files to `model/`" in nothing.err
    assert "save the model in `runtime.model_dir()`" in nothing.err


COUNTED = {
    "sagemaker, one GPU": ("sagemaker", "instance_type: {sagemaker: ml.g4dn.xlarge}"),
    "sagemaker, no GPU": ("sagemaker", "instance_type: {sagemaker: ml.m5.xlarge}"),
    "sagemaker, eight GPUs": ("sagemaker", "instance_count: 2, instance_type: {sagemaker: ml.p4d.24xlarge}"),
    "sagemaker, described": ("sagemaker", "gpu: H200"),
    "azureml, no GPU": ("azureml", "instance_type: {azureml: Standard_D2s_v3}"),
    "azureml, four GPUs": ("azureml", "instance_type: {azureml: Standard_NC96ads_A100_v4}"),
}  # fmt: skip


@pytest.mark.parametrize("case", COUNTED)
def test_an_emulation_starts_what_the_plan_says(
    cli: Cli, clean_environment: Path, case: str
) -> None:
    """The same number of processes, or a notice with both numbers."""
    target, resources = COUNTED[case]
    (clean_environment / "train.py").write_text("")
    (clean_environment / "job.yaml").write_text(
        "name: j\nentry_point: train.py\ndistribution: {type: torch}\n"
        f"environment: {{framework: pytorch, version: '2.8'}}\nresources: {{{resources}}}\n"
    )
    there = json.loads(cli("plan", "job.yaml", "--json", "-t", target).out)
    here = json.loads(cli("plan", "job.yaml", "--json", "--emulate", target).out)
    planned = int(there["summary"]["processes"].split()[0])
    started = int(here["summary"]["processes"].split()[0])
    notices = [item["message"] for item in here["findings"] if item["code"] == "LO201"]
    assert (started == planned) is (not notices)
    for notice in notices:
        size = re.search(r"instead of (\d+) x (\d+) ", notice)
        assert size is not None
        assert int(size[1]) * int(size[2]) == planned
