"""Stand-ins for the examples of AWS, Azure, PyTorch and Hugging Face that users bring: the shape of their scripts and job
files, written anew and small. `docs/guides/originals.md` names the originals.

No script imports cloudtrain. `shims` are modules with the interface of a library that is not on this machine, as far as
the script uses it: SageMaker's libraries, DeepSpeed, TensorFlow, transformers, datasets, MLflow and mpi4py.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import cloudtrain as ct


class StandIn(NamedTuple):
    """One example: the files of its repository, and modules instead of missing libraries."""

    files: dict[str, str]
    shims: dict[str, str]
    """By their paths in the folder of the code."""
    fields: dict[str, Any]
    """The job. Empty for one that the owner's job file describes."""
    code: str = "src"


MPI4PY = {
    "mpi4py/__init__.py": "",
    "mpi4py/__main__.py": "import runpy, sys\nsys.argv = sys.argv[1:]\nrunpy.run_path(sys.argv[0], run_name='__main__')\n",
}

SMDDP_SCRIPT = """\
import argparse
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

import smdistributed.dataparallel.torch.torch_smddp


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--save-model", action="store_true", default=False)
    dist.init_process_group(backend="smddp")
    args = parser.parse_args()
    rank = dist.get_rank()
    local_rank = int(os.getenv("LOCAL_RANK", -1))
    torch.manual_seed(1)
    inputs = torch.randn(args.batch_size, 8)
    targets = inputs.sum(dim=1, keepdim=True)
    sampler = torch.utils.data.distributed.DistributedSampler(inputs, dist.get_world_size(), rank)
    model = DDP(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(1, args.epochs + 1):
        part = list(sampler)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs[part]), targets[part])
        loss.backward()
        optimizer.step()
    print("rank", rank, "local", local_rank, "of", dist.get_world_size(), "weight %.6f" % next(model.parameters()).sum())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
"""

SMDDP_SHIM = """\
import torch.distributed as dist

def _gloo(store, rank, size, timeout):
    return dist.ProcessGroupGloo(store, rank, size, timeout)

dist.Backend.register_backend("smddp", _gloo, devices=["cpu"])
"""

SMDDP_NOTEBOOK = """\
import sagemaker
from sagemaker.pytorch import PyTorch
session = sagemaker.Session()
bucket = session.default_bucket()
role = sagemaker.get_execution_role()
estimator = PyTorch(
    base_job_name="smddp-mnist", source_dir="src", entry_point="train.py", role=role, framework_version="1.11.0",
    py_version="py38", instance_count=2, instance_type="ml.p3.16xlarge", sagemaker_session=session,
    distribution={"smdistributed": {"dataparallel": {"enabled": True}}}, hyperparameters={"epochs": 2},
)
estimator.fit(wait=False)
PyTorch(
    base_job_name="smddp-mnist-options", source_dir="src", entry_point="train.py", role=role,
    framework_version="1.11.0", py_version="py38", instance_count=1, instance_type="ml.p3.16xlarge",
    distribution={"pytorchddp": {"enabled": True, "custom_mpi_options": "-verbose -x NCCL_DEBUG=VERSION"}},
).fit(wait=False)
"""

SMDDP = StandIn(
    {"src/train.py": SMDDP_SCRIPT, "launch.py": SMDDP_NOTEBOOK},
    {"smdistributed/dataparallel/torch/torch_smddp.py": SMDDP_SHIM, **MPI4PY},
    {
        "name": "smddp-mnist",
        "source_dir": "src",
        "entry_point": "train.py",
        "hyperparameters": {"epochs": 2},
        "distribution": ct.SMDDP(),
        "resources": {"instance_count": 2, "instance_type": {"sagemaker": "ml.p3.16xlarge"}},
        "environment": {"framework": "pytorch", "version": "1.11.0", "python": "3.8"},
    },
)
"""AWS: MNIST with the data-parallel library."""

