"""The notebooks and launch scripts of AWS's and Hugging Face's examples: every job in them is adopted equal."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import cloudtrain as ct
from tests.originals.standins import AWS
from tests.originals.test_originals import written

pytestmark = pytest.mark.parity(2)

JOBS = {
    "smddp": ["smddp-mnist", "smddp-mnist-options"],
    "smp": ["smp-gpt2"],
    "hugging face": ["huggingface-pytorch-training", "huggingface-pytorch-training-2"],
}


@pytest.mark.parametrize("name", AWS)
def test_every_job_of_a_script_is_adopted(name: str, tmp_path: Path) -> None:
    """Equal, and the first one is the job that the other tests plan and run."""
    folder = written(AWS[name], tmp_path)
    found = {
        job: ct.adopt(folder / "launch.py", execute=True, python=sys.executable, job=job)
        for job in JOBS[name]
    }
    assert {job: one.differences for job, one in found.items()} == dict.fromkeys(JOBS[name], ())
    fields = AWS[name].fields
    first = found[JOBS[name][0]].job
    expected = ct.TrainingJob(**{**fields, "inputs": {}})
    same = ("entry_point", "hyperparameters", "distribution", "resources")
    assert [getattr(first, field) for field in same] == [getattr(expected, field) for field in same]
    assert set(first.inputs) == set(fields.get("inputs", {}))
