"""For every SageMaker rule a job that breaks it, the nearest one that does not, and a part of the hint."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import cloudtrain as ct
from cloudtrain.machines.overlay import read_overlay
from cloudtrain.targets.sagemaker.settings import SageMakerAccount
from tests.hints import suggested

DLC = "763104351884.dkr.ecr.us-west-2.amazonaws.com"
BYOC = "123456789012.dkr.ecr.us-west-2.amazonaws.com/mine:1"
ROLE = "arn:aws:iam::123456789012:role/SageMakerRole"
KEY = "arn:aws:kms:us-west-2:123456789012:key/1234abcd-12ab-34cd-56ef-1234567890ab"
PLAN = "arn:aws:sagemaker:us-west-2:123456789012:training-plan/plan-1"

ACCOUNT = SageMakerAccount("us-west-2", ROLE, "my-bucket")
SECRET = {"framework": "pytorch", "version": "2.8", "secrets": {"HF_TOKEN": "secretsmanager:hf"}}
FILES = {"train.py": "", "train.sh": ""}
WITH_REQUIREMENTS = {**FILES, "requirements.txt": "numpy\n"}


@dataclass(frozen=True)
class Case:
    """A job, its target, its account and its files; small defaults: one ml.g5.xlarge and the newest PyTorch image."""

    job: dict[str, Any] = field(default_factory=dict)
    target: dict[str, Any] = field(default_factory=dict)
    account: SageMakerAccount = ACCOUNT
    files: dict[str, str] = field(default_factory=lambda: FILES)

    @property
    def training_job(self) -> ct.TrainingJob:
        fields = {
            "name": "job",
            "entry_point": "train.py",
            "resources": on("ml.g5.xlarge"),
        } | self.job
        return ct.TrainingJob(**{key: value for key, value in fields.items() if value is not None})


def on(instance_type: str, count: int = 1, **more: Any) -> dict[str, Any]:
    """Equal instances."""
    return {"instance_type": {"sagemaker": instance_type}, "instance_count": count} | more


def job(**fields: Any) -> Case:
    return Case(fields)


def toolkit(**fields: Any) -> Case:
    """The same, started by the image's own toolkit."""
    return Case(fields, {"launch": "toolkit"})


def entrypoint(**fields: Any) -> Case:
    """The same, started by cloudtrain's own launcher."""
    return Case(fields, {"launch": "entrypoint"})


def settings(**fields: Any) -> Case:
    """A small job with settings of the target."""
    return Case({}, fields)


def account(
    region: str = "us-west-2", role: str = ROLE, bucket: str = "my-bucket", **more: Any
) -> SageMakerAccount:
    return SageMakerAccount(region, role, bucket, **more)


def overrides(**fields: Any) -> Case:
    return Case({"sagemaker_overrides": fields})


def image(uri: str) -> dict[str, Any]:
    return {"image": {"sagemaker": uri}}


def pytorch(version: str) -> dict[str, str]:
    return {"framework": "pytorch", "version": version}


def hugging_face(version: str) -> dict[str, str]:
    return {"framework": "huggingface", "version": version}


def tensorflow(version: str = "2.19.0") -> dict[str, str]:
    return {"framework": "tensorflow", "version": version}


def reads(**item: Any) -> dict[str, Any]:
    """One input called `train`."""
    return {"train": {"sagemaker": "s3://my-bucket/train"} | item}


def groups(*spans: str, cpu: str = "ml.c5.18xlarge", **more: Any) -> dict[str, Any]:
    """Two groups: two machines with eight A100, and one other."""
    return {
        "instance_groups": [
            {"name": "gpu", "instance_type": "ml.p4d.24xlarge", "instance_count": 2},
            {"name": "other", "instance_type": cpu, "instance_count": 1},
        ],
        "distribution_groups": list(spans),
    } | more


def grouped(*named: list[str]) -> dict[str, Any]:
    """Inputs of the job, each with the groups that receive it."""
    return {
        f"part{number}": {"sagemaker": "s3://b-bucket/x/", "instance_groups": groups}
        for number, groups in enumerate(named)
    }


