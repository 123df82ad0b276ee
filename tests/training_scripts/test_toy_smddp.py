"""The toy for smddp: what would be sent, and the script run where there is no smddp."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import cloudtrain as ct
from tests.training_scripts.runs import FIVE_DECIMALS, run, terminate

FOLDER = Path(__file__).parents[2] / "training_scripts" / "toy_smddp"
SAGEMAKER = ct.SageMaker(
    region="us-west-2", role="arn:aws:iam::111122223333:role/SageMakerTraining"
)
AZUREML = ct.AzureML(
    subscription_id="00000000-0000-0000-0000-000000000000", resource_group="group", workspace="work"
)
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def job(**changes: object) -> ct.TrainingJob:
    """The script's job, with another distribution."""
    found = ct.load_job(FOLDER / "job.yaml")
    return (
        found.model_copy(update={"distribution": found.distribution.model_copy(update=changes)})
        if changes
        else found
    )


def test_sagemaker_gets_the_library_its_wrapper_and_16_processes() -> None:
    """The submission is one hyperparameter, and mpirun starts smddprun on both instances."""
    plan = ct.plan(job(), SAGEMAKER)
    assert plan.errors == ()
    assert plan.request["HyperParameters"]["sagemaker_distributed_dataparallel_enabled"] == "true"
    text = plan.to_json()
    assert '"--host", "algo-1:8,algo-2:8", "-np", "16"' in json.dumps(json.loads(text))
    assert "smddprun" in text


def test_with_torch_as_its_launch_sagemaker_starts_torchrun() -> None:
    """The same library without MPI."""
    plan = ct.plan(job(launch="torch"), SAGEMAKER)
    assert plan.errors == ()
    assert plan.request["HyperParameters"]["sagemaker_torch_distributed_enabled"] == "true"
    assert "mpirun" not in plan.to_json()


def test_azure_refuses_smddp_and_says_what_to_use() -> None:
    """One error, with the alternative, and the alternative has no error."""
    with pytest.raises(ct.JobError) as refusal:
        ct.plan(job(), AZUREML)
    (problem,) = refusal.value.problems
    assert problem.message == "`smddp` is SageMaker's own library and does not exist on Azure ML"
    assert problem.hint == "use `distribution: {type: torch}`: the same script with NCCL"
    assert (
        ct.plan(ct.load_job(FOLDER / "job.yaml", ["distribution.type=torch"]), AZUREML).errors == ()
    )


@pytest.mark.torch
def test_one_and_two_processes_learn_the_same_and_a_resumed_run_too(tmp_path: Path) -> None:
    """The same losses to 5 decimals with any number of processes, and from the checkpoint in the middle on."""
    alone = run(tmp_path / "alone", sys.executable, FOLDER / "train.py")
    assert alone.exit_code == 0, alone.errors
    assert alone.accuracies[100] > 0.9
    assert alone.last("total") == 100
    assert (tmp_path / "alone" / "model" / "model.pt").is_file()

    half = run(tmp_path / "half", *TORCHRUN, FOLDER / "train.py", "--steps", "50")
    assert half.exit_code == 0, half.errors
    assert half.lines[0] == "processes=2 device=cpu backend=gloo"
    rest = run(tmp_path / "half", sys.executable, FOLDER / "train.py")
    assert rest.resumed_from == [50]
    assert {**half.losses, **rest.losses} == pytest.approx(alone.losses, abs=FIVE_DECIMALS)
    assert (sorted(half.losses), sorted(rest.losses)) == (
        [10, 20, 30, 40, 50],
        [60, 70, 80, 90, 100],
    )
    assert rest.accuracies == alone.accuracies


@pytest.mark.torch
def test_sigterm_leaves_a_marker_and_a_checkpoint(tmp_path: Path) -> None:
    """It stops after its step, with exit code 0."""
    found = run(
        tmp_path,
        sys.executable,
        FOLDER / "train.py",
        "--step_delay",
        "0.02",
        disturb=terminate,
        at=10,
    )
    assert found.exit_code == 0, found.errors
    step = json.loads((tmp_path / "checkpoint" / "preempted").read_text())["step"]
    assert 10 <= step < 100
    assert [path.name for path in (tmp_path / "checkpoint").glob("*-step-*")] == [
        f"000001-step-{step}"
    ]
