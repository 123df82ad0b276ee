"""Azure's examples, adopted with azure-ai-ml itself: the job files, and the notebook that gives a distribution more keys."""

from __future__ import annotations

from pathlib import Path

import pytest

import cloudtrain as ct
from tests.originals.standins import AZURE
from tests.originals.test_originals import written
from tests.parity.adoption import adopted

pytestmark = pytest.mark.parity("azureml")


@pytest.mark.parametrize("name", AZURE)
def test_a_job_file_is_adopted(name: str, tmp_path: Path) -> None:
    """Equal to the body that the SDK makes of it."""
    found = ct.adopt(written(AZURE[name], tmp_path) / "job.yml")
    assert found.differences == ()


@pytest.mark.parametrize(
    "distribution",
    [
        {"type": "tensorflow", "parameter_server_count": 1, "worker_count": 1, "added_property": 7},
        {
            "type": "pytorch",
            "process_count_per_instance": 4,
            "additional_prop": {"nested_prop": 3},
        },
        {"type": "mpi", "process_count_per_instance": 1, "added_property": 7},
    ],
    ids=lambda distribution: str(distribution["type"]),
)
def test_a_key_that_the_sdk_drops_is_dropped(
    distribution: dict[str, object], tmp_path: Path
) -> None:
    """The notebook's job is adopted equal, without the key."""
    script = (
        "job = command(code='src', command='python train.py', environment='azureml:e:1', compute='gpu',\n"
        f"              instance_count=2, distribution={distribution!r}, experiment_name='x')\n"
        "client.jobs.create_or_update(job)\n"
    )
    found = adopted("azureml", script, tmp_path)
    assert found.differences == ()
    assert found.job.distribution.type == str(distribution["type"]).replace("pytorch", "torch")
