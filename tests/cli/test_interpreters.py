"""`--python conda:NAME` and `--python uv`: the script runs in an environment that is already there."""

from __future__ import annotations

import os
import venv
from pathlib import Path

import pytest

from tests.cli.conftest import Cli


@pytest.fixture
def project(clean_environment: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job that prints its environment, a uv project around it, and a `conda` on the PATH."""
    for name in (
        "CONDA_EXE",
        "MAMBA_ROOT_PREFIX",
        "CONDA_ENVS_DIRS",
        "CONDA_ENVS_PATH",
        "UV_PROJECT_ENVIRONMENT",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(clean_environment))
    conda = clean_environment / "miniconda" / "bin" / "conda"
    conda.parent.mkdir(parents=True)
    conda.write_text("#!/bin/sh\nexit 1\n")
    conda.chmod(0o755)
    monkeypatch.setenv("PATH", f"{conda.parent}{os.pathsep}{os.environ['PATH']}")
    folder = clean_environment / "project" / "jobs"
    folder.mkdir(parents=True)
    (folder.parent / "pyproject.toml").write_text("[project]\nname = 'a'\n")
    (folder / "train.py").write_text("import sys\nprint(sys.prefix)\n")
    (folder / "job.yaml").write_text("name: says\nentry_point: train.py\n")
    monkeypatch.chdir(folder)
    return folder


def environment_at(place: Path) -> str:
    """Make an environment with an interpreter."""
    venv.create(place, symlinks=True)
    return f"[rank 0] {place}\n"


@pytest.mark.lifecycle
def test_a_conda_environment_by_name(cli: Cli, project: Path, clean_environment: Path) -> None:
    """The environment below conda's own folder, and one that only conda's list knows; conda itself is not started."""
    usual = environment_at(clean_environment / "miniconda" / "envs" / "vision")
    assert cli("submit", "job.yaml", "--python", "conda:vision").out == usual
    listed = environment_at(clean_environment / "elsewhere" / "speech")
    (clean_environment / ".conda").mkdir()
    (clean_environment / ".conda" / "environments.txt").write_text(
        f"{clean_environment}/elsewhere/speech\n"
    )
    (project / "cloudtrain.toml").write_text('[local]\npython = "conda:speech"\n')
    assert cli("submit", "job.yaml").out == listed


@pytest.mark.lifecycle
def test_the_environment_of_the_uv_project(
    cli: Cli, project: Path, clean_environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`.venv` beside the project's `pyproject.toml`, or where uv's own variable says."""
    (project / "cloudtrain.toml").write_text('[local]\npython = "uv"\n')
    assert cli("submit", "job.yaml").code != 0
    usual = environment_at(project.parent / ".venv")
    assert cli("submit", "job.yaml").out == usual
    other = environment_at(clean_environment / "other")
    monkeypatch.setenv("UV_PROJECT_ENVIRONMENT", str(clean_environment / "other"))
    assert cli("submit", "job.yaml").out == other


@pytest.mark.parametrize(
    ("python", "message", "hint"),
    [
        ("conda:vision", "the conda environment `vision` does not exist", "`conda env list` shows"),
        ("conda:", "the conda environment `` does not exist", "`conda env list` shows"),
        ("conda:../a", "the conda environment `../a` does not exist", "`conda env list` shows"),
        ("uv", "the project around this folder has no uv environment", "`uv sync` creates it"),
    ],
)
def test_an_environment_that_is_not_there(
    cli: Cli, project: Path, python: str, message: str, hint: str
) -> None:
    """The plan has an error that says what to type."""
    result = cli("plan", "job.yaml", "--short", "--python", python)
    said = " ".join(result.out.split())
    assert "[LO102]" in said
    assert message in said
    assert hint in said


def test_a_folder_is_no_interpreter(cli: Cli, project: Path) -> None:
    """The hint names the interpreter in the folder of an environment; `check` has the option, too."""
    environment_at(project / "mine")
    result = cli("check", "job.yaml", "--python", "./mine")
    said = " ".join(result.out.split())
    assert (result.code, "/mine` is a folder [LO102]" in said) == (2, True)
    assert "/mine/bin/python`" in said
    (project / "mine.txt").touch()
    assert "/mine.txt` is not an executable file [LO102]" in " ".join(
        cli("check", "job.yaml", "--python", "./mine.txt").out.split()
    )


@pytest.mark.lifecycle
def test_a_relative_path_in_the_settings_file(cli: Cli, project: Path) -> None:
    """It is relative to the working directory, while the script runs in the folder of its code."""
    usual = environment_at(project / "mine")
    (project / ".cloudtrainignore").write_text("mine\n")
    (project / "cloudtrain.toml").write_text('[local]\npython = "mine/bin/python"\n')
    assert cli("submit", "job.yaml").out == usual
