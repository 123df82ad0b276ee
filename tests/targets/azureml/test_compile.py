"""What a job becomes on Azure ML, part by part: environments, machines, network, tiers, data; and what is refused."""

from __future__ import annotations

import hashlib
import json
import shlex
from typing import Any

import pytest

import cloudtrain as ct
from cloudtrain.plans.plan import Bundle, CompileContext, Plan, Upload
from cloudtrain.targets.azureml.compile.job import INFINIBAND, TOPOLOGY, compile_azureml
from cloudtrain.targets.azureml.settings import AzureMLAccount

ACCOUNT = AzureMLAccount("00000000-0000-0000-0000-000000000000", "rg", "ws")
WORKSPACE = ACCOUNT.workspace_id
BUNDLE = Bundle("5" * 64, 1000, 2)
RUN = "digits-1a2b3c4d-1"
STORE = "azureml://datastores/workspaceblobstore/paths"
REGISTRY = "azureml://registries/azureml/environments"
IMAGE = "example.azurecr.io/base:1"

JOB: dict[str, Any] = {
    "name": "digits",
    "entry_point": "train.py",
    "environment": {"framework": "pytorch", "version": "2.8"},
}
A100, H100 = "Standard_ND96asr_v4", "Standard_ND96isr_H100_v5"


def plan_of(
    job: dict[str, Any],
    target: dict[str, Any] | None = None,
    conda: str | None = None,
    build: str | None = None,
) -> Plan:
    """The plan of a job; None takes a field of `JOB` away."""
    fields = {name: value for name, value in (JOB | job).items() if value is not None}
    context = CompileContext(RUN, BUNDLE, ACCOUNT, conda, build)
    return compile_azureml(ct.TrainingJob(**fields), ct.AzureML(**target or {}), context)


def body_of(
    job: dict[str, Any], target: dict[str, Any] | None = None, conda: str | None = None
) -> dict[str, Any]:
    """The properties of its body."""
    body: dict[str, Any] = plan_of(job, target, conda).request["properties"]
    return body


def on(
    kind: str | None, count: int = 1, distribution: Any = None, **variables: str
) -> dict[str, Any]:
    """A job on such instances."""
    return {
        "resources": {"instance_count": count, **({"instance_type": kind} if kind else {})},
        "distribution": distribution or {"type": "torch"},
        "environment": JOB["environment"] | {"variables": variables},
    }


def test_the_whole_body_of_a_plain_job() -> None:
    """Nothing is there that nobody asked for, but what the service's own client always sends."""
    assert plan_of({}, {"compute": "gpu"}).request == {
        "properties": {
            "jobType": "Command",
            "displayName": RUN,
            "experimentName": "digits",
            "command": "python train.py",
            "codeId": f"{WORKSPACE}/codes/cloudtrain-{'5' * 40}/versions/1",
            "environmentId": f"{REGISTRY}/acpt-pytorch-2.8-cuda12.6/labels/latest",
            "computeId": f"{WORKSPACE}/computes/gpu",
            "inputs": {},
            "outputs": {"model": {"jobOutputType": "uri_folder"}},
            "environmentVariables": {},
            "properties": {"cloudtrain.run": RUN},
            "tags": {},
            "isArchived": False,
        }
    }


def test_a_plan_is_the_same_every_time() -> None:
    """The same job, target and context give the same bytes."""
    job = {**on(H100, 2, A="1"), "hyperparameters": {"b": 1, "a": [1, 2]}, "tags": {"x": "y"}}
    assert plan_of(job).to_json() == plan_of(job).to_json()


