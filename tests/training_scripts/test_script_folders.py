"""Every bundled script's folder holds what a user needs, and its job file is a valid job."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import yaml

from cloudtrain import TrainingJob

FOLDERS = sorted(path.parent for path in (Path(__file__).parents[2] / "training_scripts").glob("*/train.py"))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_job_file_is_a_valid_job(folder: Path) -> None:
    """It validates, runs the script beside it, and passes only hyperparameters that the script has."""
    job = TrainingJob(**yaml.safe_load((folder / "job.yaml").read_text("utf-8")))
    assert job.name == folder.name.replace("_", "-")
    assert job.entry_point == "train.py"
    declared = {
        node.target.id
        for node in ast.walk(ast.parse((folder / "train.py").read_text("utf-8")))
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    assert set(job.hyperparameters) <= declared


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_job_names_an_instance_type_on_both_clouds(folder: Path) -> None:
    """The same job file runs on all three targets."""
    job = TrainingJob(**yaml.safe_load((folder / "job.yaml").read_text("utf-8")))
    described_by_gpu = job.resources.gpu is not None
    named = job.resources.instance_type
    assert described_by_gpu or (named is not None and named.sagemaker and named.azureml)
    if job.environment.requirements is not None:
        assert (folder / job.environment.requirements).is_file()


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_docstring_holds_the_commands(folder: Path) -> None:
    """One line that says what the script trains, then the exact commands; and a README."""
    docstring = ast.get_docstring(ast.parse((folder / "train.py").read_text("utf-8")))
    assert docstring is not None
    assert len(docstring.splitlines()[0]) <= 100
    assert "cloudtrain submit job.yaml" in docstring
    assert (folder / "README.md").is_file()
