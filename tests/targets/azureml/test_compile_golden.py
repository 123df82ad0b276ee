"""The bodies that azure-ai-ml 1.35.2 made offline of its own `command(...)` are those of our plans, whole.

Every difference that there is stands in `as_ours`, with its reason, or in the case (`adds`). What the SDK lets through
and no service could run is stopped here; those jobs are in `STOPPED`. Sweeps, of which a recording exists as well, are
no part of cloudtrain.
"""

from __future__ import annotations

import json
import re
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

import cloudtrain as ct
from cloudtrain.code.tree import scan
from cloudtrain.errors import JobError
from cloudtrain.plans.plan import Bundle, CompileContext, Plan
from cloudtrain.rules.engine import check_plan
from cloudtrain.targets.azureml.compile.job import INFINIBAND, compile_azureml
from cloudtrain.targets.azureml.settings import AzureMLAccount
from tests.rules.subjects import subject_of as make_subject

FOLDER = Path(__file__).parents[2] / "golden" / "azureml"

ACCOUNT = AzureMLAccount("s", "r", "w")
WORKSPACE = ACCOUNT.workspace_id
BUNDLE = Bundle("c0de" * 16, 1000, 3)
RUN = "job-1"
STORE = "azureml://datastores/workspaceblobstore/paths"

LOCAL = ("local_file", "local_rel")
"""Inputs of the recording `inputs_all` that a plan cannot have, because they would be uploaded first. `STOPPED` has
them."""


@dataclass(frozen=True)
class Case:
    """The job that gives the recorded body, and the settings of its target. What is not said is as in `JOB`."""

    job: dict[str, Any] = field(default_factory=dict)
    target: dict[str, Any] = field(default_factory=dict)
    adds: dict[str, str] = field(default_factory=dict)
    """Environment variables that several instances need and the SDK leaves to the user."""


JOB: dict[str, Any] = {
    "name": "exp",
    "entry_point": "train.py",
    "environment": {"framework": "pytorch", "version": "2.8"},
}
CLUSTER = {"compute": "gpu-cluster", "display_name": "job one"}
SERVERLESS = {"display_name": "job one"}


def on(count: int, kind: str | None = None, **more: Any) -> dict[str, Any]:
    """Resources."""
    return {
        "resources": {"instance_count": count, **({"instance_type": kind} if kind else {}), **more}
    }


def starts(kind: str, **more: Any) -> dict[str, Any]:
    """A distribution."""
    return {"distribution": {"type": kind, **more}}


def data(kind: str, place: str, **more: Any) -> dict[str, Any]:
    """An input."""
    return {"azureml": place, "type": kind, **more}


TORCH_2X8 = {**starts("torch", processes_per_instance=8), **on(2)}

INPUTS = {
    "abfss": data("uri_folder", "abfss://fs@acct.dfs.core.windows.net/x"),
    "asset_latest": data("uri_folder", "azureml:mydata@latest"),
    "asset_v": data("uri_folder", "azureml:mydata:1"),
    "custom_model": data("custom_model", "azureml://registries/azureml/models/x/versions/1"),
    "lit_bool": {"value": True},
    "lit_float": {"value": 1e-4},
    "lit_int": {"value": 3},
    "lit_str": {"value": "abc"},
    "mlflow_model": data("mlflow_model", "azureml:m:1"),
    "mltable_eval_dl": data("mltable", f"{STORE}/t/", mode="eval_download"),
    "mltable_eval_mount": data("mltable", f"{STORE}/t/", mode="eval_mount"),
    "triton_model": data("triton_model", "azureml:t:1"),
    "uri_file_https": data(
        "uri_file", "https://azuremlexamples.blob.core.windows.net/datasets/iris.csv"
    ),
    "uri_folder_direct": data("uri_folder", "wasbs://c@a.blob.core.windows.net/x", mode="direct"),
    "uri_folder_dl": data("uri_folder", f"{STORE}/data/", mode="download"),
    "uri_folder_ro": data("uri_folder", f"{STORE}/data/", mode="mount"),
    "uri_folder_rw": data("uri_folder", f"{STORE}/data/", mode="mount", access="rw"),
}
OUTPUTS = {
    "ckpt": {"azureml": f"{STORE}/ckpt/", "mode": "mount"},
    "cm": {"type": "custom_model", "asset_name": "my-model", "asset_version": "2"},
    "direct": {"azureml": f"{STORE}/d/", "mode": "direct"},
    "f": {"type": "uri_file"},
    "mdl": {"type": "mlflow_model"},
    "named": {"asset_name": "asset-name"},
    "tbl": {"type": "mltable"},
    "up": {"mode": "upload"},
}
SERVICES = {
    "jl": {"type": "jupyter_lab", "all_instances": True},
    "ssh": {"type": "ssh", "all_instances": True, "ssh_public_key": "ssh-rsa AAA"},
    "tb": {"type": "tensor_board", "log_dir": "outputs/runs"},
    "vs": {"type": "vs_code"},
}
RAY = {
    "distributionType": "Ray", "port": 6379, "includeDashboard": True, "dashboardPort": 8265,
    "headNodeAdditionalArgs": "--num-gpus=8",
}  # fmt: skip

