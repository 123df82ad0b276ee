"""Jobs whose requests are compared with those of version 2 of the SDK: every distribution, every option it has."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cloudtrain.job.training import TrainingJob
from cloudtrain.plans.plan import Bundle, CompileContext, Plan
from cloudtrain.targets.sagemaker.compile.training import compile_sagemaker
from cloudtrain.targets.sagemaker.settings import SageMaker, SageMakerAccount

ROLE = "arn:aws:iam::123456789012:role/SageMakerRole"
KEY = "arn:aws:kms:us-west-2:123456789012:key/0f5a"
PLAN = "arn:aws:sagemaker:us-west-2:123456789012:training-plan/tp1"
OWN_IMAGE = "123456789012.dkr.ecr.us-west-2.amazonaws.com/mine:1"


@dataclass(frozen=True)
class Case:
    """A job with the settings of its target. What is not said is as in `BASE`."""

    job: dict[str, Any] = field(default_factory=dict)
    target: dict[str, Any] = field(default_factory=dict)
    region: str = "us-west-2"


BASE: dict[str, Any] = {
    "name": "parity",
    "entry_point": "train.py",
    "hyperparameters": {"epochs": 3, "lr": 0.001},
    "environment": {"framework": "pytorch", "version": "2.8"},
    "inputs": {"train": {"sagemaker": "s3://data/train"}},
}


def plan_of(case: Case) -> Plan:
    """The compiled job."""
    account = SageMakerAccount(region=case.region, role=ROLE, bucket="my-bucket")
    context = CompileContext("parity-1a2b3c4d-1", Bundle("ab" * 32, 1000, 3), account)
    settings = {"resources": machine("ml.p4d.24xlarge", 2)} | BASE | case.job
    job = TrainingJob(**settings)
    return compile_sagemaker(job, SageMaker(**case.target), context)


def machine(name: str, count: int = 1, **more: Any) -> dict[str, Any]:
    """Resources of one instance type."""
    return {"instance_type": name, "instance_count": count, **more}


def groups(
    *distribution: str, types: tuple[str, ...] = ("ml.p4d.24xlarge", "ml.c5.18xlarge")
) -> dict[str, Any]:
    """Resources of a heterogeneous cluster; the distribution spans the groups named."""
    names = ("gpu", "cpu", "more")
    rows = [
        {"name": name, "instance_type": kind, "instance_count": 2}
        for name, kind in zip(names, types, strict=False)
    ]
    return {"instance_groups": rows} | (
        {"distribution_groups": list(distribution)} if distribution else {}
    )


def framework(name: str, version: str, **more: Any) -> dict[str, Any]:
    """The `environment` of a framework."""
    return {"environment": {"framework": name, "version": version, **more}}


TENSORFLOW = framework("tensorflow", "2.19")
TENSORFLOW_SMDDP = framework("tensorflow", "2.11")
SMDDP_IMAGE = framework("pytorch", "2.2")
SMP1_IMAGE = framework("pytorch", "1.13.1")
TRANSFORMERS = framework("huggingface", "4.56.2")
OWN = {"environment": {"image": OWN_IMAGE}}

SMP1_PARAMETERS = {
    "partitions": 4, "microbatches": 8, "pipeline": "interleaved", "optimize": "memory",
    "placement_strategy": "spread", "auto_partition": False, "default_partition": 0, "ddp": True,
    "tensor_parallel_degree": 2, "memory_weight": 0.5, "active_microbatches": 4, "ddp_dist_backend": "nccl",
    "deterministic_server": True, "load_partition": True, "partition_file": "/opt/ml/code/partition.json",
}  # fmt: skip
SMP2_PARAMETERS = {
    "hybrid_shard_degree": 4, "tensor_parallel_degree": 8, "sm_activation_offloading": True,
    "fsdp_cache_flush_warnings": True, "allow_empty_shards": True,
}  # fmt: skip

DISTRIBUTIONS = {
    "torch": Case({"distribution": {"type": "torch"}}),
    "torch_one_instance": Case(
        {"distribution": {"type": "torch"}, "resources": machine("ml.g5.12xlarge")}
    ),
    "torch_p5": Case(
        {"distribution": {"type": "torch"}, "resources": machine("ml.p5.48xlarge", 4)}
    ),
    "torch_p6": Case(
        {"distribution": {"type": "torch"}, "resources": machine("ml.p6-b200.48xlarge", 2)}
    ),
    "torch_cpu": Case(
        {"distribution": {"type": "torch"}, "resources": machine("ml.c5.9xlarge", 2)}
    ),
    "torch_count": Case({"distribution": {"type": "torch", "processes_per_instance": 4}}),
    "torch_old_python": Case(
        {"distribution": {"type": "torch"}, **framework("pytorch", "2.0.1", python="3.10")}
    ),
    "torch_version_the_sdk_lacks": Case(
        {"distribution": {"type": "torch"}, **framework("pytorch", "2.10")}
    ),
    "torch_transformers": Case({"distribution": {"type": "torch"}, **TRANSFORMERS}),
    "torch_own_image": Case({"distribution": {"type": "torch"}, **OWN}, {"launch": "toolkit"}),
    "torch_trainium": Case(
        {
            "distribution": {"type": "torch"},
            "resources": machine("ml.trn1.32xlarge", 2),
            "environment": {"framework": "pytorch"},
        }
    ),
    "smddp": Case({"distribution": {"type": "smddp"}, **SMDDP_IMAGE}),
    "smddp_options": Case(
        {"distribution": {"type": "smddp", "mpi_options": "-verbose -x FOO=1"}, **SMDDP_IMAGE}
    ),
    "smddp_under_torchrun": Case(
        {"distribution": {"type": "smddp", "launch": "torch"}, **SMDDP_IMAGE}
    ),
    "smddp_tensorflow": Case({"distribution": {"type": "smddp"}, **TENSORFLOW_SMDDP}),
    "smddp_transformers": Case(
        {"distribution": {"type": "smddp"}, **framework("huggingface", "4.17.0")}
    ),
    "smddp_image": Case(
        {
            "distribution": {"type": "smddp"},
            "environment": {
                "image": "763104351884.dkr.ecr.us-west-2.amazonaws.com/pytorch-training:2.5.1-gpu-py311-cu124-ubuntu22.04-sagemaker"
            },
        }
    ),
    "smp1": Case(
        {"distribution": {"type": "smp", "version": 1, "parameters": SMP1_PARAMETERS}, **SMP1_IMAGE}
    ),
    "smp1_options": Case(
        {
            "distribution": {
                "type": "smp",
                "version": 1,
                "parameters": {
                    "partitions": 2,
                    "microbatches": 4,
                    "pipeline": "simple",
                    "optimize": "speed",
                },
                "mpi_options": "-mca btl_vader_single_copy_mechanism none",
                "processes_per_instance": 4,
            },
            **SMP1_IMAGE,
        }
    ),
    "smp1_no_parameters": Case({"distribution": {"type": "smp", "version": 1}, **SMP1_IMAGE}),
    "smp1_tensorflow": Case(
        {
            "distribution": {"type": "smp", "version": 1, "parameters": {"partitions": 2}},
            **framework("tensorflow", "2.6.3"),
        }
    ),
    "smp1_transformers": Case(
        {
            "distribution": {"type": "smp", "version": 1, "parameters": {"partitions": 2}},
            **framework("huggingface", "4.17.0"),
        }
    ),
    "smp2": Case(
        {
            "distribution": {"type": "smp", "version": 2, "parameters": SMP2_PARAMETERS},
            **framework("pytorch", "2.5.1"),
        }
    ),
    "smp2_no_parameters": Case(
        {"distribution": {"type": "smp", "version": 2}, **framework("pytorch", "2.4.1")}
    ),
    "smp2_p5": Case(
        {
            "distribution": {"type": "smp", "version": 2, "parameters": {"hybrid_shard_degree": 8}},
            "resources": machine("ml.p5.48xlarge", 2),
            **framework("pytorch", "2.3.1"),
        }
    ),
    "smp2_count": Case(
        {
            "distribution": {"type": "smp", "version": 2, "processes_per_instance": 4},
            **framework("pytorch", "2.5.1"),
        }
    ),
    "deepspeed": Case({"distribution": {"type": "deepspeed"}}),
    "deepspeed_mpi": Case(
        {"distribution": {"type": "deepspeed", "launch": "mpi", "processes_per_instance": 8}}
    ),
    "mpi": Case({"distribution": {"type": "mpi"}}),
    "mpi_options": Case(
        {
            "distribution": {
                "type": "mpi",
                "processes_per_instance": 2,
                "options": "-x A=b --tag-output",
            }
        }
    ),
    "mpi_cpu": Case({"distribution": {"type": "mpi"}, "resources": machine("ml.c5.9xlarge", 2)}),
    "mpi_own_image": Case({"distribution": {"type": "mpi"}, **OWN}),
    "horovod": Case({"distribution": {"type": "horovod", "processes_per_instance": 8}}),
    "horovod_tensorflow": Case(
        {"distribution": {"type": "horovod", "options": "-x HOROVOD_TIMELINE"}, **TENSORFLOW}
    ),
    "horovod_transformers": Case({"distribution": {"type": "horovod"}, **TRANSFORMERS}),
    "mirrored": Case({"distribution": {"type": "tensorflow"}, **TENSORFLOW}),
    "mirrored_cpu": Case(
        {
            "distribution": {"type": "tensorflow"},
            "resources": machine("ml.c5.9xlarge", 2),
            **TENSORFLOW,
        }
    ),
    "mirrored_version_the_sdk_lacks": Case(
        {"distribution": {"type": "tensorflow"}, **framework("tensorflow", "2.21")}
    ),
    "mirrored_own_image": Case(
        {"distribution": {"type": "tensorflow"}, **OWN}, {"launch": "toolkit"}
    ),
    "servers": Case(
        {"distribution": {"type": "tensorflow", "strategy": "parameter_server"}, **TENSORFLOW}
    ),
    "servers_and_debugger": Case(
        {"distribution": {"type": "tensorflow", "strategy": "parameter_server"}, **TENSORFLOW},
        {"debugger": True},
    ),
    "none": Case(),
    "none_tensorflow": Case(TENSORFLOW),
    "none_transformers": Case(TRANSFORMERS),
    "none_cpu": Case({"resources": machine("ml.m5.xlarge")}),
    "none_own_image": Case(OWN, {"launch": "toolkit"}),
}

CLUSTERS = {
    "groups_none": Case({"resources": groups()}),
    "groups_torch": Case({"distribution": {"type": "torch"}, "resources": groups("gpu")}),
    "groups_torch_all": Case({"distribution": {"type": "torch"}, "resources": groups()}),
    "groups_torch_only_one": Case(
        {"distribution": {"type": "torch"}, "resources": groups(types=("ml.p4d.24xlarge",))}
    ),
    "groups_mpi": Case(
        {"distribution": {"type": "mpi", "processes_per_instance": 8}, "resources": groups("gpu")}
    ),
    "groups_mpi_two": Case(
        {
            "distribution": {"type": "mpi"},
            "resources": groups(
                "gpu", "more", types=("ml.p4d.24xlarge", "ml.c5.18xlarge", "ml.p4d.24xlarge")
            ),
        }
    ),
    "groups_mpi_only_one": Case(
        {"distribution": {"type": "mpi"}, "resources": groups(types=("ml.g5.12xlarge",))}
    ),
    "groups_smddp": Case(
        {"distribution": {"type": "smddp"}, "resources": groups("gpu"), **SMDDP_IMAGE}
    ),
    "groups_smp2": Case(
        {
            "distribution": {"type": "smp", "version": 2},
            "resources": groups("gpu"),
            **framework("pytorch", "2.5.1"),
        }
    ),
    "groups_mirrored": Case(
        {
            "distribution": {"type": "tensorflow"},
            "resources": groups(types=("ml.g5.xlarge",)),
            **TENSORFLOW,
        }
    ),
    "groups_inputs": Case(
        {
            "distribution": {"type": "torch"},
            "resources": groups("gpu"),
            "inputs": {
                "train": {"sagemaker": "s3://data/train", "instance_groups": ["gpu", "cpu"]}
            },
        }
    ),
    "groups_checkpoint": Case(
        {"resources": groups(), "checkpoint": {"sagemaker": "s3://data/ckpt"}}
    ),
    "groups_checkpoint_debugger": Case(
        {"resources": groups(), "checkpoint": {"sagemaker": "s3://data/ckpt"}}, {"debugger": True}
    ),
}


def _input(**more: Any) -> Case:
    return Case(
        {
            "inputs": {
                "train": {"sagemaker": "s3://data/train", **more},
                "other": {"sagemaker": "s3://data/o"},
            }
        }
    )


INPUTS = {
    "input_none": Case({"inputs": {}}),
    "input_download": _input(mode="download"),
    "input_pipe": _input(mode="pipe"),
    "input_shard": _input(shard=True),
    "input_format": _input(
        content_type="application/x-recordio", compression="gzip", record_wrapper="recordio"
    ),
    "input_manifest": _input(data_type="manifest"),
    "input_augmented": _input(
        data_type="augmented_manifest",
        attribute_names=["source-ref", "label"],
        mode="pipe",
        record_wrapper="recordio",
    ),
    "input_shuffle": _input(shuffle_seed=7, mode="pipe"),
    "input_fsx": Case({"inputs": {"train": {"sagemaker": "fsx://fs-0123456789abcdef0/fsx/data"}}}),
    "input_efs": Case(
        {"inputs": {"train": {"sagemaker": "efs://fs-0123456789abcdef0/data", "access": "rw"}}}
    ),
}

RULE = {
    "name": "p", "image": "i:2", "instance_type": "ml.m5.xlarge", "volume_size": "10g", "output": "s3://data/r",
    "local_path": "/r", "parameters": {"threshold": "1"},
}  # fmt: skip

OPTIONS = {
    "hyperparameters": Case(
        {
            "hyperparameters": {
                "name": "resnet50",
                "flag": True,
                "none": None,
                "layers": [1, 2],
                "cfg": {"a": 1},
                "u": "é",
            }
        }
    ),
    "hyperparameters_by_the_toolkit": Case(
        {
            "hyperparameters": {
                "name": "resnet50",
                "flag": True,
                "none": None,
                "layers": [1, 2],
                "cfg": {"a": 1},
                "u": "é",
            }
        },
        {"launch": "toolkit"},
    ),
    "no_hyperparameters": Case({"hyperparameters": {}}),
    "shell_script": Case({"entry_point": "train.sh"}),
    "script_in_a_folder": Case(
        {"entry_point": "scripts/train.py", "distribution": {"type": "torch"}}
    ),
    "variables": Case(
        {"environment": {**BASE["environment"], "variables": {"NCCL_DEBUG": "INFO", "A": "b c"}}}
    ),
    "max_runtime": Case({"max_runtime": "2h"}),
    "volume": Case({"resources": machine("ml.c5.9xlarge", volume_size="200g")}),
    "spot": Case({"spot": {"max_wait": "6h"}, "max_runtime": "2h"}),
    "spot_without_limit": Case({"spot": {}}),
    "checkpoint": Case(
        {"checkpoint": {"sagemaker": "s3://data/ckpt"}, "distribution": {"type": "torch"}}
    ),
    "checkpoint_keep": Case({"checkpoint": {"keep": 5}}),
    "checkpoint_debugger": Case(
        {"checkpoint": {"sagemaker": "s3://data/ckpt"}}, {"debugger": True}
    ),
    "checkpoint_debugger_transformers": Case(
        {"checkpoint": {"sagemaker": "s3://data/ckpt"}, **TRANSFORMERS}, {"debugger": True}
    ),
    "metrics": Case({"metrics": {"loss": "loss=([0-9.]+)", "acc": 'acc "([0-9.]+)"'}}),
    "tags": Case({"tags": {"team": "vision", "a:b": "c=d"}}),
    "output": Case({"outputs": {"model": {"sagemaker": "s3://data/models"}}}),
    "output_target": Case(
        {}, {"output": "s3://data/out/", "output_kms_key": KEY, "compress_output": False}
    ),
    "volume_key": Case({"resources": machine("ml.c5.9xlarge")}, {"volume_kms_key": KEY}),
    "network": Case({}, {"subnets": ["subnet-1", "subnet-2"], "security_group_ids": ["sg-1"]}),
    "isolation": Case({}, {"network_isolation": True}),
    "isolation_torch": Case(
        {"distribution": {"type": "torch"}, "inputs": {}}, {"network_isolation": True}
    ),
    "encryption": Case({}, {"encrypt_inter_container_traffic": True}),
    "keep_alive": Case({}, {"keep_alive": "30m"}),
    "retries": Case({}, {"max_retries": 5}),
    "training_plan": Case({}, {"training_plan": PLAN}),
    "remote_debug": Case({}, {"remote_debug": True}),
    "infra_check": Case({}, {"infra_check": True}),
    "profiler": Case({}, {"profiler": True}),
    "debugger": Case({}, {"debugger": True}),
    "profiler_and_debugger": Case(TENSORFLOW, {"profiler": True, "debugger": True}),
    "experiment": Case({}, {"experiment": "e", "trial": "t", "trial_component": "c"}),
    "profiler_in_detail": Case(
        {}, {"profiler": True, "profiler_output": "s3://data/p", "profiler_interval": 500}
    ),
    "debugger_in_detail": Case(
        {},
        {
            "debugger": True,
            "debugger_output": "s3://data/d",
            "debugger_path": "/d",
            "debugger_parameters": {"save_interval": "10"},
            "debugger_collections": {"losses": {"save_interval": "5"}},
        },
    ),
    "rules": Case(
        {},
        {
            "profiler": True,
            "debug_rules": [
                {"name": "r", "image": "i:1", "parameters": {"rule_to_invoke": "LossNotDecreasing"}}
            ],
            "profiler_rules": [RULE],
        },
    ),
    "rules_and_debugger": Case({}, {"debugger": True, "debug_rules": [RULE, RULE | {"name": "s"}]}),
    "tensorboard": Case({}, {"tensorboard": "s3://data/tb"}),
    "tensorboard_path": Case({}, {"tensorboard": "s3://data/tb", "tensorboard_path": "/tb"}),
    "checkpoint_path": Case(
        {"checkpoint": {"sagemaker": "s3://data/ckpt"}}, {"checkpoint_path": "/opt/ml/mine"}
    ),
    "input_mode": Case({}, {"input_mode": "pipe"}),
    "session_tags": Case({}, {"session_tags": True}),
    "experiment_run": Case({}, {"experiment": "e", "experiment_run": "r"}),
    "entrypoint": Case({"distribution": {"type": "torch"}}, {"launch": "entrypoint"}),
    "entrypoint_isolated": Case({}, {"launch": "entrypoint", "network_isolation": True}),
    "command": Case({"entry_point": None, "command": "bash run.sh 'a b'", "hyperparameters": {}}),
    "image_alone": Case(
        {
            **OWN,
            "entry_point": None,
            "hyperparameters": {"flag": True, "l": [1, "x"], "n": None, "d": {"a": [None]}},
        }
    ),
    "region_china": Case({}, region="cn-north-1"),
    "region_frankfurt": Case({"distribution": {"type": "torch"}}, region="eu-central-1"),
    "region_without_debugger": Case({"distribution": {"type": "torch"}}, region="ap-southeast-3"),
    "everything": Case(
        {
            "distribution": {"type": "torch"},
            "spot": {"max_wait": "12h"},
            "checkpoint": {"sagemaker": "s3://data/ckpt"},
            "metrics": {"loss": "loss=(.*)"},
            "tags": {"team": "vision"},
        },
        {
            "subnets": ["subnet-1"],
            "security_group_ids": ["sg-1"],
            "network_isolation": True,
            "encrypt_inter_container_traffic": True,
            "max_retries": 3,
            "remote_debug": True,
            "infra_check": True,
            "training_plan": PLAN,
            "output_kms_key": KEY,
            "compress_output": False,
        },
    ),
}


def _override(**fields: Any) -> Case:
    return Case({"sagemaker_overrides": fields})


OVERRIDES = {
    "override_input_mode": _override(AlgorithmSpecification={"TrainingInputMode": "FastFile"}),
    "override_registry": _override(
        AlgorithmSpecification={
            "TrainingImageConfig": {
                "TrainingRepositoryAccessMode": "Vpc",
                "TrainingRepositoryAuthConfig": {
                    "TrainingRepositoryCredentialsProviderArn": "arn:aws:lambda:::f"
                },
            }
        }
    ),
    "override_tensorboard": _override(
        TensorBoardOutputConfig={"S3OutputPath": "s3://data/tb", "LocalPath": "/tb"}
    ),
    "override_hook": _override(
        DebugHookConfig={
            "S3OutputPath": "s3://data/debug",
            "LocalPath": "/d",
            "HookParameters": {"save_interval": "10"},
            "CollectionConfigurations": [
                {"CollectionName": "losses", "CollectionParameters": {"a": "b"}}
            ],
        }
    ),
    "override_profiler": _override(
        ProfilerConfig={
            "DisableProfiler": False,
            "S3OutputPath": "s3://data/p",
            "ProfilingIntervalInMilliseconds": 500,
        }
    ),
    "override_rules": _override(
        DebugRuleConfigurations=[
            {
                "RuleConfigurationName": "r",
                "RuleEvaluatorImage": "i:1",
                "RuleParameters": {"rule_to_invoke": "LossNotDecreasing"},
            }
        ],
        ProfilerConfig={"DisableProfiler": False, "S3OutputPath": "s3://data/p"},
        ProfilerRuleConfigurations=[
            {
                "RuleConfigurationName": "p",
                "RuleEvaluatorImage": "i:2",
                "InstanceType": "ml.m5.xlarge",
                "VolumeSizeInGB": 10,
                "S3OutputPath": "s3://data/r",
            },
        ],
    ),
    "override_debug_rule": _override(
        DebugHookConfig={"S3OutputPath": "s3://data/debug", "CollectionConfigurations": []},
        DebugRuleConfigurations=[
            {"RuleConfigurationName": "r", "RuleEvaluatorImage": "i:1", "LocalPath": "/opt/r"}
        ],
    ),
    "override_hub": _override(
        InputDataConfig=[
            {
                "ChannelName": "model",
                "DataSource": {
                    "S3DataSource": {
                        "S3DataType": "S3Prefix",
                        "S3Uri": "s3://hub/m",
                        "S3DataDistributionType": "FullyReplicated",
                        "HubAccessConfig": {
                            "HubContentArn": "arn:aws:sagemaker:us-west-2:1:hub-content/a"
                        },
                        "ModelAccessConfig": {"AcceptEula": True},
                    }
                },
            }
        ]
    ),
    "override_session_tags": _override(SessionChainingConfig={"EnableSessionTagChaining": True}),
    "override_placement": _override(
        ResourceConfig={"InstancePlacementConfig": {"EnableMultipleJobs": True}}
    ),
    "override_log_level": _override(HyperParameters={"sagemaker_container_log_level": "10"}),
    "override_text": _override(HyperParameters={"raw": "not json", "compact": '{"a":1}'}),
    "override_metrics_off": _override(
        AlgorithmSpecification={"EnableSageMakerMetricsTimeSeries": False}
    ),
    "override_metrics_absent": _override(
        AlgorithmSpecification={"EnableSageMakerMetricsTimeSeries": None}
    ),
    "override_model_dir": Case(
        {
            **TENSORFLOW,
            "sagemaker_overrides": {"HyperParameters": {"model_dir": '"s3://data/model"'}},
        }
    ),
}

CASES: dict[str, Case] = DISTRIBUTIONS | CLUSTERS | INPUTS | OPTIONS | OVERRIDES
