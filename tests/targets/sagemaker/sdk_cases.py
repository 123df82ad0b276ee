"""The jobs behind the requests of `tests/golden/sagemaker_sdk_v2`: what one writes in cloudtrain for the same thing.

Each golden file holds the SageMaker SDK's own call (`estimator_call`, sagemaker 2.257.7), and the request that it sent
or the error that it raised. Here stands, for every file, the cloudtrain job, and what should come of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import cloudtrain as ct

BUCKET = "sagemaker-us-west-2-123456789012"
HP: dict[str, Any] = {
    "epochs": 3, "lr": 0.001, "name": "resnet50", "flag": True, "none": None, "layers": [1, 2], "cfg": {"a": 1},
}  # fmt: skip
TRAIN = {"train": {"sagemaker": "s3://my-bucket/data/train", "mode": "download"}}
DLC = "763104351884.dkr.ecr.us-west-2.amazonaws.com/pytorch-training"
PT29 = f"{DLC}:2.9.0-gpu-py312-cu130-ubuntu22.04-sagemaker"
BYOC = "123456789012.dkr.ecr.us-west-2.amazonaws.com/my-image:latest"
GROUPS = [
    {"name": "gpu", "instance_type": "ml.p4d.24xlarge", "instance_count": 2},
    {"name": "cpu", "instance_type": "ml.c5.18xlarge", "instance_count": 1},
]
SMP1 = {
    "partitions": 2, "microbatches": 4, "pipeline": "interleaved", "optimize": "speed", "placement_strategy": "spread",
    "ddp": True, "auto_partition": True, "default_partition": 0,
}  # fmt: skip
SMP2 = {"tensor_parallel_degree": 8, "hybrid_shard_degree": 4}
OFFLOADING = {"sm_activation_offloading": True, "activation_loading_horizon": 2}


def on(instance_type: str, count: int = 2) -> dict[str, Any]:
    """Equal instances."""
    return {"instance_count": count, "instance_type": {"sagemaker": instance_type}}


def pytorch(version: str = "2.8.0", python: str = "3.12") -> dict[str, str]:
    return {"framework": "pytorch", "version": version, "python": python}


def image(uri: str) -> dict[str, Any]:
    return {"image": {"sagemaker": uri}}


@dataclass(frozen=True)
class Case:
    """One golden file. `fields` and `target` differ from the usual job; `lost` are paths of the request that the SDK
    gets wrong, with what is right; `codes` are the rules that stop a job which the SDK accepts."""

    golden: str
    fields: dict[str, Any]
    target: dict[str, Any] = field(default_factory=dict)
    codes: tuple[str, ...] = ()
    sdk_bug: dict[str, Any] = field(default_factory=dict)
    """Hyperparameters that the SDK writes wrong, as they are right; None for one that should not be there."""

    @property
    def job(self) -> ct.TrainingJob:
        fields = {
            "name": "golden",
            "entry_point": "train.py",
            "resources": on("ml.g5.xlarge", 1),
            "environment": pytorch(),
            "inputs": TRAIN,
            "hyperparameters": {},
        } | self.fields
        return ct.TrainingJob(**{key: value for key, value in fields.items() if value is not ...})


def pt(golden: str, **fields: Any) -> Case:
    """PyTorch with the usual hyperparameters, on two ml.g5.12xlarge."""
    extra = {key: fields.pop(key) for key in ("target", "codes", "sdk_bug") if key in fields}
    return Case(
        f"pt_{golden}", {"hyperparameters": HP, "resources": on("ml.g5.12xlarge")} | fields, **extra
    )


def plain(golden: str, **fields: Any) -> Case:
    """PyTorch without hyperparameters."""
    return pt(golden, **{"hyperparameters": {}} | fields)


def tf(golden: str, **fields: Any) -> Case:
    environment = {"framework": "tensorflow", "version": "2.19.0", "python": "3.12"}
    own = {
        "environment": environment,
        "resources": on("ml.p4d.24xlarge"),
        "hyperparameters": {"epochs": 3},
    } | fields
    extra = {key: own.pop(key) for key in ("target", "codes", "sdk_bug") if key in own}
    return Case(f"tf_{golden}", own, **extra)


def model_dir(golden: str) -> dict[str, Any]:
    """TensorFlow's `--model_dir`, which the SDK adds by itself; in cloudtrain a job says it."""
    return {"epochs": 3, "model_dir": f"s3://{BUCKET}/golden-{golden}/model"}


