"""The command line in this process, against a target whose runs do what the test says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from cloudtrain.cli.app import run_command
from cloudtrain.system import plugins as targets
from tests.cli.scripted import ScriptedTarget


class Result(NamedTuple):
    """What a command line left: exit code, stdout, stderr."""

    code: int
    out: str
    err: str


Cli = Callable[..., Result]

JOB = """\
name: digits
source_dir: .
entry_point: train.py
hyperparameters: {epochs: 2}
"""


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """`cli("ps", "--all")` runs one command line."""

    def run(*arguments: str) -> Result:
        capsys.readouterr()
        code = run_command(arguments)
        out, err = capsys.readouterr()
        assert not any(line.startswith("Traceback") for line in err.splitlines())
        return Result(code, out, err)

    return run


@pytest.fixture
def _torch_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """`cloudtrain doctor` starts its process, which answers without importing torch for seconds."""
    monkeypatch.setattr("cloudtrain.cli.commands.doctor._TORCH_PROBE", "print('2.13.0', True, 0)")


@pytest.fixture
def without_uv(monkeypatch: pytest.MonkeyPatch) -> None:
    """Environments are built as on a machine without uv, which the environment of the tests has."""
    monkeypatch.setattr("cloudtrain.runtime.install.find_uv", lambda _: None)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The local target is a fake whose runs read their fate from `fate.json` in this folder."""
    service = tmp_path / "service"
    (service / "jobs").mkdir(parents=True)
    monkeypatch.setenv("FAKE_SERVICE", str(service / "jobs"))
    monkeypatch.setitem(targets.LOADED, "local", ScriptedTarget())
    return service


@pytest.fixture
def job(clean_environment: Path) -> str:
    """The name of a small job file in the working directory, with its script."""
    (clean_environment / "train.py").write_text("print(1)\n")
    (clean_environment / "job.yaml").write_text(JOB)
    return "job.yaml"