CASES = {
    "single_node": Case(),
    "env_named_version": Case({"environment": {"azureml": "azureml:my-env:3"}}),
    "pytorch_2x8": Case(
        {
            **starts("torch", processes_per_instance=8),
            **on(2, shm_size="64g"),
            "environment": JOB["environment"] | {"variables": {"NCCL_DEBUG": "INFO", "N": "1", "B": "true"}},
            "max_runtime": "1d",
            "description": "d",
            "tags": {"team": "x"},
            "azureml_overrides": {"properties": {"p": "1"}},
        }
    ),
    "pytorch_2x8_dict": Case(TORCH_2X8),
    "pytorch_2x8_dict_caps": Case(TORCH_2X8),
    "serverless_h100_2x8": Case(
        {**starts("torch"), **on(2, "Standard_ND96isr_H100_v5")}, SERVERLESS, adds=INFINIBAND
    ),
    "serverless_explicit": Case(on(1, "Standard_NC24ads_A100_v4"), SERVERLESS | {"compute": "serverless"}),
    "serverless_spot": Case({**on(1, "Standard_NC24ads_A100_v4"), "spot": {}}, SERVERLESS),
    "queue_priority_low": Case({}, CLUSTER | {"job_tier": "standard", "priority": "low"}),
    "mpi_4x4": Case({**starts("mpi", processes_per_instance=4), **on(4)}),
    "deepspeed_pytorch": Case(
        {
            **starts("deepspeed", processes_per_instance=8), **on(2), "entry_point": None,
            "command": "python train.py --deepspeed --deepspeed_config ds_config.json",
        }
    ),
    "deepspeed_mpi": Case(
        {
            **starts("deepspeed", launch="mpi", processes_per_instance=8), **on(2), "entry_point": None,
            "command": "python train.py --deepspeed --deepspeed_mpi --deepspeed_config ds_config.json",
        },
        adds={"NCCL_SOCKET_IFNAME": "eth0"},
    ),
    "deepspeed_launcher_hostfile": Case(
        {
            **TORCH_2X8, "entry_point": None,
            "command": "bash start-deepspeed.sh 8 --force_multi train.py --deepspeed --deepspeed_config ds_config.json",
            "environment": JOB["environment"] | {
                "variables": {
                    "AZUREML_COMPUTE_USE_COMMON_RUNTIME": "True",
                    "AZUREML_COMMON_RUNTIME_USE_INTERACTIVE_CAPABILITY": "True",
                    "AZUREML_SSH_KEY": "generated-key",
                }
            },
        }
    ),
    "tensorflow_ps": Case(
        {**starts("tensorflow", strategy="parameter_server", parameter_servers=1, workers=3), **on(4)}
    ),
    "tensorflow_workers": Case({**starts("tensorflow", workers=2), **on(2)}),
    "tensorflow_default": Case({**starts("tensorflow"), **on(2)}),
    "ray": Case({**on(2), "azureml_overrides": {"distribution": RAY}}),
    "inputs_all": Case(
        {
            "inputs": INPUTS, "entry_point": None,
            "command": "python train.py --a ${{inputs.uri_folder_ro}} --lr ${{inputs.lit_float}}",
        }
    ),
    "outputs_all": Case(
        {"outputs": OUTPUTS, "entry_point": None, "command": "python train.py --o ${{outputs.ckpt}}"}
    ),
    "unused_input": Case({"inputs": {"x": {"value": 1}}}),
    "docker_args_str": Case(on(1, shm_size="2g"), CLUSTER | {"docker_args": "--ulimit memlock=-1 --ipc=host"}),
    "docker_args_list": Case(on(1, shm_size="2g"), CLUSTER | {"docker_args": ["--ulimit", "memlock=-1"]}),
    "locations": Case(on(1, "Standard_ND40rs_v2"), SERVERLESS | {"locations": ["eastus", "westus2"]}),
    "services": Case({}, CLUSTER | {"services": SERVICES}),
    "identity_managed": Case({}, CLUSTER | {"managed_identity_client_id": "00000000-0000-0000-0000-000000000001"}),
    "identity_user": Case({}, CLUSTER | {"identity": "user"}),
    "identity_aml_token": Case({}, CLUSTER | {"identity": "aml_token"}),
    "timeout_only": Case({"max_runtime": "90s"}),
    "no_code": Case({"azureml_overrides": {"codeId": None}}),
    "no_name": Case({}, {"compute": "gpu-cluster"}),
    "parent_job": Case({"azureml_overrides": {"parentJobName": "parent"}}),
    "arm_ids": Case(
        {
            **TORCH_2X8, "environment": {"azureml": f"azureml:{WORKSPACE}/environments/e/versions/1"},
            "azureml_overrides": {"codeId": f"{WORKSPACE}/codes/c/versions/1"},
        },
        CLUSTER | {"compute": f"{WORKSPACE}/computes/gpu"},
    ),
}  # fmt: skip