SMP_SCRIPT = """\
import argparse
import os

import torch
import smdistributed.modelparallel.torch as smp


@smp.step
def train_step(model, ids):
    loss = model(ids).pow(2).mean()
    model.backward(loss)
    return loss


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--max_steps", type=int, default=2)
    parser.add_argument("--train_batch_size", type=int, default=4)
    parser.add_argument("--fp16", type=int, default=0)
    parser.add_argument("--microbatches", type=int, default=1)
    parser.add_argument("--tensor_parallel_degree", type=int, default=1)
    parser.add_argument("--shard_optimizer_state", type=int, default=0)
    parser.add_argument("--model-dir", default=os.environ["SM_MODEL_DIR"])
    parser.add_argument("--training-dir", default=os.environ["SM_CHANNEL_TRAIN"])
    return parser.parse_known_args()[0]


def main():
    args = parse_args()
    smp.init({
        "ddp": True,
        "microbatches": args.microbatches,
        "fp16": args.fp16 > 0,
        "tensor_parallel_degree": args.tensor_parallel_degree,
        "shard_optimizer_state": args.shard_optimizer_state > 0,
    })
    torch.manual_seed(1)
    with smp.model_creation(tensor_parallelism=smp.tp_size() > 1):
        model = torch.nn.Linear(4, 4)
    model = smp.DistributedModel(model)
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for step in range(args.max_steps):
        optimizer.zero_grad()
        losses = train_step(model, torch.ones(args.train_batch_size, 4))
        optimizer.step()
    print("rank", smp.rank(), "of", smp.size(), "files", sorted(os.listdir(args.training_dir)))
    if smp.rank() == 0:
        print("loss %.4f" % losses.reduce_mean())
    smp.save_checkpoint(args.model_dir, model=model)
    smp.barrier()


if __name__ == "__main__":
    main()
"""

SMP_SHIM = """\
import contextlib
import json
import os

import torch

_config = {}

class _Outputs(list):
    def reduce_mean(self):
        return sum(self) / len(self)

def init(config=None):
    _config.update(config or {})
    _config.update(json.loads(os.environ["SM_HP_MP_PARAMETERS"]))

def rank():
    return int(os.environ["OMPI_COMM_WORLD_RANK"])

def size():
    return int(os.environ["OMPI_COMM_WORLD_SIZE"])

def tp_size():
    return _config.get("tensor_parallel_degree", 1)

def barrier():
    pass

@contextlib.contextmanager
def model_creation(**options):
    yield

def step(function):
    def run(model, batch):
        return _Outputs(function(model, part) for part in batch.chunk(_config["microbatches"]))
    return run

class DistributedModel(torch.nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, *inputs):
        return self.module(*inputs)

    def backward(self, loss):
        loss.backward()

def DistributedOptimizer(optimizer):
    return optimizer

def save_checkpoint(path, model):
    torch.save(model.state_dict(), os.path.join(path, f"partial_{rank()}.pt"))
"""

SMP_NOTEBOOK = """\
import sagemaker
from sagemaker.inputs import TrainingInput
from sagemaker.pytorch import PyTorch
session = sagemaker.Session()
hyperparameters = {"max_steps": 2, "train_batch_size": 8}
train = TrainingInput(f"s3://{session.default_bucket()}/gpt", distribution="FullyReplicated", s3_data_type="S3Prefix")
PyTorch(
    entry_point="train.py", source_dir="src", role=sagemaker.get_execution_role(), instance_type="ml.p4d.24xlarge",
    instance_count=2, framework_version="1.13", py_version="py39", hyperparameters=hyperparameters,
    distribution={
        "mpi": {"enabled": True, "processes_per_host": 8, "custom_mpi_options": "-x NCCL_DEBUG=WARN "},
        "smdistributed": {"modelparallel": {"enabled": True, "parameters": {
            "ddp": True, "partitions": 1, "microbatches": 4, "skip_tracing": True}}},
    },
    debugger_hook_config=False, disable_profiler=True, base_job_name="smp-gpt2",
).fit(inputs={"train": train}, logs=True)
"""

