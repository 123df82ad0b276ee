"""The steps of `action.yml`, run here as GitHub would run them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.deadlines import DEADLINE
from tests.hints import suggested

ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
INSTALL, CHECK = ACTION["runs"]["steps"]

GOOD = """\
name: good
entry_point: train.py
distribution: {type: torch}
resources: {instance_type: {sagemaker: ml.g5.xlarge}}
environment: {framework: pytorch, version: "2.14"}
max_runtime: 1h
"""

SETTINGS = (
    '[sagemaker]\nregion = "eu-west-1"\nrole = "arn:aws:iam::111122223333:role/SageMakerTraining"\n'
)


def step(
    what: dict[str, object], workspace: Path, **inputs: str
) -> subprocess.CompletedProcess[str]:
    """Run a step with the action's inputs, as a workflow of the repository in `workspace`."""
    given = {name: str(entry["default"]) for name, entry in ACTION["inputs"].items()} | inputs
    wanted: dict[str, str] = dict(what["env"])  # type: ignore[call-overload]
    env = {
        name: re.sub(r"\$\{\{ inputs\.(\w+) \}\}", lambda match: given[match[1]], text)
        for name, text in wanted.items()
    }
    places = {"GITHUB_ACTION_PATH": str(ROOT), "RUNNER_TEMP": str(workspace.parent / "temp")}
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", str(what["run"])],
        cwd=workspace,
        env={**os.environ, **places, **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE,
    )


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A repository with a job, and the interpreter of the tests where the first step would put its own."""
    binaries = tmp_path / "temp" / "cloudtrain" / "bin"
    binaries.mkdir(parents=True)
    (binaries / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (binaries / "python").chmod(0o755)
    folder = tmp_path / "workspace"
    (folder / "jobs").mkdir(parents=True)
    (folder / "jobs" / "good.yaml").write_text(GOOD)
    (folder / "jobs" / "train.py").write_text("print(1)\n")
    (folder / "cloudtrain.toml").write_text(SETTINGS)
    return folder


def test_inputs_reach_the_shell_as_variables() -> None:
    """No input is part of a command, where it could be one."""
    assert ACTION["runs"]["using"] == "composite"
    for one in (INSTALL, CHECK):
        assert one["shell"] == "bash"
        assert "${{" not in one["run"]


@pytest.mark.slow
def test_a_good_job_passes(workspace: Path) -> None:
    """No annotation, and exit code 0."""
    done = step(CHECK, workspace, files="jobs/*.yaml", targets="sagemaker")
    assert (done.returncode, done.stdout) == (0, "jobs/good.yaml on sagemaker: no errors\n")


@pytest.mark.slow
def test_a_mistake_is_marked_at_its_line(workspace: Path) -> None:
    """Once, although two targets find it; the step fails, and the other file is checked."""
    (workspace / "jobs" / "bad.yaml").write_text(GOOD.replace("torch}", "torhc}"))
    done = step(
        CHECK, workspace, files="jobs/*.yaml", targets="sagemaker azureml", ignore="AZ101 AZ102"
    )
    assert done.returncode == 1
    (line,) = [line for line in done.stdout.splitlines() if "torhc" in line]
    assert line == (
        f"::error file=jobs/bad.yaml,line=3,col=22,title=CT013::`torhc` is not a distribution%0Ahint: {suggested('torch')}"
    )
    assert "jobs/good.yaml on sagemaker: no errors" in done.stdout


@pytest.mark.slow
def test_a_finding_without_a_line_is_marked_on_the_first(workspace: Path) -> None:
    """A missing script, say, or a warning; a warning alone does not fail the step."""
    (workspace / "cloudtrain.toml").unlink()
    done = step(CHECK, workspace, files="jobs/good.yaml", targets="sagemaker")
    assert done.returncode == 1
    assert re.search(
        r"^::error file=jobs/good.yaml,line=\d+.*,title=SM\d+::", done.stdout, re.MULTILINE
    )


def test_no_file_is_a_failure(workspace: Path) -> None:
    """A pattern that matches nothing checks nothing, which nobody would see."""
    done = step(CHECK, workspace)
    assert (done.returncode, done.stdout) == (1, "::error::no job file matches `**/job.yaml`\n")


@pytest.mark.slow
def test_what_a_file_says_stays_inside_its_annotation(workspace: Path) -> None:
    """A name in a job cannot write another workflow command, nor end a property."""
    (workspace / "jobs" / "a,b.yaml").write_text(
        GOOD.replace("name: good", r'name: "x\n::error::y%"')
    )
    done = step(CHECK, workspace, files="jobs/a,b.yaml", targets="sagemaker")
    assert done.returncode == 1
    assert "::error file=jobs/a%2Cb.yaml,line=1" in done.stdout
    assert not [line for line in done.stdout.splitlines() if line.startswith("::error::y")]


@pytest.mark.slow
def test_modules_of_the_repository_are_not_imported(workspace: Path) -> None:
    """A `yaml.py` or `cloudtrain/` in the checked repository is a file like any other."""
    for name in ("yaml.py", "json.py", "cloudtrain.py"):
        (workspace / name).write_text("raise SystemExit('imported')\n")
    done = step(CHECK, workspace, files="jobs/good.yaml", targets="sagemaker")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.wheel
def test_both_steps(tmp_path: Path) -> None:
    """cloudtrain is installed from the action's own folder, and needs no PyTorch for a job of this machine."""
    (tmp_path / "temp").mkdir()
    folder = tmp_path / "workspace"
    folder.mkdir()
    (folder / "job.yaml").write_text(GOOD)
    (folder / "train.py").write_text("print(1)\n")
    installed = step(INSTALL, folder, python=sys.executable)
    assert installed.returncode == 0, installed.stdout + installed.stderr
    done = step(CHECK, folder)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "job.yaml: no errors"), (
        done.stdout + done.stderr
    )