def job_of(job: dict[str, Any]) -> ct.TrainingJob:
    """A job; None takes a field of `JOB` away."""
    return ct.TrainingJob(
        **{name: value for name, value in (JOB | job).items() if value is not None}
    )


def planned(job: dict[str, Any], target: dict[str, Any]) -> Plan:
    """The plan of such a job."""
    return compile_azureml(job_of(job), ct.AzureML(**target), CompileContext(RUN, BUNDLE, ACCOUNT))


def golden(name: str) -> dict[str, Any]:
    """The properties of a recorded body."""
    properties: dict[str, Any] = json.loads((FOLDER / f"{name}.rest.json").read_text())[
        "properties"
    ]
    return properties


def as_ours(theirs: dict[str, Any], *, runs_script: bool, adds: dict[str, str]) -> dict[str, Any]:
    """A recorded body with all that differs by design.

    * Offline the SDK leaves ids as the user wrote them, `./src` and `azureml:my-env:3`; its client resolves them before
      it sends the body (`tests/parity`). A plan has the whole ids from the start.
    * Values of environment variables are texts; the SDK sends numbers and truth values as they come, which the
      service's schema does not know.
    * The property `cloudtrain.run` makes the job ours.
    * A job with an `entry_point` always has an output `model`.
    * A name that nobody gave is random in the SDK, and the run's here; so is the experiment the current folder's name
      there, and the job's here.
    """
    ours = deepcopy(theirs)
    ours["codeId"] = _resolved(theirs.get("codeId"), "codes")
    ours["computeId"] = _resolved(theirs.get("computeId"), "computes")
    ours["environmentId"] = _resolved(theirs["environmentId"], "environments")
    for name, item in theirs["inputs"].items():
        if name in LOCAL:
            del ours["inputs"][name]
        elif "uri" in item:
            ours["inputs"][name]["uri"] = _resolved(
                item["uri"], "models" if "model" in name else "data"
            )
    ours["environmentVariables"] = adds | {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in theirs["environmentVariables"].items()
    }
    ours["properties"]["cloudtrain.run"] = RUN
    if runs_script:
        ours["outputs"]["model"] = {"jobOutputType": "uri_folder"}
    if theirs["displayName"] == "maroon_toe_yl6tzzfxw7":
        ours |= {"displayName": RUN, "experimentName": JOB["name"]}
    return {name: value for name, value in ours.items() if value is not None}


