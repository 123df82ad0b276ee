"""The built wheel, in a clean environment with nothing but its dependencies, away from any checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.wheel


def run(*argv: str, cwd: Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a command away from the checkout."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    result = subprocess.run(argv, cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=300)
    assert not check or result.returncode == 0, result.stdout + result.stderr
    return result


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    run(
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(folder),
        str(ROOT),
        cwd=folder,
    )
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` folder of a new virtual environment that has the wheel and what it depends on."""
    folder = tmp_path_factory.mktemp("clean")
    run(sys.executable, "-m", "venv", str(folder / "venv"), cwd=folder)
    binaries = folder / "venv" / "bin"
    run(str(binaries / "python"), "-m", "pip", "install", "-q", str(wheel), cwd=folder)
    return binaries


def test_the_wheel_holds_the_scripts_and_the_types(wheel: Path) -> None:
    """Training scripts, `py.typed` and the licence are in; tests and caches are not."""
    names = zipfile.ZipFile(wheel).namelist()
    assert "cloudtrain/_training_scripts/digits_ddp/train.py" in names
    assert "cloudtrain/_training_scripts/digits_ddp/job.yaml" in names
    assert "cloudtrain/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if name.startswith("tests/") or "__pycache__" in name]


def test_a_core_installation_plans_without_torch_and_sdks(installed: Path, tmp_path: Path) -> None:
    """`scripts list` and a plan of a bundled script work with the core dependencies alone."""
    cloudtrain = str(installed / "cloudtrain")
    assert "digits_ddp" in run(cloudtrain, "scripts", "list", cwd=tmp_path).stdout
    plan = run(cloudtrain, "plan", "bundled:digits_ddp", "--json", "--ignore", "LO103", cwd=tmp_path)
    assert json.loads(plan.stdout)["target"] == "local"
    missing = run(cloudtrain, "check", "bundled:digits_ddp", cwd=tmp_path, check=False)
    assert missing.returncode == 2
    assert "cloudtrain[torch]" in missing.stdout + missing.stderr


@pytest.mark.torch
def test_a_bundled_script_trains_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    """The command line from the wheel runs the script with another interpreter, which has PyTorch.

    The script finds `cloudtrain.runtime` in its bundle.
    """
    cloudtrain = str(installed / "cloudtrain")
    argv = ["submit", "bundled:digits_ddp", "--processes-per-instance", "2", "--python", sys.executable]
    result = run(cloudtrain, *argv, cwd=tmp_path)
    assert "test_accuracy=" in result.stdout
    script = "import cloudtrain as ct; print(ct.bundled_job('digits_ddp').name, ct.run('last').state)"
    assert run(str(installed / "python"), "-c", script, cwd=tmp_path).stdout.split() == ["digits-ddp", "succeeded"]
