"""A job without a job file: `cloudtrain submit train.py --epochs 3`."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cloudtrain as ct
from cloudtrain.job.script import read_hyperparameters
from tests.cli.conftest import Cli

TORCH = "import sys  # --target\ndef train():\n    import torch\nprint('got', sys.argv[1:], flush=True)\n"


@pytest.fixture
def script(clean_environment: Path) -> str:
    """A script in a folder of the project, whose directory the test is in."""
    (clean_environment / "src").mkdir()
    (clean_environment / "src" / "train.py").write_text(TORCH)
    return "src/train.py"


def job_of(cli: Cli, *arguments: str) -> ct.TrainingJob:
    """The job that `--save-job` writes, which plans as the command line does."""
    file = Path("saved.yaml")
    file.unlink(missing_ok=True)
    planned = cli("plan", "--save-job", str(file), "--json", *arguments)
    assert planned.code in (0, 2), planned.err
    job = ct.load_job(file)
    assert isinstance(job, ct.TrainingJob)
    return job


def test_arguments_are_hyperparameters(cli: Cli, script: str, clean_environment: Path) -> None:
    """`--name value` and `--name=value` become hyperparameters, numbers where they are written as Python writes them;
    options of cloudtrain's own after the script are the script's."""
    job = job_of(cli, script, "--epochs", "3", "--lr=1e-3", "--momentum", "0.9", "--shift", "-1", "--target", "cat")
    expected = {"epochs": 3, "lr": "1e-3", "momentum": 0.9, "shift": -1, "target": "cat"}
    assert (job.entry_point, job.hyperparameters) == (script, expected)
    assert (job.name, job.distribution.type) == (clean_environment.name, "torch")
    assert "\n  lr: '1e-3'\n" in Path("saved.yaml").read_text()


@pytest.mark.parametrize(
    "words", [["--dry-run"], ["--lr", "1", "--instances=4"], ["--upload-only", "x"], ["-d"], ["--lr", "1", "-t", "x"]]
)
def test_an_option_of_the_command_after_the_script_is_refused(cli: Cli, script: str, words: list[str]) -> None:
    """With `--dry-run` behind a script that knows no such option a job would be sent. `--` gives it to the script."""
    name = next(word for word in words if word not in ("--lr", "1", "x")).partition("=")[0]
    refused = cli("submit", script, *words)
    assert refused.code == 2
    assert f"`{name}` comes after `{script}`, which has no such option [CT902]" in " ".join(refused.err.split())
    assert not json.loads(cli("ps", "--json").out)
    assert cli("plan", "--ignore", "LO103", script, "--", *words).code == 0  # PyTorch may be missing


@pytest.mark.parametrize(
    "arguments", [["--amp"], ["data/train"], ["-e", "3"], ["--a", "1", "--a", "2"], ["--text", "it's", "x y"]]
)
def test_other_arguments_are_a_command(cli: Cli, script: str, arguments: list[str]) -> None:
    """Flags, positions and repeated options reach the script as they were typed."""
    job = job_of(cli, script, *arguments)
    assert job.entry_point is None
    assert shlex.split(job.command or "") == ["python", script, *arguments]


def test_flags_before_the_script(cli: Cli, script: str) -> None:
    """`--nproc`, `--nnodes`, `--gpu` and `--set` say what the job file would say, on any target."""
    options = ["--nproc", "4", "--nnodes", "2", "--gpu", "A100-40GB:8", "--set", "tags.team=vision"]
    job = job_of(cli, "--target", "sagemaker", *options, script, "--epochs", "1")
    assert job.resources.model_dump(exclude_defaults=True) == {
        "instance_count": 2, "gpu": "A100-40GB", "gpus_per_instance": 8,
    }  # fmt: skip
    assert (getattr(job.distribution, "processes_per_instance", None), job.tags) == (4, {"team": "vision"})
    local = json.loads(cli("plan", "--json", "--nproc", "3", "--nnodes", "2", script).out)
    assert [process["instance"] for process in local["processes"] if process["rank"] is not None] == [0] * 3 + [1] * 3


@pytest.mark.parametrize(
    ("text", "distribution"),
    [
        ("import os\n", "none"),
        ("import torch.nn as nn\n", "torch"),
        ("from transformers import Trainer\n", "torch"),
        ("import torch\nimport deepspeed\n", "deepspeed"),
        ("import horovod.torch as hvd\nimport torch\n", "horovod"),
        ("from mpi4py import MPI\n", "mpi"),
        ("from .torch import x\n", "none"),
        ('"""import torch"""\n', "none"),
    ],
)
def test_imports_choose_the_distribution(clean_environment: Path, text: str, distribution: str) -> None:
    """What the script imports decides how its processes start; its name is the folder's where it is a usual one."""
    (clean_environment / "fit.py").write_text(text)
    job = ct.TrainingJob.from_script("fit.py", ["--epochs", "3"], description="a try")
    assert (job.distribution.type, job.name, job.description) == (distribution, "fit", "a try")
    assert job.hyperparameters == {"epochs": 3}


