"""Jobs as documentation and tutorials write them, for either cloud. None of them is wrong, and each says what may be
said about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

SRC = {"train.py": ""}
INSTALLS = {**SRC, "requirements.txt": "datasets\n"}
PACKAGE = {"train.py": "", "setup.py": "", "mypackage/__init__.py": ""}

DLC = "763104351884.dkr.ecr.us-west-2.amazonaws.com"
NEURONX = f"{DLC}/pytorch-training-neuronx:2.9.0-neuronx-py312-sdk2.30.0-ubuntu24.04"
PUBLIC_NEURONX = (
    "public.ecr.aws/neuron/pytorch-training-neuronx:2.8.0-neuronx-py311-sdk2.26.0-ubuntu22.04"
)
HF_NEURONX = f"{DLC}/huggingface-pytorch-training-neuronx:2.8.0-transformers4.55.4-neuronx-py310-sdk2.26.0-ubuntu22.04"
OWN = "123456789012.dkr.ecr.us-west-2.amazonaws.com/mine:1"
STORE = "azureml://datastores/workspaceblobstore/paths"
REGISTRY = "azureml://registries/azureml/environments"
A100, H100, H200 = (
    "Standard_NC24ads_A100_v4",
    "Standard_ND96isr_H100_v5",
    "Standard_ND96isr_H200_v5",
)
ND_A100, T4, CPU = "Standard_ND96asr_v4", "Standard_NC4as_T4_v3", "Standard_D8s_v5"
TORCH, MPI = {"type": "torch"}, {"type": "mpi"}
DEEPSPEED = {"type": "deepspeed"}
SERVERS = {"type": "tensorflow", "strategy": "parameter_server"}
WORKERS = {"type": "tensorflow"}


@dataclass(frozen=True)
class Sensible:
    """A job for a target. `told` are the codes of warnings and notices that are worth saying about it."""

    target: str
    job: dict[str, Any]
    settings: dict[str, Any] = field(default_factory=dict)
    told: tuple[str, ...] = ()
    files: dict[str, str] = field(default_factory=lambda: SRC)
    kind: str = "training"


def aws(
    instance_type: str | None, count: int = 1, *, told: tuple[str, ...] = (), **fields: Any
) -> Sensible:
    """A training job on SageMaker."""
    settings, files = fields.pop("settings", {}), fields.pop("files", SRC)
    resources = fields.pop(
        "resources", {"instance_type": {"sagemaker": instance_type}, "instance_count": count}
    )
    return Sensible("sagemaker", {"resources": resources} | fields, settings, told, files)


def azure(
    instance_type: str | None, count: int = 1, *, told: tuple[str, ...] = (), **fields: Any
) -> Sensible:
    """A training job on Azure ML."""
    settings, files = fields.pop("settings", {}), fields.pop("files", SRC)
    resources = fields.pop("resources", {"instance_count": count})
    if instance_type is not None:
        resources = resources | {"instance_type": {"azureml": instance_type}}
    return Sensible(
        "azureml",
        {"resources": resources, "environment": PYTORCH_AZURE} | fields,
        settings,
        told,
        files,
    )


def pytorch(version: str = "2.10", **more: Any) -> dict[str, Any]:
    return {"framework": "pytorch", "version": version} | more


def tensorflow(version: str = "2.21", **more: Any) -> dict[str, Any]:
    return {"framework": "tensorflow", "version": version} | more


def image(name: str, **more: Any) -> dict[str, Any]:
    return {"image": {"sagemaker": name}} | more


def s3(path: str, **more: Any) -> dict[str, Any]:
    return {"sagemaker": f"s3://my-bucket/{path}"} | more


PYTORCH_AZURE = {"framework": "pytorch", "version": "2.10"}
TF_AZURE = {"framework": "tensorflow", "version": "2.16"}
HF = {"framework": "huggingface", "version": "5.3.0", "requirements": "requirements.txt"}
QUICK = {"max_runtime": "2h"}

SENSIBLE: dict[str, Sensible] = {
    "Hugging Face fine-tuning on one A10G": aws(
        "ml.g5.2xlarge", environment=HF, inputs={"train": s3("imdb/train"), "test": s3("imdb/test")},
        hyperparameters={"epochs": 3, "model_name": "distilbert-base-uncased", "train_batch_size": 32},
        files=INSTALLS, **QUICK,
    ),
    "Hugging Face over eight A100": aws(
        "ml.p4d.24xlarge", environment=HF, distribution=TORCH, files=INSTALLS, **QUICK,
    ),
    "FSDP over two p4d": aws("ml.p4d.24xlarge", 2, environment=pytorch(), distribution=TORCH, **QUICK),
    "FSDP over two p5, PyTorch 2.7": aws("ml.p5.48xlarge", 2, environment=pytorch("2.7.1"), distribution=TORCH, told=("SM309",), **QUICK),
    "FSDP over two p5, PyTorch 2.9": aws("ml.p5.48xlarge", 2, environment=pytorch("2.9"), distribution=TORCH, told=("SM309",), **QUICK),
    "FSDP over four p5en": aws("ml.p5en.48xlarge", 4, environment=pytorch(), distribution=TORCH, **QUICK),
    "FSDP over two p6-b200": aws("ml.p6-b200.48xlarge", 2, environment=pytorch(), distribution=TORCH, **QUICK),
    "two p5 by mpirun": aws("ml.p5.48xlarge", 2, environment=pytorch(), distribution=MPI, **QUICK),
    "four small GPUs that talk over Ethernet": aws(
        "ml.g5.xlarge", 4, environment=pytorch(), distribution=TORCH, told=("SM204",), **QUICK,
    ),
    "Trainium by an old version": aws("ml.trn1.32xlarge", environment=pytorch("1.11.0"), distribution=TORCH, **QUICK),
    "Trainium by a new version": aws("ml.trn1.32xlarge", 2, environment=pytorch("2.8"), distribution=TORCH, **QUICK),
    "Trainium without a version": aws("ml.trn1.32xlarge", environment={"framework": "pytorch"}, distribution=TORCH, **QUICK),
    "Trainium, Hugging Face by its version": aws(
        "ml.trn1.2xlarge", environment={"framework": "huggingface", "version": "4.55.4"}, distribution=TORCH, **QUICK,
    ),
    "Trainium, a newer image": aws("ml.trn1.32xlarge", 2, environment=image(NEURONX), distribution=TORCH, **QUICK),
    "Trainium 2": aws("ml.trn2.48xlarge", environment=image(NEURONX), distribution=TORCH, **QUICK),
    "Trainium, the public image": aws("ml.trn1.32xlarge", environment=image(PUBLIC_NEURONX), distribution=TORCH, **QUICK),
    "Trainium, Hugging Face": aws(
        "ml.trn1.32xlarge", environment=image(HF_NEURONX), distribution=TORCH,
        hyperparameters={"model_id": "meta-llama/Llama-3.1-8B", "bf16": True, "learning_rate": 5e-5}, **QUICK,
    ),
    "one small Trainium": aws("ml.trn1.2xlarge", environment=image(NEURONX), distribution=TORCH, **QUICK),
    "scikit-learn style, one CPU": aws("ml.m5.xlarge", environment=pytorch(), inputs={"train": s3("iris.csv", type="uri_file")}),
    "spot capacity with checkpoints": aws(
        "ml.g5.xlarge", environment=pytorch(), spot={"max_wait": "4h"}, checkpoint=s3("ckpt"), **QUICK,
    ),
    "a warm pool for experiments": aws(
        "ml.g5.xlarge", environment=pytorch(), settings={"keep_alive": "30m"}, told=("SM414",), **QUICK,
    ),
    "a heterogeneous cluster, data loading beside the GPUs": aws(
        None,
        resources={
            "instance_groups": [
                {"name": "dnn", "instance_type": "ml.p4d.24xlarge", "instance_count": 1},
                {"name": "data", "instance_type": "ml.c5.18xlarge", "instance_count": 2},
            ],
            "distribution_groups": ["dnn"],
        },
        environment=pytorch(), distribution=MPI, **QUICK,
    ),
    "an image of one's own": aws("ml.g5.xlarge", environment=image(OWN), **QUICK),
    "an image of one's own with torchrun": aws("ml.g5.12xlarge", environment=image(OWN), distribution=TORCH, **QUICK),
    "an algorithm in an image of its own": aws(
        "ml.m5.xlarge", entry_point=None, environment=image(OWN), hyperparameters={"max_depth": 5}, inputs={"train": s3("x")},
    ),
    "a built-in algorithm on two instances": aws(
        "ml.m5.xlarge", 2, entry_point=None, environment=image(OWN), inputs={"train": s3("x")}, **QUICK,
    ),
    "parameter servers on CPUs": aws("ml.m5.xlarge", 3, environment=tensorflow(), distribution=SERVERS, **QUICK),
    "MirroredStrategy on four GPUs": aws("ml.g5.12xlarge", environment=tensorflow(), **QUICK),
    "MultiWorkerMirroredStrategy": aws("ml.g5.12xlarge", 2, environment=tensorflow(), distribution=WORKERS, **QUICK),
    "Horovod in the image that has it": aws(
        "ml.p3.16xlarge", environment=tensorflow("2.11"), distribution={"type": "horovod"}, told=("SM309",), **QUICK,
    ),
    "DeepSpeed with MPI": aws(
        "ml.p4d.24xlarge", 2, environment=pytorch(requirements="requirements.txt"),
        distribution=DEEPSPEED | {"launch": "mpi"}, files=INSTALLS, **QUICK,
    ),
    "DeepSpeed under torchrun": aws(
        "ml.g5.48xlarge", 2, environment=pytorch(requirements="requirements.txt"), distribution=DEEPSPEED,
        files=INSTALLS, **QUICK,
    ),
    "smddp where it is": aws("ml.p4d.24xlarge", 2, environment=pytorch("2.2.0"), distribution={"type": "smddp"}, told=("SM309",), **QUICK),
    "smddp in an image derived from AWS's": aws(
        "ml.p4d.24xlarge", 2, environment=image(OWN), distribution={"type": "smddp"}, told=("SM310",), **QUICK,
    ),
    "torchrun in the image that the SDK writes for 1.13": aws(
        "ml.p4d.24xlarge", 2, environment=image(f"{DLC}/pytorch-training:1.13-gpu-py39"), distribution=TORCH,
        settings={"launch": "toolkit"}, told=("SM309",), **QUICK,
    ),
    "smp version 1 in that image": aws(
        "ml.p4d.24xlarge", environment=image(f"{DLC}/pytorch-training:1.13-gpu-py39"),
        distribution={"type": "smp", "version": 1}, told=("SM309",), **QUICK,
    ),
    "smp version 1 on TensorFlow 2.3.1, as AWS's notebook has it": aws(
        "ml.p3.16xlarge", environment=tensorflow("2.3.1"), distribution={"type": "smp", "version": 1},
        told=("SM309",), **QUICK,
    ),
    "smp version 2": aws(
        "ml.p4d.24xlarge", 2, environment=pytorch("2.5.1"),
        distribution={"type": "smp", "version": 2, "parameters": {"hybrid_shard_degree": 8}}, told=("SM327",), **QUICK,
    ),
    "code with a setup.py": aws(
        "ml.g5.12xlarge", environment=pytorch(), distribution=TORCH, files=PACKAGE, told=("SM346",), **QUICK,
    ),
    "a command line": aws("ml.g5.xlarge", entry_point=None, command="python train.py --lr 1e-4 | tee log", environment=pytorch(), **QUICK),
    "streaming data, a shard for each instance": aws(
        "ml.p4d.24xlarge", 2, environment=pytorch(), distribution=TORCH, inputs={"train": s3("imagenet", shard=True)}, **QUICK,
    ),
    "FSx for Lustre in a VPC": aws(
        "ml.p4d.24xlarge", 2, environment=pytorch(), distribution=TORCH,
        inputs={"train": {"sagemaker": "fsx://fs-0123456789abcdef0/fsx/data"}},
        settings={"subnets": ["subnet-1"], "security_group_ids": ["sg-1"]}, **QUICK,
    ),
    "NCCL's log, which the toolkit would overwrite": aws(
        "ml.p4d.24xlarge", 2, environment=pytorch(variables={"NCCL_DEBUG": "INFO"}), distribution=TORCH, told=("SM603",), **QUICK,
    ),
    "metrics as Hugging Face's examples write them": aws(
        "ml.p3.2xlarge", environment=HF, **QUICK, files=INSTALLS, told=("CT206",),
        metrics={"train_loss": r"'loss': ([0-9]+(.|e\-)[0-9]+),?", "eval_f1": "eval_f1.*=\\D*(.*?)$"},
    ),
    "metrics from the log": aws(
        "ml.g5.xlarge", environment=pytorch(), metrics={"train:loss": "loss: ([0-9.]+)"}, tags={"team": "nlp"}, **QUICK,
    ),
    "network isolation": aws("ml.g5.xlarge", environment=pytorch(), settings={"network_isolation": True}, **QUICK),
    "two ways to the same data": aws(
        "ml.g5.xlarge", environment=pytorch(), inputs={"train": s3("data", mode="download"), "more": s3("data2")}, **QUICK,
    ),
    "processing on two CPUs": Sensible(
        "sagemaker",
        {
            "resources": {"instance_type": {"sagemaker": "ml.m5.2xlarge"}, "instance_count": 2},
            "environment": pytorch(), "inputs": {"raw": s3("raw", shard=True)}, "outputs": {"clean": s3("clean")},
        },
        kind="processing",
    ),
    "serverless Azure, one A100": azure(A100, inputs={"train": {"azureml": "azureml:cifar:1"}}, **QUICK),
    "serverless Azure, spot capacity": azure(
        A100, spot={}, checkpoint={"azureml": f"{STORE}/ckpt"}, inputs={"train": {"azureml": f"{STORE}/cifar"}}, **QUICK,
    ),
    "a compute cluster": azure(None, settings={"compute": "gpu-cluster"}, distribution=TORCH | {"processes_per_instance": 4}, **QUICK),
    "a low-priority cluster": azure(
        None, settings={"compute": "low-prio"}, checkpoint={"azureml": f"{STORE}/c"}, resources={"instance_count": 1}, **QUICK,
    ),
    "sixteen H100 with InfiniBand": azure(
        H100, 2, distribution=TORCH, resources={"instance_count": 2, "shm_size": "64g"}, **QUICK,
    ),
    "sixteen A100 on a cluster": azure(
        ND_A100, 2, settings={"compute": "a100"}, distribution=TORCH, resources={"instance_count": 2, "shm_size": "64g"}, **QUICK,
    ),
    "DeepSpeed with MPI on Azure": azure(
        H100, 2, distribution=DEEPSPEED | {"launch": "mpi"}, resources={"instance_count": 2}, **QUICK,
    ),
    "Horovod on Azure": azure(
        ND_A100, 2, distribution={"type": "horovod"}, environment={"image": {"azureml": "mine.azurecr.io/horovod:3"}}, **QUICK,
    ),
    "TensorFlow workers on Azure": azure("Standard_NC6s_v3", 2, told=("AZ203", "AZ206"), distribution=WORKERS, environment=TF_AZURE, **QUICK),
    "parameter servers on Azure's CPUs": azure(
        CPU, 4, distribution=SERVERS | {"parameter_servers": 1, "workers": 3}, environment=TF_AZURE, **QUICK,
    ),
    "one CPU on Azure": azure(CPU, inputs={"lr": {"value": 0.01}}, hyperparameters={"lr": "${{inputs.lr}}"}),
    "a command line on Azure": azure(
        A100, entry_point=None, command="python train.py --data ${{inputs.train}} --out ${{outputs.model}}",
        inputs={"train": {"azureml": "azureml:cifar:1"}}, outputs={"model": {}}, **QUICK,
    ),
    "a curated environment by its version": azure(A100, environment={"azureml": f"{REGISTRY}/acpt-pytorch-2.8-cuda12.6/versions/5"}, **QUICK),
    "an image with a conda file": azure(
        A100,
        environment={"image": {"azureml": "mcr.microsoft.com/azureml/openmpi5.0-cuda12.4-ubuntu22.04:20250601.v1"}, "conda_file": "conda.yml"},
        files={"train.py": "", "conda.yml": "dependencies: [python=3.12]\n"}, **QUICK,
    ),
    "two T4 over Ethernet on purpose": azure(
        T4, 2, distribution=TORCH, resources={"instance_count": 2, "interconnect": "ethernet"}, **QUICK,
    ),
    "a model that is registered": azure(
        A100, outputs={"model": {"asset_name": "my-model", "type": "custom_model", "azureml": f"{STORE}/models"}}, **QUICK,
    ),
    "processing on Azure": Sensible(
        "azureml",
        {
            "resources": {"instance_type": {"azureml": CPU}, "instance_count": 2},
            "environment": {"image": {"azureml": "mcr.microsoft.com/azureml/openmpi5.0-ubuntu24.04:20250601.v1"}},
            "inputs": {"raw": {"azureml": f"{STORE}/raw", "shard": True}}, "outputs": {"clean": {"azureml": f"{STORE}/clean"}},
        },
        kind="processing",
    ),
}  # fmt: skip
