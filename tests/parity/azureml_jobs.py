"""Jobs whose bodies are compared with those of Azure ML's SDK: every distribution, every option it has."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cloudtrain.job.processing import ProcessingJob
from cloudtrain.job.training import TrainingJob
from cloudtrain.plans.plan import Bundle, CompileContext, Plan
from cloudtrain.targets.azureml.compile.job import compile_azureml
from cloudtrain.targets.azureml.settings import AzureML, AzureMLAccount

ACCOUNT = AzureMLAccount("11111111-2222-3333-4444-555555555555", "research", "vision")
WORKSPACE = ACCOUNT.workspace_id
RUN = "parity-1a2b3c4d-1"
STORE = "azureml://datastores/workspaceblobstore/paths"
CONDA = "dependencies: [python=3.11]\n"


@dataclass(frozen=True)
class Case:
    """A job with the settings of its target. What is not said is as in `BASE`; None takes a field of it away."""

    job: dict[str, Any] = field(default_factory=dict)
    target: dict[str, Any] = field(default_factory=dict)
    kind: type[TrainingJob] | type[ProcessingJob] = TrainingJob


BASE: dict[str, Any] = {
    "name": "parity",
    "entry_point": "train.py",
    "hyperparameters": {"epochs": 3, "lr": 0.001},
    "environment": {"framework": "pytorch", "version": "2.8"},
    "resources": {"instance_type": "Standard_ND96asr_v4", "instance_count": 2},
    "inputs": {"train": {"azureml": f"{STORE}/cifar10/"}},
}


def plan_of(case: Case, account: AzureMLAccount = ACCOUNT, run_name: str = RUN) -> Plan:
    """The compiled job."""
    conda = CONDA if (case.job.get("environment") or {}).get("conda_file") else None
    context = CompileContext(run_name, Bundle("ab" * 32, 1000, 3), account, conda)
    settings = {name: value for name, value in (BASE | case.job).items() if value is not None}
    return compile_azureml(case.kind(**settings), AzureML(**case.target), context)


def machine(name: str, count: int = 1, **more: Any) -> dict[str, Any]:
    """A job on instances of that type."""
    return {"resources": {"instance_type": name, "instance_count": count, **more}}


def distribution(kind: str, **more: Any) -> dict[str, Any]:
    """A job with that distribution."""
    return {"distribution": {"type": kind, **more}}


def reads(place: str, **more: Any) -> Case:
    """A job with one input, which the script is told of."""
    return Case(
        {
            "inputs": {"train": {"azureml": place, **more}},
            "hyperparameters": {"data": "${{inputs.train}}"},
        }
    )


def literal(value: Any) -> Case:
    """A job with an input that is a plain value."""
    return Case(
        {"inputs": {"rate": {"value": value}}, "hyperparameters": {"rate": "${{inputs.rate}}"}}
    )


def writes(**output: Any) -> Case:
    """A job with one output, which the script is told of."""
    return Case({"outputs": {"logs": output}, "hyperparameters": {"logs": "${{outputs.logs}}"}})


def runs_in(**environment: Any) -> Case:
    """A job in that environment."""
    return Case({"environment": environment})


def overrides(**fields: Any) -> Case:
    """A job with fields of the body written by hand."""
    return Case({"azureml_overrides": fields})


DISTRIBUTIONS = {
    "torch": Case(distribution("torch")),
    "torch_count": Case(distribution("torch", processes_per_instance=4)),
    "torch_h100": Case({**distribution("torch"), **machine("Standard_ND96isr_H100_v5", 4)}),
    "torch_one_instance": Case({**distribution("torch"), **machine("Standard_NC24ads_A100_v4")}),
    "torch_cpu": Case({**distribution("torch"), **machine("Standard_D4s_v3", 2)}),
    "deepspeed": Case(distribution("deepspeed")),
    "deepspeed_mpi": Case(distribution("deepspeed", launch="mpi")),
    "deepspeed_launcher": Case(distribution("deepspeed", launch="launcher", launcher_options="--autotuning tune")),
    "mpi": Case(distribution("mpi")),
    "mpi_options": Case(distribution("mpi", options="-x NCCL_DEBUG=INFO --mca btl_tcp_if_include eth0")),
    "horovod": Case(distribution("horovod", processes_per_instance=2)),
    "tensorflow": Case(distribution("tensorflow")),
    "tensorflow_workers": Case(distribution("tensorflow", workers=2)),
    "tensorflow_servers": Case(
        {**distribution("tensorflow", strategy="parameter_server", parameter_servers=1), **machine("Standard_ND96asr_v4", 4)}
    ),
    "none": Case(distribution("none")),
    "ray": Case(
        distribution(
            "ray", port=6379, address="auto", include_dashboard=True, dashboard_port=8265,
            head_node_additional_args="--num-gpus=8", worker_node_additional_args="--num-gpus=4",
        )
    ),
    "ray_alone": Case(distribution("ray")),
}  # fmt: skip

MACHINES = {
    "cluster": Case({}, {"compute": "gpu-cluster"}),
    "cluster_by_id": Case({}, {"compute": f"{WORKSPACE}/computes/gpu"}),
    "cluster_one_instance": Case({"resources": None}, {"compute": "gpu-cluster"}),
    "serverless_named": Case({}, {"compute": "serverless"}),
    "spot": Case({"spot": {}}),
    "tier_basic": Case({}, {"job_tier": "basic"}),
    "tier_premium": Case({}, {"job_tier": "premium", "priority": "high"}),
    "tier_standard_low": Case({}, {"job_tier": "standard", "priority": "low"}),
    "priority_alone": Case({}, {"priority": "medium"}),
    "locations": Case({}, {"locations": ["eastus", "westus2"]}),
    "more_instances": Case({}, {"max_instance_count": 4}),
    "shared_memory": Case(machine("Standard_NC24ads_A100_v4", shm_size="64g")),
    "shared_memory_bytes": Case(machine("Standard_NC24ads_A100_v4", shm_size="1536m")),
    "docker_text": Case(
        {}, {"docker_args": "--ulimit memlock=-1 --ipc=host", "locations": ["eastus"]}
    ),
    "docker_list": Case({}, {"docker_args": ["--ulimit", "memlock=-1", "--env", "A=b c"]}),
    "compute_properties": overrides(
        resources={"properties": {"AISuperComputer": {"virtualCluster": "v", "n": 2}}}
    ),
    "more_of_a_list": overrides(resources={"maxInstanceCount": 3, "properties": {"a": "b"}}),
}

PATHS = (
    "azureml:mydata:1",
    f"{WORKSPACE}/data/mydata/versions/2",
    "azureml://registries/shared/data/mydata/versions/1",
    "azureml://subscriptions/s/resourcegroups/r/workspaces/w/datastores/d/paths/a b/é",
    "https://azuremlexamples.blob.core.windows.net/datasets/iris.csv",
    "http://example.org/x",
    "wasbs://c@a.blob.core.windows.net/x",
    "abfss://fs@a.dfs.core.windows.net/x",
    "adl://a.azuredatalakestore.net/x",
)
MODES = {
    "mount": {"mode": "mount"},
    "download": {"mode": "download"},
    "direct": {"mode": "direct"},
    "mltable_mount": {"mode": "eval_mount", "type": "mltable"},
    "mltable_download": {"mode": "eval_download", "type": "mltable"},
    "file": {"type": "uri_file"},
    "mlflow": {"type": "mlflow_model"},
    "custom": {"type": "custom_model", "mode": "download"},
    "triton": {"type": "triton_model"},
}
PYTHON_ALONE = {
    "input_written_to": reads(f"{STORE}/x", mode="mount", access="rw"),
    "folder_eval_mount": reads(f"{STORE}/x", mode="eval_mount"),
    "folder_eval_download": reads(f"{STORE}/x", mode="eval_download"),
}
"""The schema of the YAML has no word for these modes: loading them is an error."""

INPUTS = {
    **{f"path_{number}": reads(path) for number, path in enumerate(PATHS)},
    **{f"input_{name}": reads(f"{STORE}/x", **fields) for name, fields in MODES.items()},
    "input_model": reads("azureml:resnet:4", type="mlflow_model"),
    **PYTHON_ALONE,
    "literal_text": literal("abc"),
    "literal_number": literal(1e-4),
    "literal_whole": literal(3),
    "literal_true": literal(True),
    "literal_like_a_number": literal("1e-4"),
    "literal_like_a_path": literal("azureml:x:1"),
    "literal_hostile": literal("a 'b' \"c\" $d `e` {f: g} # é\u2028\x85\ufeff\t"),
    "no_inputs": Case({"inputs": None}),
}

OUTPUTS = {
    "output_plain": writes(),
    "output_upload": writes(mode="upload", type="uri_file"),
    "output_direct": writes(mode="direct", azureml=f"{STORE}/d/"),
    "output_mount": writes(mode="mount", azureml=f"{STORE}/ckpt/"),
    "output_table": writes(type="mltable"),
    "output_model": writes(type="mlflow_model"),
    "output_asset": writes(type="custom_model", asset_name="my-model", asset_version="2"),
    "output_asset_next": writes(asset_name="my-data"),
    "checkpoint": Case(
        {"checkpoint": {"keep": 2}, "hyperparameters": {"checkpoints": "${{checkpoint}}"}}
    ),
    "checkpoint_place": Case({"checkpoint": {"azureml": f"{STORE}/runs/a/"}}),
}

ENVIRONMENTS = {
    "environment_named": runs_in(azureml="azureml:my-env:3"),
    "environment_registry": runs_in(
        azureml="azureml://registries/azureml/environments/acpt-pytorch-2.8-cuda12.6/versions/7"
    ),
    "environment_by_id": runs_in(azureml=f"{WORKSPACE}/environments/mine/versions/1"),
    "environment_tensorflow": runs_in(framework="tensorflow"),
    "environment_image": runs_in(
        image={"azureml": "mcr.microsoft.com/azureml/openmpi4.1.0-ubuntu22.04"}
    ),
    "environment_conda": runs_in(
        image={"azureml": "example.azurecr.io/base:1"}, conda_file="conda.yml"
    ),
    "requirements": runs_in(framework="pytorch", version="2.8", requirements="my requirements.txt"),
    "variables": runs_in(
        framework="pytorch",
        variables={
            "N": "1",
            "ON": "true",
            "EMPTY": "",
            "LATIN": "é ü",
            "LINES": "a\nb\n",
            "RATE": "1e-4",
            "AT": "12:30",
        },
    ),
}

IDENTITIES = {
    "identity_user": Case({}, {"identity": "user"}),
    "identity_token": Case({}, {"identity": "aml_token"}),
    "identity_managed": Case({}, {"identity": "managed"}),
    "identity_client": Case(
        {}, {"managed_identity_client_id": "00000000-0000-0000-0000-000000000001"}
    ),
    "identity_object": overrides(identity={"identityType": "Managed", "objectId": "o"}),
}

SERVICES = {
    "service_ssh": Case(
        {},
        {
            "services": {
                "shell": {"type": "ssh", "ssh_public_key": "ssh-rsa AAA", "all_instances": True}
            }
        },
    ),
    "service_board": Case(
        {}, {"services": {"board": {"type": "tensor_board", "log_dir": "outputs/runs"}}}
    ),
    "service_lab": Case(
        {},
        {
            "services": {
                "lab": {"type": "jupyter_lab"},
                "code": {"type": "vs_code", "all_instances": True},
            }
        },
    ),
    "service_port": overrides(
        services={
            "lab": {"jobServiceType": "JupyterLab", "port": 8888, "properties": {"a": "b"}},
            "board": {"jobServiceType": "TensorBoard", "properties": {"logDir": "x", "more": "y"}},
        }
    ),
}

ABOUT = {
    "names": Case({"description": "two\nlines: é # \"quoted\""}, {"display_name": "My job: 1", "experiment": "vision"}),
    "tags": Case({"tags": {"team": "x", "yes": "no", "1": "2", "a: b": "- c", "empty": ""}}),
    "limit_90s": Case({"max_runtime": "90s"}),
    "limit_2h": Case({"max_runtime": "2h"}),
    "limit_1d": Case({"max_runtime": "1d"}),
    "limit_21d": Case({"max_runtime": "21d"}),
    "limit_odd": Case({"max_runtime": 93784}),
    "command": Case({"entry_point": None, "hyperparameters": None, "command": "set -e\npython a.py --data ${{inputs.train}}\n\techo 'x'"}),
    "hostile_values": Case({"hyperparameters": {"a": "it's \"$HOME\" `x`; #", "b": "line\nline", "c": " é\u2028 ", "d": "", "e": "--x", "f": "{x.y}"}}),
    "parent": overrides(parentJobName="parent"),
    "no_code": overrides(codeId=None),
    "more_properties": overrides(properties={"owner": "me"}, tags={"a": "b"}),
    "processing": Case(
        {
            "entry_point": "prep.py", "outputs": {"volumes": {}}, "environment": {"azureml": "azureml:base:3"},
            "inputs": {"raw": {"azureml": "azureml:raw:1", "shard": True}}, "hyperparameters": {"raw": "${{inputs.raw}}"},
        },
        kind=ProcessingJob,
    ),
    "everything": Case(
        {
            **distribution("torch"),
            **machine("Standard_ND96asr_v4", 2, shm_size="64g"),
            "inputs": {"train": {"azureml": f"{STORE}/x", "mode": "download"}, "rate": {"value": 0.1}},
            "outputs": {"logs": {"mode": "upload"}},
            "checkpoint": {},
            "max_runtime": "1d",
            "description": "all of it",
            "tags": {"team": "x"},
        },
        {
            "experiment": "exp", "display_name": "all", "job_tier": "premium", "priority": "high", "identity": "user",
            "docker_args": "--ipc=host", "locations": ["eastus"], "max_instance_count": 4,
            "services": {"shell": {"type": "ssh", "ssh_public_key": "ssh-rsa AAA"}},
        },
    ),
}  # fmt: skip

CASES = DISTRIBUTIONS | MACHINES | INPUTS | OUTPUTS | ENVIRONMENTS | IDENTITIES | SERVICES | ABOUT