@pytest.mark.lifecycle
def test_script_is_run(cli: Cli, clean_environment: Path) -> None:
    """A script outside of the working directory runs with its arguments; its folder is the code."""
    folder = clean_environment / "elsewhere"
    folder.mkdir()
    (folder / "fit.py").write_text("import sys, helper\nprint('got', sys.argv[1:], helper.X)\n")
    (folder / "helper.py").write_text("X = 42\n")
    here = clean_environment / "here"
    here.mkdir()
    result = cli("submit", str(folder / "fit.py"), "--flag", "a b")
    assert result.code == 0, result.err
    assert "got ['--flag', 'a b'] 42" in result.out


def test_mistakes(cli: Cli, script: str, clean_environment: Path) -> None:
    """What is wrong is said with a code and a hint, and nothing is overwritten."""
    (clean_environment / "job.yaml").write_text(f"name: a\nentry_point: {script}\n")
    (clean_environment / "bad.py").write_text("def (:\n")
    (clean_environment / "none.py").write_text("print(1)\n")
    for wrong, said in (
        (["submit", "absent.py"], "there is no script `absent.py`"),
        (["submit", "bad.py"], "is not Python"),
        (["plan", "job.yaml", "--", "--epochs", "3"], "`job.yaml` is a job file, which takes no arguments"),
        (["check", "job.yaml", "--gpu", "H100"], "`--gpu` works only with a script"),
        (["plan", "--save-job", "job.yaml", script], "`job.yaml` already exists"),
        (["plan", "--nproc", "2", "none.py"], "imports no library for training with several processes"),
        (["plan", "--set", "hyperparameter.a=1", script], "hyperparameters"),
    ):
        result = cli(*wrong)
        assert (result.code, "hint: " in result.err) == (2, True), (wrong, result.err)
        assert said in " ".join(result.err.split())
    assert "name: a" in (clean_environment / "job.yaml").read_text()


@given(st.dictionaries(st.from_regex(r"[a-z][a-z0-9_-]{0,8}", fullmatch=True), st.text(max_size=12)))
def test_hyperparameters_arrive_as_typed(values: dict[str, str]) -> None:
    """What is read from `--name=value` is written back as the same text."""
    read = read_hyperparameters([f"--{name}={value}" for name, value in values.items()])
    assert read is not None
    assert {name: str(value) for name, value in read.items()} == values


@given(
    words=st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8), max_size=5)
)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_saved_job_is_the_job(clean_environment: Path, words: list[str]) -> None:
    """The text of `--save-job` means the same job, whatever the arguments are."""
    from cloudtrain.job.file import parse_job
    from cloudtrain.job.from_script import job_text

    script = clean_environment / "given.py"
    script.write_text("print(1)\n")
    expected: Any = ct.TrainingJob.from_script(script, words)
    assert parse_job(job_text(script, words), format="yaml", file="job.yaml") == expected
