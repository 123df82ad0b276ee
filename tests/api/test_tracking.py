"""`tracking` of a job: the variables that each library reads, on every target, and what checks say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cloudtrain as ct

ROLE = "arn:aws:iam::111122223333:role/train"
SERVER = "https://mlflow.example.org"
ARN = "arn:aws:sagemaker:us-west-2:111122223333:mlflow-tracking-server/team"
SETTINGS = f"""\
[sagemaker]
role = "{ROLE}"
region = "us-west-2"
[azureml]
subscription_id = "99999999-2222-3333-4444-555555555555"
resource_group = "group"
workspace = "work"
compute = "gpu"
[slurm]
shared_dir = "/shared"
"""
JOB: dict[str, Any] = {
    "name": "tracked",
    "entry_point": "train.py",
    "environment": {"framework": "pytorch", "version": "2.10"},
    "resources": {
        "instance_type": {"sagemaker": "ml.g5.xlarge", "azureml": "Standard_NC24ads_A100_v4"}
    },
    "max_runtime": "1h",
}
ALL = {"mlflow": SERVER, "wandb": "offline", "tensorboard": True}

Planner = Callable[..., ct.Plan]


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Planner:
    """Returns the plan of a job with `tracking` and other changes."""
    (tmp_path / "train.py").write_text("print(1)\n")
    (tmp_path / "cloudtrain.toml").write_text(SETTINGS)
    monkeypatch.chdir(tmp_path)

    def plan_of(target: str, tracking: dict[str, Any] | None, **changes: Any) -> ct.Plan:
        job = ct.TrainingJob(**{**JOB, "tracking": tracking, **changes})
        return ct.plan(job, target)

    return plan_of


def variables(plan: ct.Plan, target: str) -> dict[str, str]:
    """The environment variables that a request or a launch holds."""
    if target == "sagemaker":
        found: dict[str, str] = plan.request.get("Environment", {})
        return found
    if target == "azureml":
        return dict(plan.request["properties"].get("environmentVariables", {}))
    (first, *_) = plan.processes
    return dict(first.env)


def tracked(plan: ct.Plan, target: str) -> dict[str, str]:
    """Those of tracking libraries."""
    names = ("MLFLOW_", "WANDB_", "TENSORBOARD_")
    found = variables(plan, target)
    return {name: found[name] for name in sorted(found) if name.startswith(names)}


def test_sagemaker_keeps_files_in_the_folder_of_the_outputs(plan: Planner) -> None:
    """The service packs `/opt/ml/output/data`; names are the run's."""
    made = plan("sagemaker", ALL)
    assert tracked(made, "sagemaker") == {
        "MLFLOW_EXPERIMENT_NAME": "tracked",
        "MLFLOW_RUN_CONTEXT": f'{{"mlflow.runName": "{made.run_name}"}}',
        "MLFLOW_TRACKING_URI": SERVER,
        "TENSORBOARD_LOGGING_DIR": "/opt/ml/output/data/tensorboard",
        "WANDB_DIR": "/opt/ml/output/data",
        "WANDB_MODE": "offline",
        "WANDB_NAME": made.run_name,
        "WANDB_PROJECT": "tracked",
        "WANDB_RESUME": "allow",
        "WANDB_RUN_ID": made.run_name,
    }


def test_azureml_leaves_mlflow_to_the_service(plan: Planner) -> None:
    """Its own variables point MLflow at the workspace, and a notice says so; files go to `outputs`."""
    made = plan("azureml", ALL)
    assert tracked(made, "azureml") == {
        "TENSORBOARD_LOGGING_DIR": "outputs/tensorboard",
        "WANDB_DIR": "outputs",
        "WANDB_MODE": "offline",
        "WANDB_PROJECT": "tracked",
    }
    (notice,) = (item for item in made.findings if item.path == ("tracking", "mlflow"))
    assert (notice.code, notice.level) == ("AZ117", ct.Level.NOTICE)


@pytest.mark.parametrize("target", ["local", "slurm"])
def test_a_run_here_or_on_a_cluster_keeps_files_in_its_folder(plan: Planner, target: str) -> None:
    """The folder that `download` reads."""
    made = plan(target, ALL, environment={}, resources={})
    found = tracked(made, target)
    folder = variables(made, target)["CLOUDTRAIN_RUN_DIR"]
    assert found["WANDB_DIR"] == folder
    assert found["TENSORBOARD_LOGGING_DIR"] == f"{folder}/tensorboard"
    assert found["WANDB_RUN_ID"] == made.run_name
    assert made.run_name in found["MLFLOW_RUN_CONTEXT"]
    assert found["MLFLOW_TRACKING_URI"] == SERVER


@pytest.mark.parametrize("target", ["local", "slurm", "sagemaker", "azureml"])
def test_a_job_without_tracking_has_no_such_variable(plan: Planner, target: str) -> None:
    """Nothing is set that nobody asked for; a field alone sets its own library's."""
    assert tracked(plan(target, None), target) == {}
    only = tracked(plan(target, {"tensorboard": True}), target)
    assert list(only) == ["TENSORBOARD_LOGGING_DIR"]