def _resolved(written: str | None, kind: str) -> str | None:
    if written == "./src":
        return f"{WORKSPACE}/codes/cloudtrain-{BUNDLE.sha256[:40]}/versions/1"
    if written in ("gpu-cluster", "serverless"):
        return f"{WORKSPACE}/computes/{written}"
    newest = re.fullmatch(r"(?:azureml:)?([\w-]+)@latest", written or "")
    if newest:
        return f"{WORKSPACE}/{kind}/{newest[1]}/labels/latest"
    named = re.fullmatch(r"azureml:([\w-]+):(\d+)", written or "")
    if named:
        return f"{WORKSPACE}/{kind}/{named[1]}/versions/{named[2]}"
    return (
        written.removeprefix("azureml:")
        if (written or "").startswith("azureml:/subscriptions/")
        else written
    )


@pytest.mark.parametrize("name", CASES)
def test_the_body_is_the_recorded_one(name: str) -> None:
    """The whole body, after the listed differences."""
    case = CASES[name]
    plan = planned(case.job, case.target or CLUSTER)
    runs_script = case.job.get("entry_point", "train.py") is not None
    assert plan.request == {
        "properties": as_ours(golden(name), runs_script=runs_script, adds=case.adds)
    }


ALSO_WRONG = {
    "services": {"AZ711"},  # the recording's public key is none
    "outputs_all": {"AZ515"},  # the service refuses a version, which the SDK sends
}
THEIR_NAMES = {"AZ102"}
"""The recordings name the subscription `s` and the workspace `w`, which no real ones can be called."""


@pytest.mark.parametrize("name", CASES)
def test_sense_is_not_stopped(name: str, make_source: Any) -> None:
    """A recorded job that makes sense has no error, but for what is really wrong with it."""
    tree = scan(make_source({"train.py": "", "start-deepspeed.sh": ""}))
    case = CASES[name]
    job, target = job_of(case.job), ct.AzureML(**case.target or CLUSTER)
    findings = check_plan(
        make_subject(job, target, ACCOUNT, planned(case.job, case.target or CLUSTER), tree)
    )
    errors = {finding.code for finding in findings if finding.level.value == "error"}
    assert errors - THEIR_NAMES == ALSO_WRONG.get(name, set())


@pytest.mark.parametrize(
    ("name", "environment"),
    [
        ("single_node_inline_env", {"image": "mcr.microsoft.com/azureml/openmpi4.1.0-ubuntu22.04"}),
        (
            "env_conda",
            {
                "image": "mcr.microsoft.com/azureml/openmpi4.1.0-ubuntu22.04",
                "conda_file": "conda.yml",
            },
        ),
    ],
)
def test_an_environment_of_an_image_is_the_recorded_one(
    name: str, environment: dict[str, str]
) -> None:
    """The SDK cannot compile such a job offline, but writes the environment into its YAML: image and conda file are
    those of the asset that the plan uploads, and refers to."""
    recorded = yaml.safe_load((FOLDER / f"{name}.job.yml").read_text())["environment"]
    conda = yaml.safe_dump(recorded["conda_file"]) if "conda_file" in recorded else None
    job = ct.TrainingJob(**JOB | {"environment": environment})
    plan = compile_azureml(job, ct.AzureML(**CLUSTER), CompileContext(RUN, BUNDLE, ACCOUNT, conda))
    (upload,) = [upload for upload in plan.uploads if upload.kind == "environment"]
    assert upload.content is not None
    made = json.loads(upload.content)["properties"]
    assert made["image"] == recorded["image"]
    assert yaml.safe_load(made.get("condaFile", "null")) == recorded.get("conda_file")
    assert plan.request["properties"]["environmentId"] == upload.destination


def test_nothing_is_lost_beside_a_list_of_docker_arguments() -> None:
    """The SDK's body has neither the locations nor the number of instances that the job asked for; ours has."""
    lost = golden("locations_with_docker_list")["resources"]
    assert lost == {
        "dockerArgsList": ["--privileged"],
        "instanceType": "Standard_ND40rs_v2",
        "properties": {},
    }
    target = {"docker_args": ["--privileged"], "locations": ["eastus", "westus2"]}
    ours = planned(on(1, "Standard_ND40rs_v2"), target).request["properties"]["resources"]
    assert ours == lost | {"instanceCount": 1, "locations": ["eastus", "westus2"]}


@pytest.mark.parametrize("name", ["pytorch_unknown_prop", "pytorch_unknown_prop_dict"])
def test_a_count_that_is_never_sent(name: str) -> None:
    """The SDK drops what it does not know of a distribution, here `node_count`, without a word."""
    assert golden(name)["distribution"] == {
        "distributionType": "PyTorch",
        "processCountPerInstance": 8,
    }


