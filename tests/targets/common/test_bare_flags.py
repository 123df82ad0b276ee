"""`bare_flags`: true is `--key` alone and false is nothing, on every target; and Ray, which one target starts."""

from __future__ import annotations

import json
from typing import Any

import pytest

import cloudtrain as ct

TARGETS: dict[str, Any] = {
    "local": ct.Local(),
    "sagemaker": ct.SageMaker(
        region="eu-west-1", role="arn:aws:iam::123456789012:role/R", bucket="b"
    ),
    "azureml": ct.AzureML(
        subscription_id="00000000-0000-0000-0000-000000000000", resource_group="rg", workspace="ws"
    ),
    "slurm": ct.Slurm(host="login", shared_dir="/shared"),
}


def job_of(**fields: Any) -> ct.TrainingJob:
    """A job of one script."""
    return ct.TrainingJob(
        name="flags",
        source_dir="src",
        entry_point="train.py",
        hyperparameters={"deepspeed": True, "lr": 0.1, "quiet": False},
        environment={"framework": "pytorch", "version": "2.8"},
        resources={
            "instance_type": {"sagemaker": "ml.g5.xlarge", "azureml": "Standard_NC24ads_A100_v4"}
        },
        **fields,
    )


@pytest.fixture(autouse=True)
def source(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src").mkdir()
    (tmp_path / "src/train.py").write_text("")


@pytest.mark.parametrize("target", TARGETS)
def test_flags_without_values(target: str) -> None:
    """The words of the script, wherever it runs; without the field they have values."""
    words = json.dumps(
        [
            list(process.argv)
            for process in ct.plan(job_of(bare_flags=True), TARGETS[target]).processes
        ]
    )
    plain = words.replace('", "', " ")
    assert "train.py --deepspeed --lr 0.1" in plain
    assert "quiet" not in plain
    words = json.dumps(
        [list(process.argv) for process in ct.plan(job_of(), TARGETS[target]).processes]
    )
    assert "--deepspeed True --lr 0.1 --quiet False" in words.replace('", "', " ")


@pytest.mark.parametrize(("field", "value"), [("bare_flags", True), ("arguments", ["--lr=1"])])
def test_a_toolkit_has_only_hyperparameters(field: str, value: object) -> None:
    """Where only the toolkit can start a job, the error names the field."""
    with pytest.raises(ct.JobError) as caught:
        ct.plan(
            job_of(distribution={"type": "smp", "version": 2}, **{field: value}),
            TARGETS["sagemaker"],
        )
    assert (field,) in {problem.path for problem in caught.value.problems}


@pytest.mark.parametrize("target", TARGETS)
def test_ray_is_one_targets_own(target: str) -> None:
    """Its fields as the SDK names them; elsewhere an error with the alternative."""
    job = job_of(
        distribution=ct.Ray(
            port=6379, include_dashboard=True, head_node_additional_args="--num-gpus=8"
        )
    )
    if target == "azureml":
        assert ct.plan(job, TARGETS[target]).request["properties"]["distribution"] == {
            "distributionType": "Ray", "port": 6379, "includeDashboard": True, "headNodeAdditionalArgs": "--num-gpus=8",
        }  # fmt: skip
        return
    with pytest.raises(ct.JobError) as caught:
        ct.plan(job, TARGETS[target])
    (problem,) = [item for item in caught.value.problems if item.code == "CT030"]
    assert problem.path == ("distribution", "type")
    assert "type: torch" in str(problem.hint)
