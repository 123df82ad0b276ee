"""The `added_property` of Microsoft's TensorFlow example is a field of a distribution, and no target sends it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import cloudtrain as ct
from tests.cli.conftest import Cli, cli
from tests.originals.test_originals import SAGEMAKER, WORKSPACE

__all__ = ["cli"]

JOB = """\
name: example
entry_point: train.py
distribution: {type: tensorflow, strategy: parameter_server, parameter_servers: 1, workers: 2, added_property: 7}
environment: {framework: tensorflow, version: "2.16"}
resources: {instance_count: 2, instance_type: {sagemaker: ml.g5.xlarge, azureml: Standard_NC24ads_A100_v4}}
max_runtime: 1h
"""


@pytest.mark.parametrize(
    "distribution",
    [
        ct.TensorFlow(added_property=7),
        ct.Torch(added_property=0.5),
        ct.DeepSpeed(added_property="text"),
        ct.MPI(processes_per_instance=1, added_property=False),
    ],
    ids=lambda distribution: distribution.type,
)
@pytest.mark.parametrize("target", [SAGEMAKER, WORKSPACE], ids=["sagemaker", "azureml"])
def test_it_is_a_field_that_is_not_sent(distribution: Any, target: Any, tmp_path: Path) -> None:
    """The request is the one without it, and a notice at its place says so."""
    (tmp_path / "train.py").write_text("import torch.distributed\n")
    job = ct.TrainingJob(
        name="example",
        source_dir=str(tmp_path),
        entry_point="train.py",
        distribution=distribution,
        environment={"framework": "pytorch", "version": "2.8"}
        if distribution.type != "tensorflow"
        else {"framework": "tensorflow", "version": "2.16"},
        resources={
            "instance_count": 2,
            "instance_type": {
                "sagemaker": "ml.g5.12xlarge",
                "azureml": "Standard_NC24ads_A100_v4",
            },
        },
    )
    plan = ct.plan(job, target)
    without = distribution.model_copy(update={"added_property": None})
    assert plan.request == ct.plan(job.model_copy(update={"distribution": without}), target).request
    told = [one for one in plan.findings if one.path == ("distribution", "added_property")]
    assert [one.level for one in told] == [ct.Level.NOTICE]


def test_it_is_a_field_of_a_file_and_of_set(cli: Cli, clean_environment: Path) -> None:
    """With its place in the file; another name is still an error."""
    (clean_environment / "train.py").write_text("import tensorflow\n")
    (clean_environment / "job.yaml").write_text(JOB)
    for more in ((), ("--set", "distribution.added_property=8")):
        checked = cli("check", "job.yaml", "--json", *more)
        assert checked.code == 0, checked.err
        (told,) = [one for one in json.loads(checked.out) if one["code"] == "LO209"]
        assert "distribution.added_property" in json.dumps(told)
    wrong = cli("check", "job.yaml", "--set", "distribution.added_proprty=8")
    assert wrong.code == 2
    assert "CT010" in wrong.err
    assert "added_property" in wrong.err