@pytest.mark.parametrize("target", ["local", "slurm", "sagemaker", "azureml"])
def test_the_jobs_own_variables_win(plan: Planner, target: str) -> None:
    """What the user writes under `environment.variables` is sent as it is."""
    own = JOB["environment"] | {"variables": {"WANDB_PROJECT": "mine"}}
    found = tracked(plan(target, {"wandb": "offline"}, environment=own), target)
    assert found["WANDB_PROJECT"] == "mine"
    assert found["WANDB_MODE"] == "offline"


def test_a_server_for_each_target(plan: Planner) -> None:
    """A target without one gets none."""
    tracking = {"mlflow": {"sagemaker": ARN}}
    assert tracked(plan("sagemaker", tracking), "sagemaker")["MLFLOW_TRACKING_URI"] == ARN
    assert tracked(plan("slurm", tracking, environment={}, resources={}), "slurm") == {}


def test_trials_of_a_tuner_share_no_run(plan: Planner, tmp_path: Path) -> None:
    """One definition serves all trials, so it holds no run's name; the job's own value stays."""
    search = {"lr": {"uniform": [0.1, 0.9]}}
    objective = {"minimize": "loss"}
    for own in ({}, {"WANDB_NAME": "mine"}):
        environment = JOB["environment"] | {"variables": own}
        job = ct.TrainingJob(
            **{**JOB, "tracking": ALL, "environment": environment, "metrics": {"loss": "loss=(.*)"}}
        )
        sweep = ct.Sweep(
            name="tuned", job=job, search=search, objective=objective, strategy="random", trials=2
        )
        request = ct.plan(sweep, "sagemaker").request
        found = request["TrainingJobDefinition"]["Environment"]
        assert found["WANDB_PROJECT"] == "tracked"
        assert found.get("WANDB_NAME") == own.get("WANDB_NAME")
        assert not {"WANDB_RUN_ID", "WANDB_RESUME", "MLFLOW_RUN_CONTEXT"} & found.keys()


@pytest.mark.parametrize(
    ("target", "tracking", "changes", "code"),
    [
        ("sagemaker", {"wandb": "online"}, {}, "CT217"),
        ("azureml", {"wandb": "online"}, {}, "CT217"),
        ("slurm", {"wandb": "online"}, {"environment": {}, "resources": {}}, None),
        ("sagemaker", {"wandb": "offline"}, {}, None),
        ("sagemaker", {"mlflow": ARN}, {}, "CT218"),
        ("slurm", {"mlflow": "azureml://x/y"}, {"environment": {}, "resources": {}}, "CT218"),
        ("sagemaker", {"mlflow": "http://localhost:5000"}, {}, "CT218"),
        ("sagemaker", {"mlflow": "http://127.0.0.1"}, {}, "CT218"),
        ("slurm", {"mlflow": "http://user:x@[::1]:5000/a"}, {"environment": {}, "resources": {}}, "CT218"),
        ("sagemaker", {"mlflow": "http://localhost.example.org"}, {}, None),
        ("sagemaker", {"mlflow": SERVER}, {}, None),
        ("local", {"mlflow": "http://localhost:5000"}, {"environment": {}, "resources": {}}, None),
    ],
)  # fmt: skip
def test_what_cannot_work_is_a_warning(
    plan: Planner, target: str, tracking: dict[str, Any], changes: dict[str, Any], code: str | None
) -> None:
    """A key that is missing, a plugin that nothing installs, and a server on another machine."""
    found = plan(target, tracking, **changes).findings
    warned = [item.code for item in found if item.path[:1] == ("tracking",)]
    assert warned == ([code] if code else [])


def test_what_heals_a_warning(plan: Planner, tmp_path: Path) -> None:
    """The key as a secret or a variable, and the plugin among the requirements."""
    (tmp_path / "requirements.txt").write_text("SageMaker_MLflow==0.5.0\n")
    environment = JOB["environment"] | {
        "requirements": "requirements.txt",
        "secrets": {"WANDB_API_KEY": {"sagemaker": "secretsmanager:wandb"}},
    }
    found = plan("sagemaker", {"mlflow": ARN, "wandb": "online"}, environment=environment).findings
    assert not [item for item in found if item.path[:1] == ("tracking",)]


def test_without_network_nothing_is_reached(plan: Planner, tmp_path: Path) -> None:
    """SageMaker's network isolation leaves files alone."""
    (tmp_path / "cloudtrain.toml").write_text(
        SETTINGS.replace("[azureml]", "network_isolation = true\n[azureml]")
    )
    made = plan("sagemaker", {"mlflow": SERVER, "wandb": "online", "tensorboard": True})
    found = {(item.code, item.path) for item in made.findings}
    assert ("SM703", ("tracking", "mlflow")) in found
    assert ("SM703", ("tracking", "wandb")) in found
    quiet = plan("sagemaker", {"wandb": "offline", "tensorboard": True}).findings
    assert not [item for item in quiet if item.path[:1] == ("tracking",)]