SMP = StandIn(
    {"src/train.py": SMP_SCRIPT, "launch.py": SMP_NOTEBOOK},
    {"smdistributed/modelparallel/torch/__init__.py": SMP_SHIM, **MPI4PY},
    {
        "name": "smp-gpt2",
        "source_dir": "src",
        "entry_point": "train.py",
        "hyperparameters": {"max_steps": 2, "train_batch_size": 8},
        "distribution": ct.SMP(
            version=1,
            mpi_options="-x NCCL_DEBUG=WARN ",
            parameters={"ddp": True, "partitions": 1, "microbatches": 4, "skip_tracing": True},
        ),
        "resources": {"instance_count": 2, "instance_type": {"sagemaker": "ml.p4d.24xlarge"}},
        "environment": {"framework": "pytorch", "version": "1.13", "python": "3.9"},
        "inputs": {"train": {"sagemaker": "s3://bucket/gpt", "local": "text", "mode": "download"}},
    },
)
"""AWS: GPT-2 with the model-parallel library, version 1."""

CIFAR_SCRIPT = """\
import argparse
import os

import mlflow
import torch
from torch import nn


def main(args):
    world_size = int(os.environ["WORLD_SIZE"])
    rank = int(os.environ["RANK"])
    local_rank = int(os.environ["LOCAL_RANK"])
    if world_size > 1:
        torch.distributed.init_process_group(backend="nccl" if torch.cuda.is_available() else "gloo")
    print("rank", rank, "local", local_rank, "of", world_size, "reads", sorted(os.listdir(args.data_dir)))
    torch.manual_seed(1)
    images = torch.randn(8, 3, 4, 4)
    sampler = torch.utils.data.distributed.DistributedSampler(images)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.learning_rate, momentum=args.momentum)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        optimizer.zero_grad()
        model(images[list(sampler)]).pow(2).mean().backward()
        optimizer.step()
    if rank == 0:
        mlflow.pytorch.log_model(model, "./model")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--data-dir", type=str)
    parser.add_argument("--epochs", default=10, type=int)
    parser.add_argument("--learning-rate", default=0.001, type=float)
    parser.add_argument("--momentum", default=0.9, type=float)
    main(parser.parse_args())
"""

CIFAR_JOB = """\
$schema: https://azuremlschemas.azureedge.net/latest/commandJob.schema.json
code: src
command: >-
  python train.py
  --epochs ${{inputs.epochs}}
  --learning-rate ${{inputs.learning_rate}}
  --data-dir ${{inputs.cifar}}
inputs:
  epochs: 1
  learning_rate: 0.2
  cifar:
     type: uri_folder
     path: azureml:cifar@latest
environment: azureml:pytorch-example@latest
compute: azureml:gpu-cluster
distribution:
  type: pytorch
  process_count_per_instance: 1
resources:
  instance_count: 2
display_name: cifar-distributed
experiment_name: cifar-distributed
description: A small network on CIFAR-10, distributed by PyTorch.
"""

MLFLOW = """\
from types import SimpleNamespace

def get_tracking_uri():
    return "file:mlruns"

def log_metrics(values):
    print("logged", sorted(values))

pytorch = SimpleNamespace(log_model=lambda model, path: print("logged", path))
"""

CIFAR = StandIn({"src/train.py": CIFAR_SCRIPT, "job.yml": CIFAR_JOB}, {"mlflow.py": MLFLOW}, {})
"""Azure: CIFAR-10 with DistributedDataParallel."""

DEEPSPEED_SCRIPT = """\
import argparse

import deepspeed
import mlflow
from model import Net


def add_argument():
    parser = argparse.ArgumentParser(description="CIFAR")
    parser.add_argument("-e", "--epochs", default=1, type=int)
    parser.add_argument("--local_rank", type=int, default=-1)
    parser.add_argument("--with_aml_log", default=True)
    parser = deepspeed.add_config_arguments(parser)
    return parser.parse_args()


args = add_argument()
if args.with_aml_log:
    print("Current tracking uri:", mlflow.get_tracking_uri())
net = Net()
engine, optimizer, loader, __ = deepspeed.initialize(
    args=args, model=net, model_parameters=net.parameters(), training_data=range(8)
)
for epoch in range(args.epochs):
    for number in loader:
        engine.backward(engine(number))
        engine.step()
print("rank", engine.global_rank, "of", engine.world_size, "steps", engine.steps)
"""