# environments


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"framework": "pytorch"}, f"{REGISTRY}/acpt-pytorch-2.8-cuda12.6/labels/latest"),
        (
            {"framework": "pytorch", "version": "2.8.0"},
            f"{REGISTRY}/acpt-pytorch-2.8-cuda12.6/labels/latest",
        ),
        (
            {"framework": "tensorflow", "version": "2.16"},
            f"{REGISTRY}/tensorflow-2.16-cuda12/labels/latest",
        ),
        ({"azureml": "azureml:mine:3"}, f"{WORKSPACE}/environments/mine/versions/3"),
        ({"azureml": "mine:3"}, f"{WORKSPACE}/environments/mine/versions/3"),
        (
            {"azureml": f"azureml:{WORKSPACE}/environments/e/versions/1"},
            f"{WORKSPACE}/environments/e/versions/1",
        ),
        ({"azureml": f"{REGISTRY}/acpt/versions/7"}, f"{REGISTRY}/acpt/versions/7"),
        ({"azureml": "azureml:mine@latest"}, f"{WORKSPACE}/environments/mine/labels/latest"),
        ({"azureml": "mine@latest"}, f"{WORKSPACE}/environments/mine/labels/latest"),
        ({"azureml": "azureml:AzureML-sklearn-1.0:6"}, "azureml:AzureML-sklearn-1.0:6"),
        ({"azureml": "AzureML-sklearn-1.0@latest"}, "azureml:AzureML-sklearn-1.0@latest"),
        (
            {"framework": "pytorch", "azureml": "mine:3"},
            f"{WORKSPACE}/environments/mine/versions/3",
        ),
    ],
)
def test_environments_by_name(environment: dict[str, str], expected: str) -> None:
    """Curated ones by framework, registered ones by name and version, ids and registries as they are. Nothing but the
    code is uploaded for them."""
    plan = plan_of({"environment": environment})
    assert plan.request["properties"]["environmentId"] == expected
    assert [upload.kind for upload in plan.uploads] == ["code"]


def made(plan: Plan) -> Upload:
    """The environment that the plan makes."""
    (upload,) = [upload for upload in plan.uploads if upload.kind == "environment"]
    assert upload.destination == plan.request["properties"]["environmentId"]
    return upload


def test_an_image_becomes_an_environment() -> None:
    """It is an asset of ours, named by its content, which the plan holds to the byte."""
    upload = made(plan_of({"environment": {"image": {"azureml": IMAGE}}}))
    assert upload.content is not None
    assert json.loads(upload.content) == {
        "properties": {"image": IMAGE, "isAnonymous": True, "isArchived": False}
    }
    assert upload.sha256 == hashlib.sha256(upload.content.encode()).hexdigest()
    assert (
        upload.destination == f"{WORKSPACE}/environments/cloudtrain/versions/{upload.sha256[:32]}"
    )
    assert (upload.size, upload.file_count) == (len(upload.content.encode()), 1)


def test_an_image_with_a_conda_file() -> None:
    """The text of the file is part of the definition, so another text is another environment."""
    conda = "name: é\ndependencies: [python=3.11]\n"
    job = {"environment": {"image": IMAGE, "conda_file": "conda.yml"}}
    upload, other = made(plan_of(job, conda=conda)), made(plan_of(job, conda=conda + "# more\n"))
    assert upload.content is not None
    assert json.loads(upload.content)["properties"]["condaFile"] == conda
    assert upload.size == len(upload.content.encode())
    assert upload.destination != other.destination
    assert made(plan_of(job, conda=conda)) == upload


def test_an_environment_with_a_name() -> None:
    """Name, version, description and tags are the asset's; without a version it is a hash of the definition alone."""
    words = {"description": "For training", "tags": {"team": "a"}}
    named = {"image": IMAGE, "asset_name": "mine"}
    upload = made(plan_of({"environment": {**named, "asset_version": "3", **words}}))
    assert upload.destination == f"{WORKSPACE}/environments/mine/versions/3"
    assert json.loads(upload.content or "") == {
        "properties": {"image": IMAGE, "isAnonymous": False, "isArchived": False, **words}
    }
    hashed, other = (
        made(plan_of({"environment": named})),
        made(plan_of({"environment": {**named, **words}})),
    )
    assert (
        hashed.destination
        == other.destination
        == f"{WORKSPACE}/environments/mine/versions/{hashed.sha256[:32]}"
    )
    unnamed = made(plan_of({"environment": {"image": IMAGE, **words}}))
    assert json.loads(unnamed.content or "")["properties"]["tags"] == {"team": "a"}
    assert unnamed.destination != made(plan_of({"environment": {"image": IMAGE}})).destination