def retired(name: str) -> SageMakerAccount:
    """An account whose owner has written into `instances.toml` that a type is retired."""
    return account(
        overlay=read_overlay({"sagemaker": {name: {"retired": "2027-01-01"}}}, "instances.toml")
    )


TORCH, MPI, NONE = {"type": "torch"}, {"type": "mpi"}, {"type": "none"}
SMDDP, SMP1, SMP2 = {"type": "smddp"}, {"type": "smp", "version": 1}, {"type": "smp", "version": 2}
PS = {"type": "tensorflow", "strategy": "parameter_server"}
WORKERS = {"type": "tensorflow", "strategy": "multi_worker_mirrored"}
P4D, P5EN, G5 = on("ml.p4d.24xlarge", 2), on("ml.p5en.48xlarge", 2), on("ml.g5.12xlarge")
CPU, TRN = on("ml.m5.xlarge"), on("ml.trn1.32xlarge")
SPOT = {"spot": {"max_wait": "2h"}, "max_runtime": "1h"}

ACCOUNT_CASES: dict[str, tuple[Case, Case, str]] = {
    "SM101": (
        Case(account=account(missing=("role",))), Case(), 'role = "arn:aws:iam::ACCOUNT:role/NAME"` under `[sagemaker]`',
    ),
    "SM102": (Case(account=account(role="MyRole")), Case(), "arn:aws:iam::ACCOUNT:role/MyRole"),
    "SM103": (
        Case(account=account(region="us-gov-west-1")),
        Case(account=account(region="us-gov-west-1", role=ROLE.replace("arn:aws:", "arn:aws-us-gov:"))),
        "`arn:aws-us-gov:iam::`",
    ),
    "SM104": (
        Case({"environment": image(BYOC)}, account=account(region="us-west-2a")),
        Case({"environment": image(BYOC)}, account=account(region="us-west-2")),
        'region = "us-west-2"',
    ),
    "SM105": (
        Case(account=account(bucket="s3://my-bucket/runs")), Case(), '`bucket = "my-bucket"` and `prefix = "runs"`',
    ),
    "SM106": (
        settings(output_kms_key=KEY.replace("us-west-2", "eu-west-1")), settings(output_kms_key=KEY), KEY,
    ),
    "SM107": (
        job(environment=image(BYOC.replace("us-west-2", "eu-west-1"))), job(environment=image(BYOC)), "`us-west-2`",
    ),
    "SM110": (overrides(RetryStrategy={"MaximumRetryAttempts": 31}), overrides(RetryStrategy={"MaximumRetryAttempts": 30}), ""),
    "SM111": (
        overrides(TrainingJobName="mine"), overrides(ExperimentConfig={"ExperimentName": "mine"}), "remove `TrainingJobName`",
    ),
    "SM112": (job(tags={"aws:team": "x"}), job(tags={"awsteam": "x"}), "write `team`"),
    "SM113": (job(resources=on("ml.g5.xlarge") | {"shm_size": "8g"}), job(), "workers"),
}  # fmt: skip

