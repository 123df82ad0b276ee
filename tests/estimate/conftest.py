"""A job with a script, and the command that estimates it."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

import cloudtrain as ct

Estimate = Callable[..., ct.FitReport]


@pytest.fixture
def job_of(tmp_path: Path) -> Callable[..., ct.TrainingJob]:
    """Makes a job of a script, on an instance type of SageMaker with a GPU."""

    def make(script: str, **fields: object) -> ct.TrainingJob:
        source = tmp_path / "src"
        source.mkdir(exist_ok=True)
        (source / "train.py").write_text(textwrap.dedent(script))
        values = {
            "name": "estimated", "source_dir": str(source), "entry_point": "train.py",
            "resources": {"instance_type": {"sagemaker": "ml.g5.xlarge"}},
            "distribution": {"type": "none"},
        }  # fmt: skip
        return ct.TrainingJob.model_validate({**values, **fields})

    return make


@pytest.fixture
def sagemaker() -> ct.SageMaker:
    """Settings with which a job can be planned without an account."""
    return ct.SageMaker(
        role="arn:aws:iam::111122223333:role/train", region="eu-west-1", bucket="bucket"
    )


def config_file(folder: Path, **numbers: object) -> Path:
    """A model's `config.json`."""
    file = folder / "config.json"
    file.write_text(json.dumps(numbers))
    return file