@pytest.mark.parametrize(
    ("environment", "field"),
    [
        ({"azureml": "mine:3", "asset_name": "x"}, "asset_name"),
        ({"framework": "pytorch", "version": "2.8", "tags": {"a": "b"}}, "tags"),
        ({"image": IMAGE, "asset_version": "3"}, "asset_version"),
    ],
)
def test_a_name_for_what_exists_already(environment: dict[str, Any], field: str) -> None:
    """Words about an asset that nobody registers are an error, and so is a version of nothing."""
    with pytest.raises(ct.JobError) as caught:
        plan_of({"environment": environment})
    assert [problem.path for problem in caught.value.problems] == [("environment", field)]


def test_an_environment_built_from_a_dockerfile() -> None:
    """The folder's content names it; the address of the folder is filled in when it is uploaded."""
    job = {"environment": {"build": "./docker/"}}
    upload, other = made(plan_of(job, build="a" * 64)), made(plan_of(job, build="b" * 64))
    assert upload.content is not None
    assert json.loads(upload.content)["properties"]["build"] == {
        "contextUri": "${{folder}}",
        "dockerfilePath": "Dockerfile",
    }
    assert upload.folder == "docker"
    assert upload.destination != other.destination


def test_an_environment_that_the_overrides_replace_is_not_made() -> None:
    """Only what the body names is uploaded."""
    plan = plan_of(
        {
            "environment": {"image": IMAGE},
            "azureml_overrides": {"environmentId": "azureml://registries/r/e", "codeId": None},
        }
    )
    assert plan.uploads == ()


# processes


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (A100, 8), (H100, 8), ("Standard_NC24ads_A100_v4", 1), ("Standard_NC48ads_A100_v4", 2), ("Standard_D4s_v3", 1),
        ("standard_nd96asr_V4", 8),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    ("distribution", "name"),
    [("torch", "PyTorch"), ("mpi", "Mpi"), ("horovod", "Mpi"), ("deepspeed", "PyTorch")],
)
def test_processes_come_from_the_catalogue(
    kind: str, expected: int, distribution: str, name: str
) -> None:
    """One for each GPU, always written; on machines without any, one."""
    body = body_of(on(kind, 2, {"type": distribution}))
    assert body["distribution"] == {"distributionType": name, "processCountPerInstance": expected}


@pytest.mark.parametrize(
    ("distribution", "expected"),
    [
        ({"type": "torch", "processes_per_instance": 3}, {"distributionType": "PyTorch", "processCountPerInstance": 3}),
        ({"type": "deepspeed", "launch": "mpi"}, {"distributionType": "Mpi", "processCountPerInstance": 8}),
        ({"type": "deepspeed", "launch": "launcher"}, {"distributionType": "PyTorch", "processCountPerInstance": 1}),
        ({"type": "tensorflow"}, {"distributionType": "TensorFlow", "parameterServerCount": 0}),
        ({"type": "tensorflow", "workers": 2}, {"distributionType": "TensorFlow", "parameterServerCount": 0, "workerCount": 2}),
        (
            {"type": "tensorflow", "strategy": "parameter_server"},
            {"distributionType": "TensorFlow", "parameterServerCount": 1, "workerCount": 3},
        ),
        (
            {"type": "tensorflow", "strategy": "parameter_server", "parameter_servers": 2, "workers": 4},
            {"distributionType": "TensorFlow", "parameterServerCount": 2, "workerCount": 4},
        ),
        ({"type": "none"}, None),
    ],
)  # fmt: skip
def test_every_distribution(distribution: dict[str, Any], expected: dict[str, Any] | None) -> None:
    """On four instances of eight GPUs. Workers beside parameter servers are counted, so that no instance gets both."""
    assert body_of(on(A100, 4, distribution)).get("distribution") == expected


def test_the_launcher_of_deepspeed() -> None:
    """It is started once on each instance, by a module of ours; its options are those that the user wrote."""
    distribution = {
        "type": "deepspeed",
        "launch": "launcher",
        "launcher_options": "--autotuning tune --x 'a b'",
    }
    line = shlex.split(
        body_of({**on(A100, 2, distribution), "hyperparameters": {"lr": 0.1}})["command"]
    )
    start = ["python", "-m", "cloudtrain.runtime.deepspeed_launcher"]
    assert line == [*start, "--autotuning", "tune", "--x", "a b", "train.py", "--lr", "0.1"]