DEEPSPEED_SHIM = """\
import json
import os

def add_config_arguments(parser):
    parser.add_argument("--deepspeed", action="store_true")
    parser.add_argument("--deepspeed_config", type=str)
    return parser

class _Engine:
    def __init__(self, model):
        self.model, self.steps = model, 0
        missing = [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK") if name not in os.environ]
        if missing and "OMPI_COMM_WORLD_RANK" in os.environ:
            os.environ["NCCL_SOCKET_IFNAME"]
            os.environ["RANK"] = os.environ["OMPI_COMM_WORLD_RANK"]
            os.environ["WORLD_SIZE"] = os.environ["OMPI_COMM_WORLD_SIZE"]
        self.global_rank, self.world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

    def __call__(self, batch):
        return self.model(batch)

    def backward(self, loss):
        pass

    def step(self):
        self.steps += 1

def initialize(args, model, model_parameters, training_data):
    assert args.deepspeed
    with open(args.deepspeed_config) as file:
        json.load(file)["train_batch_size"]
    engine = _Engine(model)
    return engine, None, training_data[engine.global_rank :: engine.world_size], None
"""

MODEL = """\
class Net:
    def parameters(self):
        return []

    def __call__(self, batch):
        return float(batch)
"""

_AZURE_DEEPSPEED = """\
$schema: https://azuremlschemas.azureedge.net/latest/commandJob.schema.json

command: {command}

experiment_name: DeepSpeed-cifar
display_name: {name}
code: src
environment:
  build:
    path: docker-context
{more}limits:
  timeout: 900
outputs:
  output:
    type: uri_folder
    mode: rw_mount
    path: azureml://datastores/workspaceblobstore/paths/outputs/results
compute: azureml:gpu-v100-cluster
distribution:
  type: pytorch
  process_count_per_instance: 8
resources:
  instance_count: 2
"""

_DEEPSPEED_FILES = {
    "src/train.py": DEEPSPEED_SCRIPT,
    "src/model.py": MODEL,
    "src/ds_config.json": '{"train_batch_size": 64, "fp16": {"enabled": true}}\n',
    "docker-context/Dockerfile": "FROM mcr.microsoft.com/azureml/openmpi4.1.0-cuda11.1-cudnn8-ubuntu20.04\n",
}

DEEPSPEED = StandIn(
    {
        **_DEEPSPEED_FILES,
        "job.yml": _AZURE_DEEPSPEED.format(
            command="python train.py --with_aml_log=True --deepspeed --deepspeed_config ds_config.json",
            name="deepspeed-training",
            more="",
        ),
    },
    {"deepspeed.py": DEEPSPEED_SHIM, "mlflow.py": MLFLOW},
    {},
)
"""Azure: CIFAR-10 with DeepSpeed, whose ranks the service starts."""

START = """\
#!/bin/bash
node="$AZUREML_CR_NODE_RANK"
if [[ -z $AZ_BATCH_HOST_LIST ]]; then
    hosts="localhost"
else
    IFS=',' read -ra hosts <<< "$AZ_BATCH_HOST_LIST"
fi
if [[ $AZUREML_PROCESS_NAME == "rank_0" ]]; then
    for host in "${hosts[@]}"; do
        echo "$host" slots=$1 >> hostfile
    done
fi
call="./deepspeed --hostfile hostfile "
shift
for word in "$@"; do
    call+="$word "
done
if [[ $node == 0 ]] && [[ $AZUREML_PROCESS_NAME == "rank_0" ]]; then
    echo rank is 0, starting deepspeed
    eval $call
fi
"""

AUTOTUNING = StandIn(
    {
        **_DEEPSPEED_FILES,
        "src/start-deepspeed.sh": START,
        "src/generated-key": "not a key\n",
        "job.yml": _AZURE_DEEPSPEED.format(
            command="bash start-deepspeed.sh 8 --autotuning tune --force_multi train.py --deepspeed "
            "--deepspeed_config ds_config.json",
            name="deepspeed-autotuning",
            more="environment_variables:\n"
            "  AZUREML_COMPUTE_USE_COMMON_RUNTIME: 'True'\n"
            "  AZUREML_COMMON_RUNTIME_USE_INTERACTIVE_CAPABILITY: 'True'\n"
            "  AZUREML_SSH_KEY: 'generated-key'\n",
        ),
    },
    {"deepspeed": '#!/bin/sh\necho "called with: $*"\ncat "$2"\n'},
    {},
)
"""Azure: DeepSpeed's autotuning, which one rank starts through DeepSpeed's launcher."""