MACHINE_CASES: dict[str, tuple[Case, Case, str]] = {
    "SM201": (
        job(resources=on("ml.g5.12xlrge"), environment=pytorch("2.8")), job(resources=G5), suggested("ml.g5.12xlarge"),
    ),
    "SM202": (
        job(resources=on("g5.xlarge"), environment=image(BYOC)), job(resources=on("ml.g5.xlarge")), "write `ml.g5.xlarge`",
    ),
    "SM203": (
        Case(account=retired("ml.g5.xlarge")), Case(account=retired("ml.g4dn.xlarge")), "use for example `ml.g5.2xlarge` (1 x A10G-24GB",
    ),
    "SM204": (
        job(resources=on("ml.g5.xlarge", 4), distribution=TORCH),
        job(resources=on("ml.g5.8xlarge", 4), distribution=TORCH),
        "use one `ml.g5.12xlarge` (4 x A10G-24GB",
    ),
    "SM205": (
        job(resources=on("ml.g5.xlarge", gpus_per_instance=8)),
        job(resources=on("ml.g5.xlarge", gpus_per_instance=1)),
        "set `gpus_per_instance` to 1",
    ),
    "SM206": (
        toolkit(resources=P5EN, distribution=TORCH, environment=pytorch("2.5")),
        toolkit(
            resources=P5EN,
            distribution=TORCH,
            environment=pytorch("2.5") | {"variables": {"FI_PROVIDER": "efa", "FI_EFA_USE_DEVICE_RDMA": "1"}},
        ),
        'FI_PROVIDER: "efa", FI_EFA_USE_DEVICE_RDMA: "1"',
    ),
    "SM207": (
        job(resources=on("ml.g5.xlarge", volume_size="500g")), job(resources=on("ml.g5.xlarge", volume_size="200g")), "mode: mount",
    ),
    "SM208": (
        Case({}, {"volume_kms_key": KEY}), Case({"resources": CPU}, {"volume_kms_key": KEY}), "remove `volume_kms_key`",
    ),
    "SM211": (
        job(resources={"instance_groups": [{"name": "a", "instance_type": "ml.m5.xlarge", "instance_count": 1}] * 2}),
        job(resources=groups()),
        "call one `a-2`",
    ),
    "SM212": (
        job(resources=groups("gpus"), distribution=MPI), job(resources=groups("gpu"), distribution=MPI), suggested("gpu"),
    ),
    "SM213": (
        job(resources=groups(), distribution=TORCH), job(resources=groups("gpu"), distribution=TORCH),
        "distribution_groups: [gpu]",
    ),
    "SM214": (
        job(resources=groups(cpu="ml.g5.12xlarge"), distribution=TORCH),
        job(resources=groups(cpu="ml.p4d.24xlarge"), distribution=TORCH),
        "distribution_groups: [gpu]",
    ),
    "SM215": (
        job(resources=groups(cpu="ml.p4d.24xlarge"), distribution=SMDDP, environment=pytorch("2.2.0")),
        job(resources=groups("gpu", cpu="ml.p4d.24xlarge"), distribution=SMDDP, environment=pytorch("2.2.0")),
        "distribution_groups: [gpu]",
    ),
    "SM216": (
        job(resources={"instance_preferences": ["ml.g5.xlarge", "ml.g5.xlarge"]}),
        job(resources={"instance_preferences": ["ml.g5.xlarge", "ml.g5.2xlarge"]}),
        "remove one",
    ),
    "SM217": (
        job(resources={"instance_preferences": ["ml.g5.xlarge", "ml.m5.xlarge"]}),
        job(resources={"instance_preferences": ["ml.g5.xlarge", "ml.p3.2xlarge"]}),
        "remove `ml.m5.xlarge`",
    ),
    "SM218": (
        job(resources={"instance_preferences": ["ml.g5.xlarge"]}, **SPOT), job(resources={"instance_preferences": ["ml.g5.xlarge"]}),
        "remove `spot`",
    ),
    "SM219": (
        job(resources=groups("gpu"), distribution=MPI, inputs=grouped(["gpu"], [])),
        job(resources=groups("gpu"), distribution=MPI, inputs=grouped(["gpu"], ["other"])),
        "instance_groups: [gpu, other]",
    ),
    "SM220": (
        job(resources=groups(), sagemaker_overrides={"ResourceConfig": {"InstanceType": "ml.p4d.24xlarge"}}),
        job(resources=groups(), sagemaker_overrides={"ResourceConfig": {"VolumeSizeInGB": 50}}),
        "write the machines under `resources` alone",
    ),
    "SM524": (
        Case({"resources": {"instance_preferences": [{"instance_type": "ml.p5.48xlarge", "training_plan": PLAN}]}}, {"training_plan": PLAN}),
        job(resources={"instance_preferences": [{"instance_type": "ml.p5.48xlarge", "training_plan": PLAN}]}),
        "remove `training_plan`",
    ),
}  # fmt: skip