@pytest.mark.parametrize("kind", ["mpi", "horovod"])
def test_options_of_mpirun_become_variables(kind: str) -> None:
    """Azure ML builds the mpirun line itself, so an option is the variable that Open MPI reads for it."""
    options = "-x NCCL_DEBUG=INFO -x PATH --mca btl_tcp_if_include eth0 -mca pml 'a b'"
    body = body_of({**on("Standard_D4s_v3", 2, {"type": kind, "options": options})})
    assert body["environmentVariables"] == {
        "NCCL_DEBUG": "INFO", "OMPI_MCA_btl_tcp_if_include": "eth0", "OMPI_MCA_pml": "a b",
    }  # fmt: skip


# network


@pytest.mark.parametrize("kind", [H100, "Standard_ND96isr_H200_v5", "Standard_ND40rs_v2"])
def test_variables_for_infiniband(kind: str) -> None:
    """Several instances with InfiniBand get what NCCL and UCX need."""
    assert body_of(on(kind, 2))["environmentVariables"] == INFINIBAND


@pytest.mark.parametrize(
    ("kind", "count"),
    [
        (H100, 1),
        ("Standard_NC24ads_A100_v4", 4),
        ("Standard_D4s_v3", 4),
        ("Standard_HB120rs_v3", 4),
        (None, 4),
        ("Standard_NC24r", 4),
    ],
)
def test_no_variables_without_infiniband(kind: str | None, count: int) -> None:
    """None on one instance, on Ethernet, without GPUs, with InfiniBand that NCCL cannot use, or where nobody knows."""
    distribution = {"type": "torch", "processes_per_instance": 1}
    assert body_of(on(kind, count, distribution), {"compute": "c"})["environmentVariables"] == {}


def test_mpi_may_use_infiniband_itself() -> None:
    """Under `mpi` the data may be MPI's own, so UCX is not kept to Ethernet; NCCL carries Horovod's and DeepSpeed's."""
    ucx = {"UCX_TLS", "UCX_NET_DEVICES"}
    found = body_of(on(H100, 2, {"type": "mpi"}))["environmentVariables"]
    assert found == {name: value for name, value in INFINIBAND.items() if name not in ucx}
    for distribution in ({"type": "horovod"}, {"type": "deepspeed", "launch": "mpi"}):
        assert body_of(on(H100, 2, distribution))["environmentVariables"] == INFINIBAND


def test_variables_for_infiniband_can_be_overridden() -> None:
    """The job's own go before them; with the overrides one can be taken away."""
    job = on(H100, 2, NCCL_SOCKET_IFNAME="eth1", MINE="x") | {
        "azureml_overrides": {"environmentVariables": {"UCX_TLS": None}}
    }
    expected = INFINIBAND | {"NCCL_SOCKET_IFNAME": "eth1", "MINE": "x"}
    del expected["UCX_TLS"]
    assert body_of(job)["environmentVariables"] == expected


def test_the_topology_of_the_a100_machines() -> None:
    """The file is in Azure's own images alone."""
    assert body_of(on(A100, 2))["environmentVariables"] == INFINIBAND | {"NCCL_TOPO_FILE": TOPOLOGY}
    elsewhere = on(A100, 2) | {"environment": {"azureml": "azureml:mine:1"}}
    assert body_of(elsewhere)["environmentVariables"] == INFINIBAND


def test_deepspeed_under_mpi_is_told_its_network_card() -> None:
    """DeepSpeed reads `NCCL_SOCKET_IFNAME` there without a default, on one instance too."""
    distribution = {"type": "deepspeed", "launch": "mpi"}
    body = body_of(on("Standard_NC48ads_A100_v4", 1, distribution))
    assert body["environmentVariables"] == {"NCCL_SOCKET_IFNAME": "eth0"}


# machines, tiers


def test_machines_of_a_cluster_are_its_own() -> None:
    """The type that a job expects there decides about processes and variables, and is not sent."""
    body = body_of(on(H100, 2), {"compute": "gpu"})
    assert body["resources"] == {"instanceCount": 2, "properties": {}}
    assert body["distribution"]["processCountPerInstance"] == 8
    assert body["environmentVariables"] == INFINIBAND