TENSORFLOW_SCRIPT = """\
import argparse
import json
import os

import tensorflow as tf


def fix_tf_config():
    tf_config = json.loads(os.environ["TF_CONFIG"])
    cluster = tf_config.get("cluster", {})
    if "ps" in cluster and len(cluster["ps"]) == 0:
        cluster.pop("ps")
        os.environ["TF_CONFIG"] = json.dumps(tf_config)
    return tf_config


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--model-dir", type=str, default="outputs")
    args = parser.parse_args()
    tf_config = fix_tf_config()
    num_workers = len(tf_config["cluster"]["worker"])
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = tf.keras.Sequential()
    model.fit(range(64 * num_workers), epochs=args.epochs)
    task = tf_config["task"]
    chief = task["type"] == "chief" or (task["type"] == "worker" and task["index"] == 0)
    folder = args.model_dir if chief else f"{args.model_dir}/workertemp_{task['index']}"
    model.save(folder)
    print("worker", task["index"], "of", num_workers, "saved", folder)


if __name__ == "__main__":
    main()
"""

TENSORFLOW_SHIM = """\
import contextlib
import os
from types import SimpleNamespace

class _Strategy:
    scope = staticmethod(contextlib.nullcontext)

class _Model:
    def fit(self, data, epochs):
        pass

    def save(self, folder):
        os.makedirs(folder, exist_ok=True)
        open(os.path.join(folder, "saved_model.pb"), "w").close()

distribute = SimpleNamespace(MultiWorkerMirroredStrategy=_Strategy)
keras = SimpleNamespace(Sequential=_Model)
"""

TENSORFLOW_JOB = """\
$schema: https://azuremlschemas.azureedge.net/latest/commandJob.schema.json
code: src
command: >-
  python train.py
  --epochs ${{inputs.epochs}}
  --model-dir ${{inputs.model_dir}}
inputs:
  epochs: 1
  model_dir: outputs/keras-model
environment: azureml:tensorflow-example@latest
compute: azureml:gpu-cluster
resources:
  instance_count: 2
distribution:
  type: tensorflow
  worker_count: 2
display_name: tensorflow-mnist
experiment_name: tensorflow-mnist
"""

TENSORFLOW = StandIn(
    {"src/train.py": TENSORFLOW_SCRIPT, "job.yml": TENSORFLOW_JOB},
    {"tensorflow.py": TENSORFLOW_SHIM},
    {},
)
"""Azure: MNIST with MultiWorkerMirroredStrategy."""

MODEL_PARALLEL_SCRIPT = """\
import torch
import torch.nn as nn
import torch.optim as optim

first, second = ("cuda:0", "cuda:1") if torch.cuda.device_count() > 1 else ("cpu", "cpu")


class ToyModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.net1 = nn.Linear(10, 10).to(first)
        self.relu = nn.ReLU()
        self.net2 = nn.Linear(10, 5).to(second)

    def forward(self, x):
        x = self.relu(self.net1(x.to(first)))
        return self.net2(x.to(second))


class PipelineParallelModel(ToyModel):
    def __init__(self, split_size=5):
        super().__init__()
        self.split_size = split_size

    def forward(self, x):
        splits = iter(x.split(self.split_size, dim=0))
        previous = self.relu(self.net1(next(splits).to(first))).to(second)
        parts = []
        for split in splits:
            parts.append(self.net2(previous))
            previous = self.relu(self.net1(split.to(first))).to(second)
        parts.append(self.net2(previous))
        return torch.cat(parts)


model = PipelineParallelModel()
optimizer = optim.SGD(model.parameters(), lr=0.001)
optimizer.zero_grad()
outputs = model(torch.randn(20, 10))
nn.MSELoss()(outputs, torch.randn(20, 5).to(second)).backward()
optimizer.step()
print("outputs", tuple(outputs.shape))
"""

MODEL_PARALLEL = StandIn({"model_parallel_tutorial.py": MODEL_PARALLEL_SCRIPT}, {}, {}, code="")
"""PyTorch: a model on two devices in one process, and its pipeline."""