IMAGE_CASES: dict[str, tuple[Case, Case, str]] = {
    "SM301": (
        job(resources=P4D, distribution=SMDDP, environment=pytorch("2.6")),
        job(resources=P4D, distribution=SMDDP, environment=pytorch("2.5")),
        "type: torch",
    ),
    "SM302": (
        job(resources=on("ml.g5.48xlarge", 2), distribution=SMDDP, environment=pytorch("2.2.0")),
        job(resources=P4D, distribution=SMDDP, environment=pytorch("2.2.0")),
        "`ml.p4d.24xlarge` or `ml.p4de.24xlarge`",
    ),
    "SM303": (
        toolkit(resources=P4D, distribution=TORCH, environment=image(BYOC)),
        toolkit(
            resources=P4D,
            distribution=TORCH,
            environment=image(BYOC)
            | {"variables": {"SAGEMAKER_TRAINING_MODULE": "sagemaker_pytorch_container.training:main"}},
        ),
        'launch = "entrypoint"',
    ),
    "SM304": (
        job(resources=P4D, distribution=SMP1, environment=pytorch("2.1")),
        job(resources=P4D, distribution=SMP1, environment=pytorch("2.0.0")),
        "`2.0.0`",
    ),
    "SM305": (
        job(resources=P5EN, distribution=SMP2, environment=pytorch("2.8.0")),
        job(resources=P5EN, distribution=SMP2, environment=pytorch("2.5.1")),
        "name a version that exists",
    ),
    "SM306": (
        job(environment=image(f"{DLC}/pytorch-training:2.8.0-cpu-py312")),
        job(environment=image(f"{DLC}/pytorch-training:2.8.0-gpu-py312")),
        "an image for GPUs",
    ),
    "SM307": (
        job(resources=CPU, environment=image(f"{DLC}/pytorch-training:2.8.0-gpu-py312")),
        job(resources=CPU, environment=image(f"{DLC}/pytorch-training:2.8.0-cpu-py312")),
        "write `environment: {framework: pytorch}` instead of `image`",
    ),
    "SM308": (
        job(resources=on("ml.p6e-gb200.36xlarge")), job(resources=on("ml.p6-b200.48xlarge")), "built for it",
    ),
    "SM309": (job(environment=pytorch("2.9")), job(environment=pytorch("2.14")), 'version: "2.1'),
    "SM314": (job(environment=hugging_face("5.13")), job(environment=hugging_face("5.3")), 'use `version: "5.3.0"`'),
    "SM310": (toolkit(environment=image(BYOC)), job(environment=image(BYOC)), "install sagemaker-training"),
    "SM311": (
        job(resources=G5, distribution={"type": "horovod"}, environment=pytorch("2.0.0")),
        job(resources=G5, distribution={"type": "horovod"}, environment=pytorch("1.13.1")),
        "requirements file",
    ),
    "SM312": (
        entrypoint(distribution=TORCH, environment=image(f"{DLC}/tensorflow-training:2.19.0-gpu-py312")),
        entrypoint(distribution=TORCH, environment=image(f"{DLC}/pytorch-training:2.8.0-gpu-py312")),
        "framework: pytorch",
    ),
    "SM313": (
        job(resources=G5, distribution=TORCH, environment=image(BYOC.replace("mine", "mine/torch-cpu"))),
        job(resources=G5, distribution=TORCH, environment=image(BYOC.replace("mine", "mine/torch-cpu-gpu"))),
        "an image for GPUs",
    ),
}  # fmt: skip