@pytest.mark.parametrize(
    ("target", "compute"),
    [({}, None), ({"compute": "serverless"}, f"{WORKSPACE}/computes/serverless")],
)
def test_machines_of_a_serverless_job(target: dict[str, str], compute: str | None) -> None:
    """Type and count are sent; the name of a type is written as the service has it."""
    body = body_of(on("standard_nd96isr_h100_V5", 2), target)
    assert body.get("computeId") == compute
    assert body["resources"] == {"instanceCount": 2, "instanceType": H100, "properties": {}}


def test_a_type_by_its_gpu() -> None:
    """The catalogue chooses one that has the GPUs and the network."""
    job = on(None, 2) | {
        "resources": {
            "instance_count": 2,
            "gpu": "H100",
            "gpus_per_instance": 8,
            "interconnect": "rdma",
        }
    }
    body = body_of(job)
    assert body["resources"]["instanceType"] == H100
    assert body["distribution"]["processCountPerInstance"] == 8


@pytest.mark.parametrize(
    ("size", "text"),
    [("64g", "64g"), ("64GiB", "64g"), ("1536m", "1536m"), (1000, "1000b"), ("3k", "3k")],
)
def test_shared_memory(size: Any, text: str) -> None:
    """As docker writes it, exactly."""
    assert body_of({"resources": {"shm_size": size}})["resources"]["shmSize"] == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        ("90s", "PT1M30S"),
        ("2h", "PT2H"),
        ("1d", "P1D"),
        ("25h", "P1DT1H"),
        ("21d", "P21D"),
        (93784, "P1DT2H3M4S"),
    ],
)
def test_limits(seconds: Any, text: str) -> None:
    """In the words of ISO 8601."""
    assert body_of({"max_runtime": seconds})["limits"] == {
        "jobLimitsType": "Command",
        "timeout": text,
    }


@pytest.mark.parametrize(
    ("job", "target", "expected"),
    [
        ({"spot": {}}, {}, {"jobTier": "Spot"}),
        ({"spot": {"max_wait": "1h"}}, {"compute": "serverless"}, {"jobTier": "Spot"}),
        ({"spot": {}}, {"priority": "high"}, {"jobTier": "Spot", "priority": 3}),
        ({}, {"job_tier": "basic"}, {"jobTier": "Basic"}),
        ({}, {"job_tier": "premium", "priority": "low"}, {"jobTier": "Premium", "priority": 1}),
        ({}, {"priority": "medium"}, {"priority": 2}),
        ({}, {}, None),
    ],
)
def test_tiers(
    job: dict[str, Any], target: dict[str, str], expected: dict[str, Any] | None
) -> None:
    """Spare capacity is a tier of serverless jobs."""
    assert body_of(job, target).get("queueSettings") == expected


# data


def test_checkpoints_are_an_output() -> None:
    """Of the run's own place unless the job names one; its path reaches the script, and how many it keeps."""
    job = {"checkpoint": {"keep": 5}, "hyperparameters": {"to": "${{checkpoint}}/a"}}
    body = body_of(job)
    assert body["outputs"]["checkpoint"] == {
        "jobOutputType": "uri_folder", "mode": "ReadWriteMount", "uri": f"{STORE}/cloudtrain/checkpoints/{RUN}/",
    }  # fmt: skip
    assert body["command"] == "python train.py --to ${{outputs.checkpoint}}/a"
    assert body["environmentVariables"] == {"CLOUDTRAIN_CHECKPOINT_KEEP": "5"}
    named = body_of({"checkpoint": {"azureml": f"{STORE}/mine/"}})
    assert named["outputs"]["checkpoint"]["uri"] == f"{STORE}/mine/"
    assert named["environmentVariables"] == {}


