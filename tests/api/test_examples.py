"""Every example is a job that can be planned on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

import cloudtrain as ct

ROOT = Path(__file__).parents[2]
FILES = sorted(
    path for path in [*ROOT.glob("examples/*.*"), *ROOT.glob("training_scripts/*/job.*")] if path.suffix != ".md"
)


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_examples_can_be_planned(path: Path) -> None:
    """It loads, compiles, and no check finds an error; twice the same."""
    job = ct.load_job(path)
    plan = ct.plan(job, "local", ignore=["LO103"])
    assert plan.errors == ()
    assert plan.to_json() == ct.plan(job, "local", ignore=["LO103"]).to_json()


def test_every_example_is_described() -> None:
    """The page of the examples names each file."""
    page = (ROOT / "examples" / "README.md").read_text()
    for path in ROOT.glob("examples/*"):
        assert path.name == "README.md" or f"`{path.name}`" in page