DISTRIBUTION_CASES: dict[str, tuple[Case, Case, str]] = {
    "SM321": (
        toolkit(resources=G5, distribution=TORCH, environment=pytorch("1.12.1")),
        toolkit(resources=G5, distribution=TORCH, environment=pytorch("1.13.1")),
        "`1.13.1` or newer",
    ),
    "SM322": (
        toolkit(resources=on("ml.g5.xlarge", 2), distribution=WORKERS, environment=tensorflow("2.8.0")),
        toolkit(resources=on("ml.g5.xlarge", 2), distribution=WORKERS, environment=tensorflow("2.9.2")),
        "`2.9` or newer",
    ),
    "SM323": (job(resources=TRN, distribution=MPI), job(resources=TRN, distribution=TORCH), "type: torch"),
    "SM324": (
        toolkit(resources=on("ml.g5.xlarge", 3), distribution=PS | {"parameter_servers": 1}, environment=tensorflow()),
        toolkit(resources=on("ml.g5.xlarge", 3), distribution=PS | {"parameter_servers": 3}, environment=tensorflow()),
        "remove `parameter_servers`",
    ),
    "SM325": (
        toolkit(resources=on("ml.g5.xlarge", 1), distribution=PS, environment=tensorflow()),
        toolkit(resources=on("ml.g5.xlarge", 2), distribution=PS, environment=tensorflow()),
        "`instance_count` to 2",
    ),
    "SM326": (job(resources=CPU, distribution=TORCH), job(distribution=TORCH), "--ignore SM326"),
    "SM327": (
        job(resources=P5EN, distribution=SMP2 | {"parameters": {"hybrid_shard_degree": 2}}, environment=pytorch("2.5.1")),
        job(resources=P5EN, distribution=SMP2, environment=pytorch("2.5.1")),
        "parse_known_args",
    ),
    "SM328": (
        entrypoint(resources=on("ml.g5.xlarge", 3), distribution=WORKERS | {"workers": 2}, environment=tensorflow()),
        entrypoint(resources=on("ml.g5.xlarge", 3), distribution=WORKERS | {"workers": 3}, environment=tensorflow()),
        "`resources.instance_count` to 2",
    ),
    "SM329": (
        job(resources=P4D, distribution=SMP1 | {"parameters": {"partitions": 6}}, environment=pytorch("2.0.0")),
        job(resources=P4D, distribution=SMP1 | {"parameters": {"partitions": 16}}, environment=pytorch("2.0.0")),
        "`distribution.parameters.partitions` to 4",
    ),
    "SM330": (
        job(resources=P4D, distribution=SMP1 | {"parameters": {"microbatches": 8}}, hyperparameters={"batch-size": 4},
            environment=pytorch("2.0.0")),
        job(resources=P4D, distribution=SMP1 | {"parameters": {"microbatches": 4}}, hyperparameters={"batch-size": 4},
            environment=pytorch("2.0.0")),
        "`distribution.parameters.microbatches` to 4",
    ),
    "SM335": (
        Case({"resources": P4D, "distribution": SMP1 | {"parameters": {"fp16": True}}, "environment": pytorch("2.0.0")},
             files={"train.py": "import smdistributed.modelparallel.torch as smp\nsmp.init()\n"}),
        Case({"resources": P4D, "distribution": SMP1 | {"parameters": {"fp16": True}}, "environment": pytorch("2.0.0")},
             files={"train.py": "import smdistributed.modelparallel.torch as smp\nsmp.init()\n"
                                "optimizer = smp.DistributedOptimizer(None)\n"}),
        "remove `fp16`",
    ),
    "SM331": (job(resources=P4D), job(resources=P4D, distribution=TORCH), "type: torch"),
    "SM332": (
        job(resources=G5, distribution=TORCH | {"processes_per_instance": 5}),
        job(resources=G5, distribution=TORCH | {"processes_per_instance": 4}),
        "`distribution.processes_per_instance` to 4",
    ),
    "SM333": (
        job(resources=G5, distribution=MPI | {"processes_per_instance": 5}),
        job(resources=G5, distribution=MPI | {"processes_per_instance": 4}),
        "`distribution.processes_per_instance` to 4",
    ),
    "SM334": (job(distribution=MPI), job(resources=G5, distribution=MPI), "more GPUs"),
    "SM520": (
        Case({"environment": SECRET}, {"network_isolation": True}),
        job(environment=SECRET),
        "remove `network_isolation`",
    ),
    "SM521": (toolkit(environment=SECRET), entrypoint(environment=SECRET), "runtime.load_secrets()"),
    "SM341": (
        toolkit(entry_point="train.sh", distribution=TORCH),
        Case({"entry_point": "train.sh", "distribution": TORCH}, {"launch": "entrypoint"}),
        "Python script",
    ),
    "SM342": (
        Case({"distribution": TORCH}, {"launch": "toolkit"}, files={**FILES, "setup.py": ""}),
        Case({"distribution": TORCH}, {"launch": "toolkit"}, files={**FILES, "lib/setup.py": ""}),
        "`/setup.py`",
    ),
    "SM343": (
        Case({"entry_point": "my train.py"}, {"launch": "toolkit"}, files={"my train.py": ""}),
        Case({"entry_point": "my-train.py"}, {"launch": "toolkit"}, files={"my-train.py": ""}),
        "`my_train.py`",
    ),
    "SM344": (
        Case({}, {"launch": "entrypoint"}, files=WITH_REQUIREMENTS),
        Case({"environment": {"requirements": "requirements.txt"}}, {"launch": "entrypoint"}, files=WITH_REQUIREMENTS),
        "requirements: requirements.txt",
    ),
    "SM345": (
        Case({}, {"launch": "toolkit"}, files=WITH_REQUIREMENTS),
        Case({"environment": {"requirements": "requirements.txt"}}, {"launch": "toolkit"}, files=WITH_REQUIREMENTS),
        "requirements: requirements.txt",
    ),
    "SM347": (
        Case({}, {"launch": "toolkit"}, files={**FILES, "requirements.txt": "numpy\nnumpy=1\n"}),
        Case({}, {"launch": "toolkit"}, files=WITH_REQUIREMENTS),
        "write one package a line",
    ),
    "SM346": (
        Case({}, {"launch": "entrypoint"}, files={**FILES, "setup.py": ""}),
        Case({}, {"launch": "toolkit"}, files={**FILES, "setup.py": ""}),
        "requirements: requirements.txt",
    ),
}  # fmt: skip