def test_a_script_has_an_output_for_its_model() -> None:
    """One that nobody declared, or the one that somebody did; a command has it where it refers to it."""
    plain = {"jobOutputType": "uri_folder"}
    command: dict[str, Any] = {"entry_point": None, "command": "python a.py"}
    assert body_of({})["outputs"] == {"model": plain}
    declared = body_of({"outputs": {"model": {"type": "mlflow_model", "mode": "upload"}}})
    assert declared["outputs"] == {"model": {"jobOutputType": "mlflow_model", "mode": "Upload"}}
    assert body_of(command)["outputs"] == {}
    assert body_of(command | {"command": "python a.py ${{outputs.model}}"})["outputs"] == {
        "model": plain
    }


def test_modes_are_sent_where_they_are_written() -> None:
    """The service's default is left to it."""
    places = {"a": {"azureml": "azureml:d:1"}, "b": {"azureml": "azureml:d:1", "mode": "mount"}}
    body = body_of({"inputs": places, "outputs": {"a": {}, "b": {"mode": "mount"}}})
    assert [body["inputs"][name].get("mode") for name in "ab"] == [None, "ReadOnlyMount"]
    assert [body["outputs"][name].get("mode") for name in "ab"] == [None, "ReadWriteMount"]


def test_models_are_found_among_models() -> None:
    """`azureml:name:version` names data or a model, depending on the type."""
    places = {
        "data": {"azureml": "azureml:x:1"},
        "model": {"azureml": "azureml:x:1", "type": "mlflow_model"},
    }
    inputs = body_of({"inputs": places})["inputs"]
    assert inputs["data"]["uri"] == f"{WORKSPACE}/data/x/versions/1"
    assert inputs["model"]["uri"] == f"{WORKSPACE}/models/x/versions/1"


# overrides


def test_overrides_are_merged_last() -> None:
    """Mappings key by key, lists and values whole; null takes a field away. What starts is what the result says."""
    job = on(A100, 2) | {
        "azureml_overrides": {
            "distribution": {"processCountPerInstance": 4},
            "tags": {"b": "2"},
            "limits": {"jobLimitsType": "Command", "timeout": "PT1H"},
            "displayName": None,
        },
        "tags": {"a": "1"},
    }
    plan = plan_of(job)
    body = plan.request["properties"]
    assert body["distribution"] == {"distributionType": "PyTorch", "processCountPerInstance": 4}
    assert body["tags"] == {"a": "1", "b": "2"}
    assert "displayName" not in body
    assert len(plan.processes) == 8
    assert ("max runtime", "1h") in plan.summary


# computes

SCOPE = WORKSPACE.partition("/workspaces/")[0]


@pytest.mark.parametrize(
    ("compute", "kind", "expected", "sent"),
    [
        ("serverless", A100, f"{WORKSPACE}/computes/serverless", A100),
        ("azureml:serverless", A100, f"{WORKSPACE}/computes/serverless", A100),
        ("gpu", A100, f"{WORKSPACE}/computes/gpu", None),
        ("k8s", "gpu-large", f"{WORKSPACE}/computes/k8s", "gpu-large"),
        (
            "virtualClusters/vc1",
            "Singularity.ND40rs_v2",
            f"{SCOPE}/virtualclusters/vc1",
            "Singularity.ND40rs_v2",
        ),
        ("azureml:virtualclusters/vc1", A100, f"{SCOPE}/virtualclusters/vc1", A100),
    ],
)
def test_every_compute(compute: str, kind: str, expected: str, sent: str | None) -> None:
    """The id that the SDK's client makes of the name, and the instance type where the compute has several."""
    body = body_of(
        on(kind, 2, {"type": "torch", "processes_per_instance": 4}), {"compute": compute}
    )
    assert (body["computeId"], body["resources"].get("instanceType")) == (expected, sent)


def test_spare_capacity_of_a_virtual_cluster() -> None:
    """It has the tiers that serverless compute has."""
    job = {**on("x", 1, {"type": "none"}), "spot": {}}
    assert body_of(job, {"compute": "virtualClusters/vc1"})["queueSettings"] == {"jobTier": "Spot"}


def test_an_identity_by_its_resource_id() -> None:
    """As the REST API has it."""
    identity = "/subscriptions/s/resourceGroups/r/providers/Microsoft.ManagedIdentity/userAssignedIdentities/me"
    body = body_of({}, {"compute": "c", "managed_identity_resource_id": identity})
    assert body["identity"] == {"identityType": "Managed", "resourceId": identity}


