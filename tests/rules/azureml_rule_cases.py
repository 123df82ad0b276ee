"""For every Azure ML rule a job that breaks it, the nearest one that does not, and a part of the hint."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import Any

import cloudtrain as ct
from cloudtrain.machines.overlay import read_overlay
from cloudtrain.targets.azureml.settings import AzureMLAccount
from tests.hints import suggested

SUBSCRIPTION = "11111111-2222-3333-4444-555555555555"
CLIENT = "99999999-2222-3333-4444-555555555555"
STORE = "azureml://datastores/workspaceblobstore/paths"
BLOB = "https://account.blob.core.windows.net/data/x"
REGISTRY = "azureml://registries/azureml/environments"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIExampleExampleExample me@host"

FILES = {"train.py": "", "requirements.txt": "horovod\n"}


def account(
    subscription: str = SUBSCRIPTION, group: str = "research", name: str = "ws", **more: Any
) -> AzureMLAccount:
    return AzureMLAccount(subscription, group, name, **more)


ACCOUNT = account()


@dataclass(frozen=True)
class Case:
    """A job, its target, its account and its files; small defaults: one serverless A100 for an hour."""

    job: dict[str, Any] = field(default_factory=dict)
    target: dict[str, Any] = field(default_factory=dict)
    account: AzureMLAccount = ACCOUNT
    files: dict[str, str] = field(default_factory=lambda: FILES)

    @property
    def training_job(self) -> ct.TrainingJob:
        fields = {
            "name": "job",
            "entry_point": None if "command" in self.job else "train.py",
            "resources": on(ONE_GPU),
            "environment": {"framework": "pytorch"},
            "max_runtime": "1h",
        } | self.job
        return ct.TrainingJob(**{key: value for key, value in fields.items() if value is not None})


def job(**fields: Any) -> Case:
    return Case(fields)


def settings(**fields: Any) -> Case:
    """The small job with settings of the target."""
    return Case({}, fields)


def overrides(**fields: Any) -> Case:
    return Case({"azureml_overrides": fields})


def on(instance_type: str, count: int = 1, **more: Any) -> dict[str, Any]:
    return {"instance_type": {"azureml": instance_type}, "instance_count": count} | more


def image(name: str, **more: Any) -> dict[str, Any]:
    return {"image": {"azureml": name}} | more


def curated(name: str) -> dict[str, str]:
    return {"azureml": f"{REGISTRY}/{name}/versions/1"}


def variables(**values: str) -> dict[str, Any]:
    return {"framework": "pytorch", "variables": values}


def tensorflow(**more: Any) -> dict[str, Any]:
    """TensorFlow on CPU instances unless the case says otherwise."""
    return {
        "distribution": {"type": "tensorflow"} | more,
        "environment": {"framework": "tensorflow"},
    }


def retires(days: int) -> AzureMLAccount:
    """An account whose owner has written into `instances.toml` that a type goes in so many days."""
    day = str(date.today() + timedelta(days=days))
    return account(overlay=read_overlay({"azureml": {ONE_GPU: {"retired": day}}}, "instances.toml"))


ONE_GPU, FOUR_GPUS, EIGHT_GPUS = (
    "Standard_NC24ads_A100_v4",
    "Standard_NC96ads_A100_v4",
    "Standard_ND96isr_H100_v5",
)
ARM, AMD, CPU = "Standard_ND128isr_NDR_GB200_v6", "Standard_ND96isr_MI300X_v5", "Standard_E8ds_v4"
TORCH, MPI, NONE = {"type": "torch"}, {"type": "mpi"}, {"type": "none"}
TWO_H100 = {"resources": on(EIGHT_GPUS, 2, shm_size="64g"), "distribution": TORCH}
PS = {"strategy": "parameter_server"}
LITERAL = {"note": {"value": "it's"}}

ACCOUNT_CASES: dict[str, tuple[Case, Case, str]] = {
    "AZ101": (
        Case(account=account(name="WORKSPACE", missing=("workspace",))), Case(), '`workspace = "NAME"` under `[azureml]`',
    ),
    "AZ102": (Case(account=account(subscription="My Subscription")), Case(), "az account show"),
    "AZ103": (settings(compute="gpu_cluster"), settings(compute="gpu-cluster"), "az ml compute list"),
    "AZ104": (settings(compute="gpu", job_tier="standard"), settings(job_tier="standard"), "remove `job_tier`"),
    "AZ105": (
        Case({"azureml_overrides": {"queueSettings": {"jobTier": "Spot"}}}, {"compute": "gpu"}),
        overrides(queueSettings={"jobTier": "Spot"}),
        "name a cluster of the tier `low_priority` and remove the tier here, or remove `compute`",
    ),
    "AZ106": (
        job(resources=None, environment=curated("x")), job(environment=curated("x")), "instance_type: {azureml: Standard_",
    ),
    "AZ107": (settings(locations=("West Europe",)), settings(locations=("westeurope",)), 'locations = ["westeurope"]'),
    "AZ108": (
        Case(TWO_H100, {"max_instance_count": 1}), Case(TWO_H100, {"max_instance_count": 2}), "`max_instance_count` to 2",
    ),
}  # fmt: skip

BODY_CASES: dict[str, tuple[Case, Case, str]] = {
    "AZ111": (overrides(isArchived="no"), overrides(isArchived=False), ""),
    "AZ112": (
        overrides(resources={"shm_size": "8g"}), overrides(resources={"shmSize": "8g"}), suggested("shmSize"),
    ),
    "AZ113": (
        overrides(properties={"cloudtrain.run": "mine"}), overrides(properties={"mine": "1"}), "remove `cloudtrain.run`",
    ),
    "AZ114": (
        job(tags={f"tag{number}": "x" for number in range(51)}),
        job(tags={f"tag{number}": "x" for number in range(50)}),
        "remove 1 of them",
    ),
    "AZ115": (job(description="x" * 5001), job(description="x" * 5000), "shorten it"),
    "AZ116": (settings(experiment="my experiment"), settings(experiment="my-experiment"), 'experiment = "my-experiment"'),
    "AZ117": (job(resources=on(ONE_GPU) | {"volume_size": "100g"}), job(), "a larger disk"),
    "AZ118": (
        Case(files=FILES | {f"data/{number}.txt": "" for number in range(2001)}),
        Case(files=FILES | {f"data/{number}.txt": "" for number in range(1500)}),
        ".cloudtrainignore",
    ),
    "AZ119": (
        job(outputs={f"o{number}": {} for number in range(21)}), job(outputs={f"o{n}": {} for n in range(19)}), "one folder",
    ),
}  # fmt: skip

MACHINE_CASES: dict[str, tuple[Case, Case, str]] = {
    "AZ201": (
        job(resources=on("NC24ads_A100_v4")), job(resources=on("standard_nc24ADS_a100_v4")), suggested(ONE_GPU),
    ),
    "AZ202": (job(resources=on("Standard_NC24ad_A100_v4")), job(), f"{suggested(f'{ONE_GPU}')} Or"),
    "AZ203": (
        job(resources=on("Standard_NC24s_v3", 4), distribution=TORCH),
        job(resources=on("Standard_NC24rs_v3", 4), distribution=TORCH),
        "use `Standard_ND40rs_v2` (8 x V100-32GB, 100 Gb/s of InfiniBand, $22.03 an hour), or accept Ethernet with",
    ),
    "AZ204": (
        job(resources=on("Standard_NC24r", 4), distribution=TORCH),
        job(resources=on("Standard_NC24rs_v3", 4), distribution=TORCH),
        "--ignore AZ204",
    ),
    "AZ205": (
        job(resources=on("Standard_ND96isr_B200_v6", 2), distribution=TORCH | {"processes_per_instance": 8}),
        job(resources=on("Standard_ND96isr_B200_v6"), distribution=TORCH | {"processes_per_instance": 8}),
        'under `[azureml."Standard_ND96isr_B200_v6"]`',
    ),
    "AZ206": (
        job(resources=on("Standard_NC24s_v3")), job(resources=on(FOUR_GPUS)), "use for example `Standard_NC96ads_A100_v4`",
    ),
    "AZ207": (Case(account=retires(100)), Case(account=retires(400)), "use for example"),
    "AZ208": (
        job(resources=on(ONE_GPU, gpus_per_instance=4)), job(resources=on(ONE_GPU, gpus_per_instance=1)),
        "`gpus_per_instance` to 1",
    ),
    "AZ209": (
        job(resources=on("Standard_HB120rs_v3", 101), distribution=MPI),
        job(resources=on("Standard_HB120rs_v3", 100), distribution=MPI),
        "to 100 or less",
    ),
    "AZ210": (
        overrides(resources={"instanceCount": -3}), overrides(resources={"instanceCount": 3}), "`resources.instance_count`",
    ),
    "AZ211": (
        job(resources=on("Standard_NC4as_T4_v3", 2), distribution=TORCH),
        job(resources=on("Standard_NC4as_T4_v3", 2, interconnect="ethernet"), distribution=TORCH),
        "use one `Standard_NC64as_T4_v3`",
    ),
}  # fmt: skip

DISTRIBUTION_CASES: dict[str, tuple[Case, Case, str]] = {
    "AZ301": (
        Case({"distribution": TORCH, "azureml_overrides": {"distribution": {"processCountPerInstance": 0}}}),
        Case({"distribution": TORCH, "azureml_overrides": {"distribution": {"processCountPerInstance": 1}}}),
        "`distribution.processes_per_instance`",
    ),
    "AZ302": (
        Case({"distribution": MPI, "azureml_overrides": {"distribution": {"processCountPerInstance": None}}}),
        Case({"distribution": TORCH, "azureml_overrides": {"distribution": {"processCountPerInstance": None}}}),
        "processes_per_instance` to 1",
    ),
    "AZ303": (
        Case(tensorflow() | {"azureml_overrides": {"distribution": {"workerCount": "two"}}}),
        Case(tensorflow() | {"azureml_overrides": {"distribution": {"workerCount": 1}}}),
        "`distribution.workers`",
    ),
    "AZ304": (
        Case(tensorflow(**PS, parameter_servers=3, workers=9) | {"resources": on(CPU, 2)}),
        Case(tensorflow(**PS, parameter_servers=2, workers=9) | {"resources": on(CPU, 2)}),
        "`resources.instance_count` to 12",
    ),
    "AZ305": (
        Case(tensorflow(workers=4) | {"resources": on(FOUR_GPUS, 2)}),
        Case(tensorflow(workers=4) | {"resources": on(CPU, 2)}),
        "`resources.instance_count` to 4",
    ),
    "AZ306": (
        Case(tensorflow(workers=3) | {"resources": on(CPU, 4)}),
        Case(tensorflow(workers=4) | {"resources": on(CPU, 4)}),
        "`resources.instance_count` to 3",
    ),
    "AZ307": (
        Case(TWO_H100 | {"distribution": {"type": "deepspeed", "launch": "launcher", "launcher_options": "--autotuning tune"}}),
        Case(TWO_H100 | {"distribution": {"type": "deepspeed", "launch": "launcher"}}),
        "`resources.instance_count` to 1",
    ),
    "AZ308": (
        job(resources=on(CPU), distribution={"type": "deepspeed"}), job(resources=on(CPU), distribution=TORCH), "--gpu A100",
    ),
    "AZ309": (
        job(distribution=TORCH, environment={"framework": "tensorflow"}),
        job(distribution=TORCH, environment={"framework": "tensorflow", "requirements": "requirements.txt"}),
        "framework: pytorch",
    ),
    "AZ310": (job(distribution={"type": "ray"}), job(distribution=TORCH), "remove `distribution`"),
    "AZ321": (
        job(resources=on(EIGHT_GPUS)), job(resources=on(EIGHT_GPUS), distribution=TORCH), "`distribution: {type: torch}`",
    ),
    "AZ322": (
        job(distribution=TORCH | {"processes_per_instance": 2}),
        job(resources=on(CPU), distribution=TORCH | {"processes_per_instance": 2}),
        "`distribution.processes_per_instance` to 1",
    ),
    "AZ323": (
        job(distribution=MPI | {"processes_per_instance": 2}),
        job(resources=on(FOUR_GPUS), distribution=MPI | {"processes_per_instance": 4}),
        "`distribution.processes_per_instance` to 1",
    ),
    "AZ324": (job(distribution=MPI), job(resources=on(FOUR_GPUS), distribution=MPI), "more instances, or a type with more GPUs"),
}  # fmt: skip

TIME_CASES: dict[str, tuple[Case, Case, str]] = {
    "AZ401": (overrides(limits={"timeout": "-PT5S"}), overrides(limits={"timeout": "PT1H30M"}), "max_runtime: 2h"),
    "AZ402": (job(max_runtime="59s"), job(max_runtime="60s"), "`1m` or more"),
    "AZ403": (job(max_runtime="22d"), job(max_runtime="21d"), "at most `21d`"),
    "AZ411": (job(max_runtime=None), job(max_runtime=None, resources=on("Standard_NC4as_T4_v3")), "max_runtime: 4h"),
    "AZ412": (
        Case({"max_runtime": "10h"}, {"max_cost": 20}), Case({"max_runtime": "5h"}, {"max_cost": 20}),
        "`max_runtime` to at most `5h26m",
    ),
    "AZ413": (
        Case({"resources": on("Standard_ND96isr_H200_v5"), "distribution": TORCH}, {"max_cost": 20}),
        settings(max_cost=20),
        '`[azureml."Standard_ND96isr_H200_v5"]`',
    ),
}  # fmt: skip

DATA_CASES: dict[str, tuple[Case, Case, str]] = {
    "AZ501": (
        Case({"command": "cat ${{inputs.train}}", "inputs": {"train": {"azureml": "azureml:mnist:1"}},
              "azureml_overrides": {"command": "cat ${{inputs.trian}}"}}),
        Case({"command": "cat ${{inputs.train}}", "inputs": {"train": {"azureml": "azureml:mnist:1"}}}),
        suggested("inputs.train"),
    ),
    "AZ502": (
        overrides(outputs={"bad-key": {"jobOutputType": "uri_folder"}}),
        overrides(outputs={"good_key": {"jobOutputType": "uri_folder"}}),
        "write `bad_key`",
    ),
    "AZ503": (
        job(command="python train.py", inputs={"train": {"azureml": "azureml:mnist:1"}}),
        job(command="python train.py $AZURE_ML_INPUT_train", inputs={"train": {"azureml": "azureml:mnist:1"}}),
        "`${{inputs.train}}`",
    ),
    "AZ504": (
        job(inputs=LITERAL, hyperparameters={"note": "${{inputs.note}}"}),
        job(inputs={"note": {"value": 'a "b" $c'}}, hyperparameters={"note": "${{inputs.note}}"}),
        "without quotes",
    ),
    "AZ505": (
        job(inputs={"train": {"azureml": "azureml:mnist:1", "shard": True}}),
        job(inputs={"train": {"azureml": "azureml:mnist:1"}}),
        "`RANK`",
    ),
    "AZ506": (
        job(outputs={"model": {"azureml": "azureml:mnist:1"}}), job(outputs={"model": {"azureml": f"{STORE}/model"}}),
        "`asset_name: mnist`",
    ),
    "AZ507": (
        job(inputs={"train": {"azureml": "azureml://datastore/blobs/paths/x"}}),
        job(inputs={"train": {"azureml": "azureml://datastores/blobs/paths/x"}}),
        f"{STORE}/PATH",
    ),
    "AZ509": (
        job(outputs={"model": {"asset_name": "my model"}}), job(outputs={"model": {"asset_name": "my-model"}}),
        "asset_name: my-model",
    ),
    "AZ510": (
        job(inputs={"train": {"azureml": f"{STORE}/x", "access": "rw"}}), job(inputs={"train": {"azureml": f"{STORE}/x"}}),
        "add an output",
    ),
    "AZ511": (
        job(spot={}, outputs={"model": {"mode": "upload"}}), job(outputs={"model": {"mode": "upload"}}), "`mode: mount`",
    ),
    "AZ512": (
        job(outputs={"model": {"azureml": f"{BLOB}?sp=rw&sig=SECRET%3D"}}), job(outputs={"model": {"azureml": BLOB}}),
        f"write `{STORE}/model`",
    ),
    "AZ513": (
        job(inputs={"train": {"azureml": f"{BLOB}?SIG=SECRET%3D"}}),
        job(inputs={"train": {"azureml": f"{BLOB}?design=1"}}),
        "azureml://datastores/NAME/paths/PATH",
    ),
    "AZ514": (
        job(inputs={"train": {"azureml": "azureml:cifar@latest"}}), job(inputs={"train": {"azureml": "azureml:cifar:1"}}),
        "write `azureml:cifar:VERSION`",
    ),
    "AZ515": (
        job(outputs={"report": {"asset_name": "r", "asset_version": "3"}}), job(outputs={"report": {"asset_name": "r"}}),
        "remove `asset_version`",
    ),
}  # fmt: skip

ENVIRONMENT_CASES: dict[str, tuple[Case, Case, str]] = {
    "AZ601": (
        job(environment={"azureml": f"{REGISTRY}/acpt-pytorch-2.8-cuda12.6/labels/latest"}),
        job(environment={"azureml": f"{REGISTRY}/acpt-pytorch-2.8-cuda12.6/versions/5"}),
        "--name acpt-pytorch-2.8-cuda12.6 --registry-name azureml`",
    ),
    "AZ602": (
        job(environment=image("mine.azurecr.io:5000/train")), job(environment=image("mine.azurecr.io:5000/train:7")),
        "mine.azurecr.io:5000/train:VERSION",
    ),
    "AZ603": (
        job(resources=on(ARM), distribution=TORCH, environment=image("mine/train:1-amd64")),
        job(resources=on(ARM), distribution=TORCH, environment=image("mine/train:1-arm64")),
        "arm64",
    ),
    "AZ604": (
        job(resources=on(ARM), distribution=TORCH),
        job(resources=on(ARM), distribution=TORCH, environment=image("mine/train:1-aarch64")),
        "docker manifest inspect",
    ),
    "AZ605": (
        job(resources=on(AMD), distribution=TORCH),
        job(resources=on(AMD), distribution=TORCH, environment=image("rocm/pytorch:rocm7.0")),
        "rocm/pytorch:TAG",
    ),
    "AZ606": (
        job(environment=image("mine/torch-cpu:2")), job(resources=on(CPU), environment=image("mine/torch-cpu:2")), "CUDA",
    ),
    "AZ607": (
        job(environment={"framework": "pytorch", "version": "2.8"}),
        job(environment={"framework": "pytorch", "version": "2.10"}),
        'write `version: "2.10"`',
    ),
    "AZ621": (
        overrides(environmentVariables={"SEED": 7}), overrides(environmentVariables={"SEED": "7"}), 'write `SEED: "7"`',
    ),
    "AZ622": (
        job(environment=variables(AZUREML_RUN_ID="mine")),
        job(environment=variables(AZUREML_COMMON_RUNTIME_USE_INTERACTIVE_CAPABILITY="True")),
        "remove `AZUREML_RUN_ID`",
    ),
    "AZ623": (
        Case(TWO_H100 | {"environment": variables(NCCL_SOCKET_IFNAME="docker0")}),
        Case(TWO_H100 | {"environment": variables(NCCL_SOCKET_IFNAME="^docker0,lo")}),
        "NCCL_SOCKET_IFNAME: eth0",
    ),
    "AZ624": (
        Case(TWO_H100 | {"environment": variables(NCCL_IB_DISABLE="1")}),
        Case(TWO_H100 | {"environment": variables(NCCL_IB_DISABLE="0")}),
        "remove `NCCL_IB_DISABLE`",
    ),
    "AZ625": (
        Case(TWO_H100 | {"environment": variables(CUDA_VISIBLE_DEVICES="0")}),
        Case(TWO_H100 | {"environment": variables(CUDA_VISIBLE_DEVICES="0,1,2,3,4,5,6,7")}),
        "`LOCAL_RANK`",
    ),
    "AZ520": (
        Case({"environment": {"framework": "pytorch", "secrets": {"HF_TOKEN": "keyvault:hf"}}}),
        Case({"environment": {"framework": "pytorch", "secrets": {"HF_TOKEN": "keyvault:vault/hf"}}}),
        "`keyvault:VAULT/hf`",
    ),
}  # fmt: skip

CONTAINER_CASES: dict[str, tuple[Case, Case, str]] = {
    "AZ701": (overrides(resources={"shmSize": "banana"}), overrides(resources={"shmSize": "64g"}), "shm_size: 64g"),
    "AZ702": (Case(TWO_H100 | {"resources": on(EIGHT_GPUS, 2)}), Case(TWO_H100), "shm_size: 64g"),
    "AZ703": (
        Case({"resources": on(ONE_GPU, shm_size="8g")}, {"docker_args": "--shm-size=16g"}),
        settings(docker_args="--shm-size=16g"),
        "remove `--shm-size`",
    ),
    "AZ704": (
        settings(docker_args=("--privileged",)), settings(docker_args=("--cap-add", "SYS_PTRACE")), "--cap-add NAME",
    ),
    "AZ711": (
        settings(services={"shell": {"type": "ssh", "ssh_public_key": "~/.ssh/id_ed25519.pub"}}),
        settings(services={"shell": {"type": "ssh", "ssh_public_key": KEY}}),
        "ssh_public_key = ",
    ),
    "AZ712": (
        settings(services={"board": {"type": "tensor_board"}}),
        settings(services={"board": {"type": "tensor_board", "log_dir": "outputs/runs"}}),
        "log_dir = ",
    ),
    "AZ721": (settings(identity="managed"), settings(identity="managed", compute="gpu"), "managed_identity_client_id"),
    "AZ722": (settings(managed_identity_client_id="trainer"), settings(managed_identity_client_id=CLIENT), "az identity show"),
    "AZ723": (
        Case({"max_runtime": None}, {"services": {"lab": {"type": "jupyter_lab"}}}),
        settings(services={"lab": {"type": "jupyter_lab"}}),
        "max_runtime: 4h",
    ),
}  # fmt: skip

CASES = {
    **ACCOUNT_CASES,
    **BODY_CASES,
    **MACHINE_CASES,
    **DISTRIBUTION_CASES,
    **TIME_CASES,
    **DATA_CASES,
    **ENVIRONMENT_CASES,
    **CONTAINER_CASES,
}