TIME_CASES: dict[str, tuple[Case, Case, str]] = {
    "SM401": (job(spot={}, max_runtime="1h"), job(**SPOT), "max_wait: 2h"),
    "SM402": (Case(SPOT, {"keep_alive": "10m"}), Case({}, {"keep_alive": "10m"}), "remove `spot`"),
    "SM403": (job(spot={"max_wait": "6h"}), job(spot={"max_wait": "6h"}, max_runtime="6h"), "at most `6h`"),
    "SM404": (
        Case({"resources": groups()}, {"keep_alive": "10m"}), Case({"resources": P4D}, {"keep_alive": "10m"}), "remove `keep_alive`",
    ),
    "SM405": (Case(SPOT, {"training_plan": PLAN}), Case({}, {"training_plan": PLAN}), "remove `spot`"),
    "SM406": (job(max_runtime="29d"), job(max_runtime="28d"), "at most `28d`"),
    "SM407": (settings(keep_alive="61m"), settings(keep_alive="60m"), 'keep_alive = "1h"'),
    "SM408": (
        Case({"resources": CPU}, {"max_pending": "1h"}), Case({}, {"max_pending": "1h"}), "with GPUs",
    ),
    "SM411": (job(resources=P4D), job(resources=P4D, max_runtime="1d"), "max_runtime: 4h"),
    "SM412": (
        Case({"max_runtime": "10h"}, {"max_cost": 14.0}), Case({"max_runtime": "10h"}, {"max_cost": 14.1}), "raise `max_cost`",
    ),
    "SM413": (
        Case({"resources": on("ml.p5e.48xlarge"), "max_runtime": "1h"}, {"max_cost": 1000}),
        Case({"resources": on("ml.p5.48xlarge"), "max_runtime": "1h"}, {"max_cost": 1000}),
        '[sagemaker."ml.p5e.48xlarge"]',
    ),
    "SM414": (settings(keep_alive="30m"), settings(), "keep_alive"),
    "SM415": (
        Case({"resources": on("ml.c5.xlarge", volume_size="16t"), "max_runtime": "1h"}, {"max_cost": 10}),
        Case({"resources": on("ml.c5.xlarge", volume_size="16t"), "max_runtime": "1h"}), "mode: mount",
    ),
}  # fmt: skip