@pytest.mark.parametrize(
    ("on", "events"),
    [(None, ["JobCompleted", "JobFailed", "JobCancelled"]), (["failed"], ["JobFailed"])],
)
def test_mails_about_a_job(on: list[str] | None, events: list[str]) -> None:
    """In the words of the REST API."""
    given = {"emails": ["ada@example.org"], **({"on": on} if on else {})}
    body = body_of({}, {"compute": "c", "notifications": given})
    assert body["notificationSetting"] == {"emailOn": events, "emails": ["ada@example.org"]}


def test_an_output_that_is_a_triton_model() -> None:
    """The SDK takes it, and so does a job."""
    found = body_of({"outputs": {"served": {"type": "triton_model"}}})["outputs"]["served"]
    assert found == {"jobOutputType": "triton_model"}


# refusals


def mpi(options: str) -> dict[str, Any]:
    """A job under mpirun."""
    return on(A100, 2, {"type": "mpi", "options": options})


def reads(**place: str) -> dict[str, Any]:
    """A job with one input."""
    return {"inputs": {"a": place}}


D1 = "azureml:d:1"
GROUP = {"name": "a", "instance_type": "x", "instance_count": 1}
OPEN_QUOTE = {"type": "deepspeed", "launch": "launcher", "launcher_options": "'a"}
REFERRING = JOB["environment"] | {"variables": {"X": "${{inputs.a}}"}}

