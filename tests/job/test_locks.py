"""A uv.lock is read as `uv export` reads it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from packaging.markers import Marker

from cloudtrain.job.locks import read_lock
from cloudtrain.job.requirements import Platform
from cloudtrain.runtime.install import find_uv

GOLDEN = Path(__file__).parents[1] / "golden" / "uv"
"""A project with a workspace, an extra and a group, its lock with the first wheel of each package, as one for any
platform, and what `uv export --frozen --no-dev --no-hashes --no-emit-local` of uv 0.13.9 prints."""

EXPORTS: dict[str, tuple[list[str], list[str], bool, list[str]]] = {
    "all": ([], [], False, []),
    "without_torch": ([], [], True, ["--prune", "torch"]),
    "plot_and_eval": (
        ["plot"],
        ["eval"],
        True,
        ["--extra", "plot", "--group", "eval", "--prune", "torch"],
    ),
}


def read(path: str) -> str | None:
    """A file of the golden project."""
    file = GOLDEN / path
    return file.read_text("utf-8") if file.is_file() else None


def applying(export: str, python: str) -> list[str]:
    """The lines of an export whose markers apply."""
    environment: dict[str, str] = Platform(python).environment
    lines = [line.partition(" ; ") for line in export.splitlines() if line[:1].isalnum()]
    return sorted(
        head
        for head, _, marker in lines
        if not marker or Marker(marker).evaluate({**environment, "extra": ""})
    )


def check(export: Callable[[str], str], pythons: Sequence[str], files: Sequence[str]) -> None:
    """Compare the lists for each Python."""
    for name, (extras, groups, prune, _) in EXPORTS.items():
        for python in pythons:
            for file in files:
                found = read_lock(
                    file, read, Platform(python), extras=extras, groups=groups, prune=prune
                )
                assert sorted(
                    f"{item.name}=={item.version}" for item in found.packages
                ) == applying(export(name), python)
                assert found.folders == {"mylib": "libs/mylib"}
                assert bool(found.brought) is prune


def test_the_lists_equal_those_of_uv() -> None:
    """With and without torch, an extra and a group, for two versions of Python."""
    check(
        lambda name: (GOLDEN / f"{name}.txt").read_text("utf-8"),
        ("3.10", "3.12"),
        ["pyproject.toml"],
    )


@pytest.mark.slow
@pytest.mark.skipif(find_uv() is None, reason="uv is not installed")
def test_the_lists_equal_those_of_this_uv(tmp_path: Path) -> None:
    """The installed uv exports the same."""
    shutil.copytree(GOLDEN, tmp_path, dirs_exist_ok=True)
    command = f"{find_uv()} export -q --frozen --offline --no-dev --no-hashes --no-emit-local --no-header --no-annotate".split()

    def export(name: str) -> str:
        return subprocess.run(
            [*command, *EXPORTS[name][3]], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout

    check(export, ("3.10", "3.11", "3.12", "3.13"), ("uv.lock", "pyproject.toml"))