HUGGING_FACE_SCRIPT = """\
import argparse
import os

from datasets import load_from_disk
from transformers import Trainer, TrainingArguments

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--train_batch_size", type=int, default=32)
    parser.add_argument("--model_name", type=str)
    parser.add_argument("--output_data_dir", type=str, default=os.environ["SM_OUTPUT_DATA_DIR"])
    parser.add_argument("--model_dir", type=str, default=os.environ["SM_MODEL_DIR"])
    parser.add_argument("--n_gpus", type=str, default=os.environ["SM_NUM_GPUS"])
    parser.add_argument("--training_dir", type=str, default=os.environ["SM_CHANNEL_TRAIN"])
    parser.add_argument("--test_dir", type=str, default=os.environ["SM_CHANNEL_TEST"])
    args, _ = parser.parse_known_args()
    train_dataset = load_from_disk(args.training_dir)
    test_dataset = load_from_disk(args.test_dir)
    training_args = TrainingArguments(
        output_dir=args.model_dir,
        num_train_epochs=args.epochs,
        per_device_train_batch_size=args.train_batch_size,
    )
    trainer = Trainer(model=args.model_name, args=training_args, train_dataset=train_dataset)
    trainer.train()
    with open(os.path.join(args.output_data_dir, "eval_results.txt"), "w") as writer:
        writer.write(f"samples = {len(test_dataset)}")
    trainer.save_model(args.model_dir)
    print("trained", args.model_name, "on", train_dataset, "for", args.epochs)
"""

HUGGING_FACE_NOTEBOOK = """\
import sagemaker
from sagemaker.huggingface import HuggingFace
sess = sagemaker.Session()
try:
    role = sagemaker.get_execution_role()
except ValueError:
    import boto3
    role = boto3.client("iam").get_role(RoleName="sagemaker_execution_role")["Role"]["Arn"]
prefix = f"s3://{sess.default_bucket()}/samples/datasets/imdb"
hyperparameters = {"epochs": 1, "train_batch_size": 32, "model_name": "distilbert-base-uncased"}
for epochs in (1, 2):
    huggingface_estimator = HuggingFace(
        entry_point="train.py", source_dir="./src", instance_type="ml.p3.2xlarge", instance_count=1, role=role,
        transformers_version="4.26", pytorch_version="1.13", py_version="py39",
        hyperparameters=dict(hyperparameters, epochs=epochs))
    huggingface_estimator.fit({"train": f"{prefix}/train", "test": f"{prefix}/test"})
"""

HUGGING_FACE = StandIn(
    {"src/train.py": HUGGING_FACE_SCRIPT, "launch.py": HUGGING_FACE_NOTEBOOK},
    {
        "datasets.py": "import os\n\ndef load_from_disk(path):\n    return sorted(os.listdir(path))\n",
        "transformers.py": """\
import os

class TrainingArguments:
    def __init__(self, **options):
        self.__dict__.update(options)

class Trainer:
    def __init__(self, model, args, train_dataset):
        self.model = model

    def train(self):
        pass

    def save_model(self, folder):
        with open(os.path.join(folder, "config.json"), "w") as file:
            file.write("{}")
""",
    },
    {
        "name": "huggingface-pytorch-training",
        "source_dir": "src",
        "entry_point": "train.py",
        "hyperparameters": {
            "epochs": 1,
            "train_batch_size": 32,
            "model_name": "distilbert-base-uncased",
        },
        "resources": {"instance_count": 1, "instance_type": {"sagemaker": "ml.p3.2xlarge"}},
        "environment": {
            "framework": "huggingface",
            "version": "4.26.0",
            "base": "pytorch1.13.1",
            "python": "3.9",
        },
        "inputs": {
            "train": {"sagemaker": "s3://bucket/train", "local": "text", "mode": "download"},
            "test": {"sagemaker": "s3://bucket/test", "local": "text", "mode": "download"},
        },
    },
)
"""Hugging Face: the notebook that fine-tunes a model with the Trainer."""

AWS = {"smddp": SMDDP, "smp": SMP, "hugging face": HUGGING_FACE}
"""Started by scripts and notebooks that use the SDK."""

AZURE = {
    "cifar": CIFAR,
    "deepspeed": DEEPSPEED,
    "autotuning": AUTOTUNING,
    "tensorflow": TENSORFLOW,
}
"""Started by job files."""