REFUSED: list[tuple[dict[str, Any], dict[str, Any], str, str, str]] = [
    ({"distribution": {"type": "smddp"}}, {}, "distribution.type", "SageMaker's own", "type: torch"),
    ({"distribution": {"type": "smp", "version": 2}}, {}, "distribution.type", "SageMaker's own", "FSDP2"),
    (on(None, 2), {"compute": "c"}, "distribution.processes_per_instance", "no instance type given", "resources.instance_type"),
    (on("Standard_Zz9", 2), {}, "distribution.processes_per_instance", "`Standard_Zz9` is not in", "processes_per_instance"),
    (mpi("--bind-to none"), {}, "distribution.options", "`--bind-to`", "-x NAME=VALUE"),
    (mpi("-x"), {}, "distribution.options", "needs the name of a variable", "-x NAME=VALUE"),
    (mpi("--mca btl"), {}, "distribution.options", "a name and a value", "--mca"),
    (mpi("-x 'a"), {}, "distribution.options", "No closing quotation", "--mca"),
    (on(A100, 2, OPEN_QUOTE), {}, "distribution.launcher_options", "not valid shell syntax", "close the quotes"),
    ({"resources": {"instance_groups": [GROUP]}}, {}, "resources.instance_groups", "only on SageMaker", "instance_count"),
    ({"resources": {"instance_preferences": ["a", "b"]}}, {}, "resources.instance_preferences", "only on SageMaker", "locations"),
    ({"resources": {"gpu": "H300"}}, {}, "resources.gpu", "H300", ""),
    ({"environment": {}}, {}, "environment.framework", "which environment", "framework: pytorch"),
    ({"environment": {"framework": "huggingface"}}, {}, "environment.framework", "no curated environment", "framework: pytorch"),
    ({"environment": {"framework": "pytorch", "version": "9.9"}}, {}, "environment.version", "`pytorch` 9.9", "`2.10`"),
    ({"environment": {"framework": "tensorflow", "version": ".1"}}, {}, "environment.version", "`tensorflow` .1", "`2.16`"),
    (on("Standard_NC24ads_A100_v5", 2), {},
     "resources.instance_type", "not in the catalogue", "did you mean `Standard_NC24ads_A100_v4`? Or add `processes"),
    ({"environment": {"azureml": "azureml:mine@prod"}}, {}, "environment.azureml", "names no version", "`azureml:mine:1`, or `azureml:mine@latest`, which is the only label"),
    ({"environment": {"azureml": "azureml:AzureML-x"}}, {}, "environment.azureml", "names no version", "azureml:AzureML-x:1"),
    ({"environment": {"azureml": "mine"}}, {}, "environment.azureml", "names no version", "azureml:mine:1"),
    ({"environment": {"azureml": "azureml:mine"}}, {}, "environment.azureml", "names no version", "`azureml:mine:1`"),
    ({"environment": {"azureml": "azureml:azureml:mine"}}, {}, "environment.azureml", "names no version", "`azureml:mine:1`"),
    ({"environment": {"azureml": "azureml:azureml:mine:2"}}, {}, "environment.azureml", "no version", "write `azureml:mine:2`"),
    (reads(azureml="azureml:foo"), {}, "inputs.a.azureml", "no version of a data asset", "write `azureml:foo:1`"),
    (reads(azureml="azureml:azureml:foo"), {}, "inputs.a.azureml", "no version of a data asset", "write `azureml:foo:1`"),
    (reads(azureml="azureml:azureml:foo:3"), {}, "inputs.a.azureml", "no version of a data asset", "write `azureml:foo:3`"),
    ({"environment": {"build": "docker"}}, {}, "environment.build", "no file `docker/Dockerfile`", "source_dir"),
    ({"environment": {"build": "docker", "image": IMAGE}}, {}, "environment.build", "either built", "remove one"),
    ({"environment": {"conda_file": "c.yml"}}, {}, "environment.conda_file", "needs an image", "mcr.microsoft.com"),
    ({"environment": {"image": IMAGE, "conda_file": "c.yml"}}, {}, "environment.conda_file", "no file `c.yml`", "source_dir"),
    ({"entry_point": None, "environment": {"image": IMAGE}}, {}, "entry_point", "something to run", "entry_point: train.py"),
    (reads(sagemaker="s3://b/a"), {}, "inputs.a", "no location on Azure ML", "azureml:NAME:VERSION"),
    (reads(azureml="data"), {}, "inputs.a.azureml", "Azure ML cannot read from", "`./data` uploads it"),
    (reads(azureml="azureml:d@prod"), {}, "inputs.a.azureml", "cannot read from", "`azureml:d:1`, or `azureml:d@latest`, which is the only label"),
    (reads(azureml=D1, mode="pipe"), {}, "inputs.a.mode", "only SageMaker has", "`mount`"),
    (reads(azureml=D1, mode="download", access="rw"), {}, "inputs.a.access", "cannot be written to", "mode: mount"),
    ({"checkpoint": {}, "outputs": {"checkpoint": {}}}, {}, "outputs.checkpoint", "job's checkpoints", "another name"),
    (reads(azureml=D1) | {"environment": REFERRING}, {}, "environment.variables.X", "only in the command", "AZURE_ML_INPUT_NAME"),
    ({"spot": {}}, {"compute": "gpu"}, "spot", "a setting of the cluster", "low_priority"),
    ({"spot": {}}, {"job_tier": "basic"}, "spot", "a tier of its own", "remove one"),
    ({"azureml_overrides": {"command": None}}, {}, "azureml_overrides.command", "must stay a text", "leave it out"),
    ({"azureml_overrides": {"inputs": [1]}}, {}, "azureml_overrides.inputs", "must stay a mapping", "leave it out"),
]  # fmt: skip
"""Job, target, and the place, a part of the message and a part of the hint of the problem."""


@pytest.mark.parametrize(
    ("job", "target", "place", "message", "hint"), REFUSED, ids=lambda value: str(value)[:40]
)
def test_what_cannot_be_planned(
    job: dict[str, Any], target: dict[str, Any], place: str, message: str, hint: str
) -> None:
    """The error has its place in the job, says what is wrong, and what to type instead."""
    with pytest.raises(ct.JobError) as caught:
        plan_of(job, target)
    (problem,) = caught.value.problems
    assert problem.dotted == place
    assert message in problem.message
    assert hint in (problem.hint or "")


def test_all_problems_of_inputs_at_once() -> None:
    """Not one after the other."""
    with pytest.raises(ct.JobError) as caught:
        plan_of(
            {
                "inputs": {
                    "a": {"sagemaker": "s3://b/a"},
                    "b": {"azureml": "./data"},
                    "c": {"azureml": "azureml:d:1", "mode": "pipe"},
                }
            }
        )
    assert [problem.dotted for problem in caught.value.problems] == [
        "inputs.a",
        "inputs.b.azureml",
        "inputs.c.mode",
    ]