P4D, P5 = on("ml.p4d.24xlarge"), on("ml.p5.48xlarge")
PT22, PT113, PT241 = pytorch("2.2.0", "3.10"), pytorch("1.13.1", "3.9"), pytorch("2.4.1", "3.11")
MODEL_DIR = {"epochs": 3, "model_dir": "${{outputs.model}}"}

SAME = [
    pt("none", resources=on("ml.g5.xlarge", 1)),
    pt("torchdist", distribution={"type": "torch"}),
    pt("torchdist_p5", resources=P5, distribution={"type": "torch"}),
    plain("p6_td", resources=on("ml.p6-b200.48xlarge"), distribution={"type": "torch"}),
    plain(
        "image_uri_td",
        resources=on("ml.p5en.48xlarge"),
        environment=image(PT29),
        distribution={"type": "torch"},
    ),
    pt(
        "torchdist_trn1_111",
        resources=on("ml.trn1.32xlarge"),
        environment=pytorch("1.11.0", "3.8"),
        distribution={"type": "torch"},
    ),
    plain(
        "trn2_td",
        resources=on("ml.trn2.48xlarge"),
        environment=image(
            "763104351884.dkr.ecr.us-west-2.amazonaws.com/pytorch-training-neuronx:2.9.0-neuronx-py312-sdk2.30.0-ubuntu24.04"
        ),
        distribution={"type": "torch"},
    ),
    pt(
        "mpi",
        distribution={"type": "mpi", "processes_per_instance": 4, "options": "--NCCL_DEBUG INFO"},
    ),
    pt("mpi_bare", distribution={"type": "mpi"}),
    pt("smddp", resources=P4D, environment=PT22, distribution={"type": "smddp"}),
    pt("pytorchddp", resources=P4D, environment=PT22, distribution={"type": "smddp"}),
    pt(
        "smddp_mpiopts",
        resources=P4D,
        environment=PT22,
        distribution={"type": "smddp", "mpi_options": "-verbose -x NCCL_DEBUG=VERSION"},
    ),
    pt(
        "td_and_smddp",
        resources=P4D,
        environment=PT22,
        distribution={"type": "smddp", "launch": "torch"},
    ),
    plain(
        "smddp_251_image_uri_p4d",
        resources=P4D,
        environment=image(f"{DLC}:2.5.1-gpu-py311-cu124-ubuntu22.04-sagemaker"),
        distribution={"type": "smddp", "mpi_options": "-x FOO=1"},
    ),
    pt(
        "smp1_mpi",
        resources=P4D,
        environment=PT113,
        distribution={
            "type": "smp",
            "version": 1,
            "parameters": SMP1,
            "processes_per_instance": 8,
            "mpi_options": "-mca btl_vader_single_copy_mechanism none",
        },
    ),
    plain(
        "smp2_241_py311_p4d",
        resources=P4D,
        environment=PT241,
        distribution={"type": "smp", "version": 2, "parameters": SMP2},
    ),
    plain(
        "smp2_241_py311_p5en",
        resources=on("ml.p5en.48xlarge"),
        environment=PT241,
        distribution={"type": "smp", "version": 2, "parameters": SMP2},
    ),
    plain(
        "smp2_251_py311_p5",
        resources=P5,
        environment=pytorch("2.5.1", "3.11"),
        distribution={"type": "smp", "version": 2, "parameters": SMP2},
    ),
    pt(
        "smp2_noparams",
        resources=P5,
        environment=pytorch("2.3.1", "3.11"),
        distribution={"type": "smp", "version": 2},
    ),
    pt(
        "smp2_torchdist",
        resources=P5,
        environment=pytorch("2.3.1", "3.11"),
        distribution={"type": "smp", "version": 2, "parameters": SMP2 | OFFLOADING},
    ),
    plain(
        "hetero_mpi",
        resources={"instance_groups": GROUPS, "distribution_groups": ["gpu"]},
        distribution={"type": "mpi", "processes_per_instance": 8},
    ),
    plain("one_group_mpi", resources={"instance_groups": GROUPS[:1]}, distribution={"type": "mpi"}),
    plain(
        "hetero_smddp",
        resources={"instance_groups": GROUPS, "distribution_groups": ["gpu"]},
        environment=PT22,
        distribution={"type": "smddp"},
        sdk_bug={"sagemaker_instance_type": '"ml.p4d.24xlarge"'},
    ),
    plain(
        "hetero_td",
        resources={"instance_groups": GROUPS, "distribution_groups": ["gpu"]},
        distribution={"type": "torch"},
        sdk_bug={"sagemaker_distribution_instance_groups": '["gpu"]'},
    ),
    plain("hetero_plain", resources={"instance_groups": GROUPS}),
    plain(
        "warm_pool",
        resources=on("ml.g5.xlarge", 1),
        max_runtime="1h",
        target={"keep_alive": "30m"},
    ),
    plain("name_collision_long", resources=on("ml.g5.xlarge", 1)),
    pt("sh_plain", entry_point="train.sh"),
    plain(
        "full_lifecycle",
        resources=P4D | {"volume_size": "200g"},
        hyperparameters={"epochs": 3},
        distribution={"type": "torch"},
        environment=pytorch() | {"variables": {"FOO": "bar", "NCCL_DEBUG": "INFO"}},
        spot={"max_wait": "2h"},
        max_runtime="1h",
        checkpoint={"sagemaker": "s3://my-bucket/ckpt"},
        tags={"team": "ml"},
        metrics={"loss": "loss=([0-9.]+)"},
        target={
            "max_retries": 3,
            "subnets": ["subnet-0123"],
            "security_group_ids": ["sg-0123"],
            "encrypt_inter_container_traffic": True,
            "network_isolation": True,
            "volume_kms_key": "arn:aws:kms:us-west-2:123456789012:key/vol",
            "output": "s3://my-bucket/out",
            "output_kms_key": "arn:aws:kms:us-west-2:123456789012:key/out",
            "remote_debug": True,
            "compress_output": False,
            "training_plan": "arn:aws:sagemaker:us-west-2:123456789012:training-plan/tp1",
        },
    ),
    pt(
        "inputs_rich",
        distribution={"type": "torch"},
        inputs={
            "train": {
                "sagemaker": "s3://my-bucket/train",
                "shard": True,
                "content_type": "application/x-recordio",
            },
            "fsx": {"sagemaker": "fsx://fs-0123456789abcdef0/abc/data"},
        },
    ),
    Case(
        "hf_torchdist",
        {
            "resources": P4D,
            "environment": {
                "framework": "huggingface",
                "version": "4.56.2",
                "base": "pytorch2.8.0",
                "python": "3.12",
            },
            "distribution": {"type": "torch"},
        },
    ),
    tf("none", resources=on("ml.g5.xlarge"), hyperparameters=model_dir("tf-none")),
    tf("model_dir_false", resources=on("ml.g5.xlarge")),
    tf("mwms", hyperparameters=model_dir("tf-mwms"), distribution={"type": "tensorflow"}),
    tf(
        "ps",
        resources=on("ml.g5.xlarge"),
        hyperparameters=model_dir("tf-ps"),
        distribution={"type": "tensorflow", "strategy": "parameter_server"},
    ),
    tf(
        "ps_p4d",
        hyperparameters=model_dir("tf-ps-p4d"),
        distribution={"type": "tensorflow", "strategy": "parameter_server"},
    ),
    tf(
        "mpi",
        hyperparameters=MODEL_DIR,
        distribution={
            "type": "horovod",
            "processes_per_instance": 8,
            "options": "-x HOROVOD_TIMELINE",
        },
    ),
    tf(
        "smddp",
        hyperparameters=model_dir("tf-smddp"),
        environment={"framework": "tensorflow", "version": "2.11.0", "python": "3.9"},
        distribution={"type": "smddp"},
    ),
    tf(
        "smp1",
        hyperparameters=MODEL_DIR,
        environment={"framework": "tensorflow", "version": "2.6.3", "python": "3.8"},
        distribution={
            "type": "smp",
            "version": 1,
            "parameters": {"partitions": 2, "microbatches": 2},
            "processes_per_instance": 8,
        },
    ),
    Case(
        "est_byoc_plain",
        {
            "entry_point": ...,
            "resources": on("ml.m5.xlarge", 1),
            "environment": image(BYOC),
            "hyperparameters": {"epochs": 3, "lr": 0.1, "flag": True, "name": "x", "l": [1]},
        },
    ),
    Case(
        "est_byoc_script",
        {
            "resources": on("ml.m5.xlarge", 1),
            "environment": image(BYOC),
            "hyperparameters": {"epochs": 3, "name": "x", "l": [1], "flag": True},
        },
    ),
    Case(
        "est_container_entry",
        {
            "entry_point": ...,
            "resources": on("ml.m5.xlarge", 1),
            "environment": image(BYOC),
            "sagemaker_overrides": {
                "AlgorithmSpecification": {
                    "ContainerEntrypoint": ["bash", "-c"],
                    "ContainerArguments": ["python x.py"],
                }
            },
        },
    ),
]
"""Jobs that the SDK builds, and that make sense: the same request."""


