"""What `make test` and CI choose by marks: nothing that leaves the one is lost to the other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

TESTS = """
import pytest

@pytest.mark.parametrize(
    "name",
    [
        "quick",
        pytest.param("a", marks=pytest.mark.in_ci),
        pytest.param("b", marks=pytest.mark.in_ci),
        pytest.param("c", marks=pytest.mark.slow),
        pytest.param("d", marks=pytest.mark.slow),
    ],
)
def test_it(name): ...

@pytest.mark.slow_after(1)
@pytest.mark.parametrize("name", ["quick", "a", "b"])
def test_other(name): ...
"""


@pytest.mark.in_ci
@pytest.mark.parametrize(
    ("arguments", "chosen"),
    [
        (["-m", "not slow"], "it-quick other-quick"),
        (["-m", "slow", "--first"], "it-a it-b it-c other-a"),
        (["-m", "slow"], "it-a it-b it-c it-d other-a other-b"),
    ],
    ids=["make test", "CI", "make test-all"],
)
def test_what_is_chosen(arguments: list[str], chosen: str, tmp_path: Path) -> None:
    """`in_ci` is whole in CI, of what is slow the first, and everything in the end."""
    (tmp_path / "test_them.py").write_text(TESTS)
    options = ["-c", ROOT / "pyproject.toml", "--rootdir", tmp_path, "-p", "tests.conftest"]
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *options, *arguments]
    listed = subprocess.run(
        [*command, tmp_path / "test_them.py"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    names = [line.partition("::test_")[2] for line in listed.splitlines() if "::" in line]
    assert [name.replace("[", "-").rstrip("]") for name in names] == chosen.split()