DATA_CASES: dict[str, tuple[Case, Case, str]] = {
    "SM501": (
        job(inputs=reads(sagemaker="s3://My-Bucket/train")), job(inputs=reads(sagemaker="s3://my-bucket/train")),
        "s3://my-bucket/train",
    ),
    "SM502": (
        Case({"inputs": {"code": {"sagemaker": "s3://my-bucket/x"}}}, {"launch": "entrypoint"}),
        Case({"inputs": {"code": {"sagemaker": "s3://my-bucket/x"}}}, {"launch": "toolkit"}),
        "something else",
    ),
    "SM503": (
        Case({"sagemaker_overrides": {"InputDataConfig": []}}, {"launch": "entrypoint"}),
        Case({"sagemaker_overrides": {"InputDataConfig": []}}, {"launch": "toolkit"}),
        "under `inputs`",
    ),
    "SM504": (job(inputs=reads(mode="pipe")), job(inputs=reads(mode="mount")), "mode: mount"),
    "SM505": (
        job(inputs=reads(compression="gzip")), job(inputs=reads(compression="gzip", mode="pipe")), "remove `compression`",
    ),
    "SM506": (
        job(inputs=reads(data_type="augmented_manifest", attribute_names=["ref"])),
        job(inputs=reads(data_type="augmented_manifest", attribute_names=["ref"], mode="pipe")),
        "mode: pipe",
    ),
    "SM507": (
        job(inputs=reads(sagemaker="fsx://fs-0123456789abcdef0/x", shard=True)),
        job(inputs=reads(sagemaker="fsx://fs-0123456789abcdef0/x")),
        "let each rank",
    ),
    "SM508": (
        Case({"inputs": reads(sagemaker="efs://fs-0123456789abcdef0/x")}),
        Case(
            {"inputs": reads(sagemaker="efs://fs-0123456789abcdef0/x")},
            {"subnets": ["subnet-1"], "security_group_ids": ["sg-1"]},
        ),
        '`security_group_ids = ["sg-',
    ),
    "SM509": (
        job(resources=P4D, inputs=reads(type="uri_file", shard=True)),
        job(resources=P4D, inputs=reads(shard=True)),
        "remove `shard`",
    ),
    "SM510": (job(inputs=reads(shard=True)), job(resources=P4D, inputs=reads(shard=True)), ""),
    "SM601": (
        toolkit(hyperparameters={"name": "two words"}), toolkit(hyperparameters={"name": "one-word"}), "source folder",
    ),
    "SM606": (
        toolkit(resources=G5, distribution=TORCH, hyperparameters={"log": 1}),
        job(resources=G5, distribution=TORCH, hyperparameters={"log": 1}),
        "call it `log_value`",
    ),
    "SM605": (
        job(resources=P4D, distribution=MPI | {"options": "-x 'A=b  c'; touch x"}),
        job(resources=P4D, distribution=MPI | {"options": "-x A=b -mca btl ^openib"}),
        "without quotes",
    ),
    "SM602": (
        job(hyperparameters={"sagemaker_program": "other.py"}), job(hyperparameters={"program": "other.py"}), "call it `program`",
    ),
    "SM603": (
        toolkit(environment={"variables": {"NCCL_DEBUG": "INFO"}}),
        Case({"environment": {"variables": {"NCCL_DEBUG": "INFO"}}}, {"launch": "entrypoint"}),
        'os.environ["NCCL_DEBUG"]',
    ),
    "SM604": (
        job(entry_point=None, environment=image(BYOC), hyperparameters={"layers": [1, 2]}),
        job(entry_point=None, environment=image(BYOC), hyperparameters={"layers": "1,2"}),
        "as text",
    ),
    "SM701": (settings(subnets=["subnet-1"]), settings(subnets=["subnet-1"], security_group_ids=["sg-1"]), "security_group_ids"),
    "SM702": (
        Case({"environment": {"requirements": "requirements.txt"}}, {"network_isolation": True}, files=WITH_REQUIREMENTS),
        Case(
            {"environment": {"requirements": "requirements.txt"}},
            {"network_isolation": True},
            files={**FILES, "requirements.txt": "--no-index --find-links wheels\nnumpy\n"},
        ),
        "--no-index",
    ),
    "SM703": (
        Case({"hyperparameters": {"data": "s3://my-bucket/x"}}, {"network_isolation": True}),
        Case({"hyperparameters": {"data": "${{inputs.train}}"}, "inputs": reads()}, {"network_isolation": True}),
        "${{inputs.NAME}}",
    ),
    "SM704": (
        Case({"resources": TRN, "distribution": TORCH}, {"profiler": True}),
        Case({"resources": P4D, "distribution": TORCH}, {"profiler": True}),
        "remove `profiler = true`",
    ),
    "SM705": (
        settings(encrypt_inter_container_traffic=True),
        Case({"resources": P4D}, {"encrypt_inter_container_traffic": True}),
        "",
    ),
}  # fmt: skip

CASES = ACCOUNT_CASES | MACHINE_CASES | IMAGE_CASES | DISTRIBUTION_CASES | TIME_CASES | DATA_CASES
