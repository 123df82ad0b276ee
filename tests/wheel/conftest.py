"""Wheels, and a clean environment that has them, away from any checkout."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.deadlines import DEADLINE

ROOT = Path(__file__).parents[2]


def run(
    *argv: str, cwd: Path, check: bool = True, env: Mapping[str, str] = {}
) -> subprocess.CompletedProcess[str]:
    """Run a command away from the checkout."""
    clean = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "VIRTUAL_ENV")
    }
    result = subprocess.run(
        argv,
        cwd=cwd,
        env={**clean, **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE,
    )
    assert not check or result.returncode == 0, result.stdout + result.stderr
    return result


def build(project: Path, folder: Path) -> Path:
    """The wheel of a project, built into an empty folder."""
    options = ["-q", "--no-deps", "--no-build-isolation", "-w", str(folder)]
    run(sys.executable, "-m", "pip", "wheel", *options, str(project), cwd=folder)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the checkout."""
    return build(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` folder of a new virtual environment that has the wheel and what it depends on."""
    folder = tmp_path_factory.mktemp("clean")
    run(sys.executable, "-m", "venv", str(folder / "venv"), cwd=folder)
    binaries = folder / "venv" / "bin"
    run(str(binaries / "python"), "-m", "pip", "install", "-q", str(wheel), cwd=folder)
    return binaries