def nonsense(case: Case, *codes: str) -> Case:
    """The same case, with the rules that must stop it."""
    return Case(case.golden, case.fields, case.target, codes, case.sdk_bug)


SPOT = {"resources": on("ml.g5.xlarge", 1), "checkpoint": {"sagemaker": "s3://my-bucket/ckpt"}}
HOUR_SPOT = {"resources": on("ml.g5.xlarge", 1), "max_runtime": "1h"}

STOPPED = [
    nonsense(pt("no_such_instance", resources=on("ml.zz9.xlarge", 1)), "SM201"),
    nonsense(pt("no_such_instance_g", resources=on("ml.g99.xlarge", 1)), "SM201"),
    nonsense(
        plain(
            "image_uri_smddp",
            resources=P4D,
            environment=image(PT29),
            distribution={"type": "smddp"},
        ),
        "SM301",
    ),
    nonsense(
        pt(
            "smddp_g5",
            resources=on("ml.g5.12xlarge"),
            environment=PT22,
            distribution={"type": "smddp"},
        ),
        "SM302",
    ),
    nonsense(
        pt(
            "pytorchddp_opts",
            resources=on("ml.g5.12xlarge"),
            environment=PT22,
            distribution={"type": "smddp", "mpi_options": "-verbose"},
        ),
        "SM302",
    ),
    nonsense(
        plain(
            "smddp_p5en",
            resources=on("ml.p5en.48xlarge"),
            environment=PT22,
            distribution={"type": "smddp"},
        ),
        "SM302",
    ),
    nonsense(
        plain(
            "smddp_p5_torchdist",
            resources=P5,
            environment=PT22,
            distribution={"type": "smddp", "launch": "torch"},
        ),
        "SM302",
    ),
    nonsense(
        pt("ps", distribution={"type": "tensorflow", "strategy": "parameter_server"}), "SM303"
    ),
    nonsense(
        pt(
            "ps_p3",
            resources=P4D,
            distribution={"type": "tensorflow", "strategy": "parameter_server"},
        ),
        "SM303",
    ),
    nonsense(
        pt(
            "smp2_torchdist_pt28_py311",
            resources=P5,
            environment=pytorch("2.8.0", "3.11"),
            distribution={"type": "smp", "version": 2, "parameters": SMP2 | OFFLOADING},
        ),
        "SM305",
    ),
    nonsense(plain("spot_no_wait_err", resources=on("ml.g5.xlarge", 1), spot={}), "SM401"),
    nonsense(plain("spot_wait_lt_run", **HOUR_SPOT, spot={"max_wait": "10m"}), "CT402"),
    nonsense(
        plain("spot_and_warm", **HOUR_SPOT, spot={"max_wait": "1h"}, target={"keep_alive": "10m"}),
        "SM402",
    ),
]
"""Jobs that the SDK sends as they are, and that fail or waste money: the same request, and a rule that stops it."""

STOPPED_OTHERWISE = {
    "tf_torchdist": tf("torchdist", distribution={"type": "torch"}),
    "est_distribution_ignored": Case(
        "est_distribution_ignored",
        {"resources": P4D, "environment": image(BYOC), "distribution": {"type": "torch"}},
    ),
}
"""The SDK drops the distribution without a word. Ours writes it, and SM303 says that the toolkit ignores it."""

UNSAYABLE = {
    "pt_bad_job_name": {"name": "bad_name_underscore"},
    "pt_unknown_key": {"distribution": {"type": "torch_distribtued"}},
    "pt_td_and_mpi": {"distribution": {"type": "torch", "mpi": True}},
    "pt_smp1_no_mpi": {"distribution": {"type": "smp", "version": 1, "mpi": False}},
    "pt_smddp_disabled": {"distribution": {"type": "smddp", "enabled": False}},
}
"""What the SDK accepts and a cloudtrain job cannot even say: the model refuses it."""
