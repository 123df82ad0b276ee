"""Calls as users write them, checked by mypy (not run), with pydantic's plugin and without.

Each `type: ignore` is a mistake that mypy must find; with `warn_unused_ignores` an unneeded one is an error.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cloudtrain as ct

job = ct.TrainingJob(
    name="a",
    entry_point="train.py",
    hyperparameters={"epochs": 10, "layers": [1, 2], "name": None},
    distribution=ct.Torch(processes_per_instance=8),
    resources=ct.Resources(
        instance_count=2,
        instance_type={"sagemaker": "ml.p4d.24xlarge", "azureml": "Standard_ND96asr_v4"},
        volume_size="200g",
        shm_size=2**36,
    ),
    environment=ct.Environment(
        framework="pytorch", version="2.8", azureml="azureml:mine:1", image="mine:1"
    ),
    inputs={
        "train": ct.Input(sagemaker="s3://bucket/cifar", local="data"),
        "rate": ct.Input(value=0.1),
    },
    outputs={"plots": ct.Output(mode="upload")},
    checkpoint=ct.Checkpoint(local="checkpoints", keep=2),
    spot=ct.Spot(max_wait="6h"),
    max_runtime="2h",
    sagemaker_overrides={"RetryStrategy": {"MaximumRetryAttempts": 2}},
    another_overrides={"a": [1, 2]},
)

as_data = ct.TrainingJob(
    name="a",
    entry_point="train.py",
    distribution={"type": "torch"},
    resources={
        "instance_count": 2,
        "instance_groups": [{"name": "a", "instance_type": "b", "instance_count": 1}],
    },
    environment={"framework": "pytorch"},
    inputs={"train": {"local": "data"}, "test": ct.Input(local="test")},
    checkpoint={"local": "checkpoints"},
    spot={},
    max_runtime=7200,
)

with_paths = ct.TrainingJob(
    name="a",
    source_dir=Path("src"),
    entry_point=Path("train.py"),
    environment=ct.Environment(requirements=Path("requirements.txt")),
    inputs={"train": ct.Input(local=Path("data"))},
    outputs={"plots": ct.Output(local=Path("plots"))},
    checkpoint=ct.Checkpoint(local=Path("checkpoints")),
)

rates: dict[str, float] = {"learning_rate": 0.1}
places: dict[str, ct.Input] = {"train": ct.Input(local="data")}
sizes: dict[str, str] = {"sagemaker": "ml.g5.xlarge"}
with_variables = ct.TrainingJob(
    name="a",
    command="make",
    hyperparameters=rates,
    inputs=places,
    resources=ct.Resources(
        instance_type=sizes,
        instance_preferences=("ml.g5.xlarge", {"instance_type": "ml.p5.48xlarge"}),
        distribution_groups=("a",),
    ),
)
groups = ct.Resources(
    instance_groups=[ct.InstanceGroup(name="a", instance_type="ml.g5.xlarge", instance_count=2)]
)

every_distribution: list[ct.TrainingJob] = [
    job.replace(distribution=distribution)
    for distribution in (
        ct.Torch(),
        ct.SMDDP(launch="torch"),
        ct.SMP(version=2, parameters={"hybrid_shard_degree": 8}),
        ct.DeepSpeed(launch="launcher"),
        ct.MPI(options="-x A"),
        ct.Horovod(),
        ct.TensorFlow(strategy="parameter_server", parameter_servers=1),
        ct.NoDistribution(),
    )
]

processing = ct.ProcessingJob(
    name="a",
    entry_point="prepare.py",
    inputs={
        "raw": ct.Input(local="data"),
        "other": ct.ProcessingInput(local="b", path="/opt/ml/processing/b"),
    },
    outputs={"done": ct.ProcessingOutput(mode="mount")},
    max_runtime="30m",
)

sagemaker = ct.SageMaker(region="us-west-2", subnets=["subnet-1"], keep_alive="1h", max_cost=10)
azureml = ct.AzureML(
    workspace="ws",
    locations=("eastus",),
    docker_args=["--ipc=host"],
    services={"a": {"type": "ssh"}},
)
slurm = ct.Slurm(shared_dir="/fsx", setup=["module load cuda"], grace_period="2m")
local = ct.Local(launcher="fork", grace_period="1m", emulate="sagemaker")

plan: ct.Plan = ct.plan(job, "sagemaker")
checked: ct.Plan = ct.check(processing, sagemaker, online=False)
estimator: Any = plan.to_estimator()
estimator.fit(**plan.fit_arguments())
plan.to_model_trainer().train(**plan.train_arguments())
command: Any = ct.plan(job, azureml).to_command()
code: str = plan.to_python(sdk=3) + ct.plan(job, azureml).to_yaml()
levels: list[ct.Level] = [finding.level for finding in plan.findings]


def follow(job: ct.TrainingJob) -> ct.RunStatus:
    """What a program does with a run."""
    try:
        run: ct.Run = ct.submit(job, local)
    except (ct.JobError, ct.SettingsError, ct.PreflightError, ct.TargetError) as error:
        raise SystemExit(error.hint) from None
    lines: list[ct.LogLine] = list(run.logs(follow=True))
    print(
        len(lines),
        len(ct.recover()),
        [other.name for other in ct.runs(states=[ct.RunState.FAILED])],
    )
    return run.wait()


count: int = job.resources.instance_count
processes: int | None = ct.Torch().processes_per_instance
place: str | None = job.inputs["train"].of("local")
same_place: str | None = job.inputs["train"].local
runtime: int | None = job.max_runtime
longer: ct.TrainingJob = job.replace(max_runtime="4h")

ct.Resources(instance_cout=2)  # type: ignore[call-arg]
ct.Resources(volume_size=1.5)  # type: ignore[arg-type]
ct.Resources(instance_type=["ml.g5.xlarge"])  # type: ignore[arg-type]
ct.Resources(instance_preferences="ml.g5.xlarge")  # type: ignore[arg-type]
ct.Resources(interconnect="efa")  # type: ignore[arg-type]
ct.TrainingJob(entry_point="train.py")  # type: ignore[call-arg]
ct.TrainingJob(name="a", entry_point="train.py", instance_count=2)  # type: ignore[arg-type]
ct.TrainingJob(name="a", entry_point="train.py", distribution="torch")  # type: ignore[arg-type]
ct.TrainingJob(name="a", entry_point="train.py", hyperparameters={"layers": (1, 2)})  # type: ignore[dict-item]
ct.TrainingJob(name="a", entry_point="train.py", inputs={"train": "data"})  # type: ignore[dict-item]
ct.TrainingJob(name="a", entry_point="train.py", spot=True)  # type: ignore[arg-type]
ct.TrainingJob(name="a", entry_point="train.py", max_runtime=None, tags=None)  # type: ignore[arg-type]
ct.ProcessingJob(name="a", entry_point="train.py", distribution=1)  # type: ignore[arg-type]
ct.Input(local=3)  # type: ignore[arg-type]
ct.Input(local="data", mode="upload")  # type: ignore[arg-type]
ct.Spot(wait="6h")  # type: ignore[call-arg]
ct.SMP()  # type: ignore[call-arg]
ct.Torch(processes_per_instance="8")  # type: ignore[arg-type]
ct.SageMaker(regoin="us-west-2")  # type: ignore[call-arg]
ct.AzureML(locations="eastus")  # type: ignore[arg-type]
ct.Local(grace_period=1.5)  # type: ignore[arg-type]
ct.Slurm(setup="module load cuda")  # type: ignore[arg-type]
ct.TraningJob  # type: ignore[attr-defined]  # noqa: B018
plan.to_estimtor()  # type: ignore[attr-defined]
plan.fit_arguments(1)  # type: ignore[call-arg]
count = "two"  # type: ignore[assignment]
job.name = "b"  # type: ignore[misc]
text: str = job.resources.instance_count  # type: ignore[assignment]
