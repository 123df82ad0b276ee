"""`--emulate sagemaker`: the command line's way to an emulated job."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Cli

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
    assert [process["env"]["SM_CURRENT_HOST"] for process in plan["processes"]] == ["algo-1", "algo-2"]
    assert plan["processes"][1]["env"]["SM_MODEL_DIR"].endswith(f"/{plan['run_name']}/hosts/algo-2/opt/ml/model")
    assert cli("check", emulated, "--emulate", "sagemaker").code == 0


def test_submit_runs_it(cli: Cli, emulated: str) -> None:
    """Both hosts' output is followed, and the run looks like any other."""
    result = cli("submit", emulated, "--emulate", "sagemaker", "--instances", "2")
    assert result.code == 0, result.err
    assert sorted(line.split()[-1] for line in result.out.splitlines() if "algo" in line) == ["algo-1", "algo-2"]


@pytest.mark.parametrize(
    ("flags", "message", "hint"),
    [
        (("--emulate", "sagemker"), "`emulate` cannot be", "did you mean `sagemaker`?"),
        (("--emulate", "sagemaker", "--target", "sagemaker"), "`--emulate` is for the local target", "--target local"),
        (("--emulate", "sagemaker", "--max-restarts", "1"), "`max_restarts` has no effect", "remove one of them"),
    ],
)
def test_wrong_flags(cli: Cli, emulated: str, flags: tuple[str, ...], message: str, hint: str) -> None:
    """What makes no sense together is said, with what to type."""
    result = cli("plan", emulated, *flags)
    assert result.code == 2
    assert message in result.err
    assert hint in result.err