def test_a_count_that_is_left_to_the_service() -> None:
    """Without a count the SDK sends none, and the service starts one process on eight GPUs."""
    assert golden("pytorch_no_ppi")["distribution"] == {"distributionType": "PyTorch"}


STOPPED = {
    "pytorch_no_ppi": ({**starts("torch"), **on(2)}, CLUSTER, ("distribution.processes_per_instance",)),
    "pytorch_unknown_prop": (starts("torch", node_count=2, foo="bar"), CLUSTER, ("distribution.node_count", "distribution.foo")),
    "pytorch_wrong_type_ppi": (
        {**starts("torch", processes_per_instance="eight"), **on(-3)}, CLUSTER,
        ("distribution.processes_per_instance", "resources.instance_count"),
    ),
    "distribution_unknown_type": (starts("pytorchh"), CLUSTER, ("distribution.type",)),
    "queue_bad_tier": ({}, CLUSTER | {"job_tier": "cheap"}, ("job_tier",)),
    "missing_input": ({"hyperparameters": {"x": "${{inputs.nope}}"}}, CLUSTER, ("hyperparameters.x",)),
    "bad_input_key": ({"inputs": {"bad-key": {"value": 1}}}, CLUSTER, ("inputs.bad-key",)),
    "no_env": ({"environment": None}, CLUSTER, ("environment.framework",)),
    "no_command": ({"entry_point": None}, CLUSTER, ("entry_point",)),
    "no_command_image": (
        {"entry_point": None, "environment": {"image": "ubuntu:24.04"}}, CLUSTER, ("entry_point",)
    ),
    "env_named_label": ({"environment": {"azureml": "azureml:my-env@prod"}}, CLUSTER, ("environment.azureml",)),
    "env_named_alone": ({"environment": {"azureml": "my-env"}}, CLUSTER, ("environment.azureml",)),
    "inputs_all (local)": (
        {"inputs": {"a": data("uri_file", "./src/train.py"), "b": data("uri_folder", "./src")}}, CLUSTER,
        ("inputs.a.azureml", "inputs.b.azureml"),
    ),
    "inputs_all (label)": ({"inputs": {"a": data("uri_folder", "azureml:mydata@prod")}}, CLUSTER, ("inputs.a.azureml",)),
}  # fmt: skip
"""Recorded job to what is written for it here, and the places of all problems. The SDK builds the body of most."""


@pytest.mark.parametrize("name", STOPPED)
def test_what_the_sdk_lets_through_is_stopped(name: str) -> None:
    """The job is refused before there is a plan, with the place of each problem."""
    job, target, places = STOPPED[name]
    with pytest.raises(JobError) as caught:
        planned(job, target)
    assert {problem.dotted for problem in caught.value.problems} == set(places)


def test_code_elsewhere(tmp_path: Path) -> None:
    """Code is a folder of this machine: the SDK's body of `code_https` names an address, which nothing can run."""
    job = ct.TrainingJob(**JOB, source_dir="https://x/y.zip")
    with pytest.raises(JobError) as caught:
        ct.plan(job, ct.AzureML(**CLUSTER, subscription_id="s", resource_group="r", workspace="w"))
    assert caught.value.problems[0].dotted == "source_dir"


def test_the_machine_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`compute: local` is a job of the SDK that its service could not start; a rule stops it."""
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    where = {
        "subscription_id": "11111111-2222-3333-4444-555555555555",
        "resource_group": "rg",
        "workspace": "team",
    }
    plan = ct.plan(ct.TrainingJob(**JOB), ct.AzureML(compute="local", **where))
    assert [finding.hint for finding in plan.errors] == [
        "to run on this machine, use `--target local`"
    ]


def test_every_recording_is_looked_at() -> None:
    """No recorded body lies unused."""
    extra = {
        "locations_with_docker_list",
        "pytorch_unknown_prop",
        "pytorch_unknown_prop_dict",
        "pytorch_no_ppi",
    }
    recorded = {file.name.removesuffix(".rest.json") for file in FOLDER.glob("*.rest.json")}
    assert recorded == CASES.keys() | extra
