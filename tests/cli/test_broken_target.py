"""A package whose target cannot be loaded does no harm to the others, and says what to do when it is asked for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

JOB = "name: job\nentry_point: train.py\n"


@pytest.fixture
def broken(clean_environment: Path) -> Path:
    """An installed package with a target whose module is missing."""
    packages = clean_environment / "packages"
    info = packages / "broken_target-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-target\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[cloudtrain.targets]\nbroken = no_such_module:Target\n")
    (clean_environment / "train.py").write_text("")
    (clean_environment / "job.yaml").write_text(JOB)
    return packages


def run(packages: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command in the working directory, with the package installed."""
    return subprocess.run(
        [sys.executable, "-m", "cloudtrain", *arguments],
        env={**os.environ, "PYTHONPATH": str(packages)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    "arguments", [["plan", "job.yaml"], ["plan", "job.yaml", "--json"], ["ps", "--json"], ["--help"]]
)
def test_other_targets_work(broken: Path, arguments: list[str]) -> None:
    """What does not need it does not load it."""
    done = run(broken, *arguments)
    assert done.returncode == 0
    assert "broken" not in done.stderr


def test_it_says_what_is_wrong_with_it(broken: Path) -> None:
    """The module, the reason and what to do; no traceback."""
    done = run(broken, "plan", "job.yaml", "--target", "broken")
    assert done.returncode == 2
    assert "`broken` cannot be loaded from `no_such_module:Target`: ModuleNotFoundError" in " ".join(
        done.stderr.split()
    )
    assert "hint: upgrade or uninstall its package" in done.stderr
    assert "Traceback" not in done.stderr
