"""Azure ML rules at their edges: jobs that look wrong and are right, bodies that the SDK lets through, and hints that fit
their case."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as run_with
from hypothesis import strategies as st

from cloudtrain.errors import JobError
from cloudtrain.machines.overlay import read_overlay
from cloudtrain.plans.plan import Finding, Level
from cloudtrain.targets.azureml.rules.request import body_schema
from tests.examples import examples
from tests.hints import suggested
from tests.rules.azureml_rule_cases import (
    ARM,
    CASES,
    CPU,
    EIGHT_GPUS,
    FOUR_GPUS,
    KEY,
    LITERAL,
    MPI,
    ONE_GPU,
    PS,
    REGISTRY,
    STORE,
    TORCH,
    TWO_H100,
    Case,
    account,
    curated,
    image,
    job,
    on,
    overrides,
    settings,
    tensorflow,
    variables,
)
from tests.rules.test_azureml_rules import check

MakeSource = Callable[..., Path]

MNIST = {"train": {"azureml": "azureml:mnist:1"}}
PRICED = account(
    overlay=read_overlay(
        {"azureml": {"Standard_ND96isr_H200_v5": {"price": 50.0}}}, "instances.toml"
    )
)
OWN = read_overlay(
    {
        "azureml": {
            "Standard_NX8r_v9": {"vcpus": 8, "memory_gib": 64, "gpus": 1, "gpu": "H100-80GB"}
        }
    },
    "instances.toml",
)


def changed(fields: dict[str, Any], **body: Any) -> Case:
    """A job whose overrides write these parts of the body."""
    return Case({**fields, "azureml_overrides": body})


RIGHT: dict[str, tuple[str, Case]] = {
    "no workspace is known, which AZ101 says": ("AZ102", Case(account=account(name="?", missing=("workspace",)))),
    "a cluster by its whole id": (
        "AZ103", settings(compute="/subscriptions/s/resourceGroups/g/providers/m/workspaces/w/computes/gpu-cluster"),
    ),
    "serverless, said explicitly": ("AZ104", settings(compute="serverless", job_tier="standard")),
    "priority is for clusters too": ("AZ104", settings(compute="gpu", priority="high")),
    "a cluster has a type of its own": ("AZ106", settings(compute="gpu")),
    "a field of the wire that the models lack": ("AZ112", overrides(parentJobName="other", queueSettings={"priority": 1})),
    "tags of the user's own": ("AZ113", job(tags={"team": "vision"})),
    "a type of the user's own": ("AZ202", Case({"resources": on("Standard_NX8r_v9")}, account=account(overlay=OWN))),
    "one of many sizes without GPUs": ("AZ202", job(resources=on("Standard_D8s_v5"))),
    "one process of TensorFlow takes all GPUs": (
        "AZ321", job(resources=on(EIGHT_GPUS), environment={"framework": "tensorflow"}),
    ),
    "Ethernet on purpose": (
        "AZ203", job(resources=on(ONE_GPU, 2, interconnect="ethernet"), distribution=TORCH),
    ),
    "independent instances": ("AZ203", job(resources=on(ONE_GPU, 4))),
    "CPUs talk over Ethernet": ("AZ203", job(resources=on(CPU, 4), distribution=TORCH)),
    "parameter servers talk over Ethernet": (
        "AZ203", Case(tensorflow(**PS, parameter_servers=1, workers=2) | {"resources": on(FOUR_GPUS, 3)}),
    ),
    "one instance without SR-IOV": ("AZ204", job(resources=on("Standard_NC24r"), distribution=TORCH)),
    "a new size without GPUs": (
        "AZ205", job(resources=on("Standard_D8s_v9", 2), distribution=TORCH | {"processes_per_instance": 1}),
    ),
    "100 instances over Ethernet, and one more": ("AZ209", job(resources=on(CPU, 101), distribution=TORCH)),
    "a count as it should be": ("AZ210", overrides(resources={"instanceCount": 2})),
    "autotuning on one instance": (
        "AZ307",
        job(resources=on(EIGHT_GPUS), distribution={
            "type": "deepspeed", "launch": "launcher", "launcher_options": "--autotuning tune"}),
    ),
    "PyTorch for TensorFlow's environment, by the name of an image": (
        "AZ309", job(distribution=TORCH, environment=image("mine/tensorflow-and-pytorch:1")),
    ),
    "MPI has no framework of its own": ("AZ309", job(distribution=MPI)),
    "DeepSpeed's launcher takes all GPUs": (
        "AZ321", job(resources=on(EIGHT_GPUS), distribution={"type": "deepspeed", "launch": "launcher"}),
    ),
    "one process of TensorFlow without a distribution": ("AZ321", Case(tensorflow() | {"resources": on(EIGHT_GPUS)})),
    "CT502 has seen it": (
        "AZ321", job(resources=on(FOUR_GPUS, gpus_per_instance=4), distribution=TORCH | {"processes_per_instance": 2}),
    ),
    "a slice of a GPU is one": ("AZ321", job(resources=on("Standard_NV6ads_A10_v5"), distribution=TORCH)),
    "seven days of spot capacity": ("AZ403", job(spot={}, max_runtime="7d")),
    "a price of the user's own": (
        "AZ413", Case({"resources": on("Standard_ND96isr_H200_v5"), "distribution": TORCH}, {"max_cost": 100}, PRICED),
    ),
    "a script is told by the runtime": ("AZ503", job(inputs=MNIST)),
    "a value with a quote that nothing names": ("AZ504", job(inputs=LITERAL)),
    "a user's own options in one value": (
        "AZ504",
        job(command="python train.py ${{inputs.options}}", inputs={"options": {"value": "--epochs 10 --name 'a b'"}}),
    ),
    "a blob's address": ("AZ506", job(outputs={"model": {"azureml": "wasbs://c@a.blob.core.windows.net/x"}})),
    "another workspace's datastore": (
        "AZ507",
        job(inputs={"train": {"azureml":
            "azureml://subscriptions/s/resourcegroups/g/workspaces/w/datastores/blobs/paths/x"}}),
    ),
    "the newest build on purpose": ("AZ601", Case()),
    "an image by its digest": ("AZ602", job(environment=image("mine/train@sha256:" + "0" * 64))),
    "an image for both": ("AZ604", job(resources=on(ARM), environment=image("mine/train:1-amd64-arm64"))),
    "CUDA for CPUs as well": ("AZ606", job(environment=image("mine/train:cuda12-cpu"))),
    "NCCL chooses by itself": ("AZ623", Case(TWO_H100)),
    "one instance needs no network": (
        "AZ623", job(environment=variables(NCCL_SOCKET_IFNAME="lo"), distribution=TORCH),
    ),
    "InfiniBand off where there is none": (
        "AZ624",
        job(resources=on("Standard_NC64as_T4_v3", 2), distribution=TORCH, environment=variables(NCCL_IB_DISABLE="1")),
    ),
    "no GPU to show": (
        "AZ625", job(resources=on(CPU), distribution=TORCH, environment=variables(CUDA_VISIBLE_DEVICES="")),
    ),
    "shared memory by docker": ("AZ702", Case({"resources": on(EIGHT_GPUS), "distribution": TORCH}, {"docker_args": "--ipc=host"})),
    "two keys": (
        "AZ711", settings(services={"shell": {"type": "ssh", "ssh_public_key": f"{KEY}\nssh-rsa {'A' * 40}"}}),
    ),
    "a user-assigned identity": (
        "AZ721", settings(managed_identity_client_id="99999999-2222-3333-4444-555555555555"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_what_only_looks_wrong_is_left_alone(name: str, make_source: MakeSource) -> None:
    """A rule that cries wolf is ignored, also where it is right."""
    code, case = RIGHT[name]
    assert code not in {finding.code for finding in check(case, make_source)}


LET_THROUGH: dict[str, Case] = {
    "instance_count -3": overrides(resources={"instanceCount": -3}),
    "instance_count 0": overrides(resources={"instanceCount": 0}),
    "instance_count as text": overrides(resources={"instanceCount": "2"}),
    "process count 0": changed(
        {"distribution": TORCH}, distribution={"processCountPerInstance": 0}
    ),
    "process count -1": changed(
        {"distribution": TORCH}, distribution={"processCountPerInstance": -1}
    ),
    "process count as text": changed(
        {"distribution": TORCH}, distribution={"processCountPerInstance": "eight"}
    ),
    "Mpi without a count": changed(
        {"distribution": MPI}, distribution={"processCountPerInstance": None}
    ),
    "3 servers and 9 workers on 2 instances": Case(
        tensorflow(**PS, parameter_servers=3, workers=9) | {"resources": on(CPU, 2)}
    ),
    "shm_size banana": overrides(resources={"shmSize": "banana"}),
    "timeout -5": overrides(limits={"timeout": "-PT5S"}),
    "timeout 0": overrides(limits={"timeout": "PT0S"}),
    "a month for a minute": overrides(limits={"timeout": "P1M"}),
    "instance type Standard_Nope": overrides(resources={"instanceType": "Standard_Nope"}),
    "a variable that is a number": overrides(environmentVariables={"SEED": 7}),
    "a variable that is true": overrides(environmentVariables={"DEBUG": True}),
    "a tag that is a number": overrides(tags={"year": 2026}),
    "an unknown distribution": changed(
        {"distribution": TORCH}, distribution={"distributionType": "deepspeed"}
    ),
    "an unknown tier": overrides(queueSettings={"jobTier": "cheap"}),
    "a queue that is a text": overrides(queueSettings="cheap"),
    "an input that is a text": overrides(inputs={"x": "y"}),
    "a reference to nothing": overrides(command="python train.py --data ${{inputs.nope}}"),
    "a key with a hyphen": overrides(inputs={"bad-key": {"jobInputType": "literal", "value": "1"}}),
    "an unknown mode": overrides(
        inputs={"x": {"jobInputType": "uri_file", "uri": f"{STORE}/x", "mode": "Mount"}}
    ),
    "parameter servers as text": changed(tensorflow(), distribution={"parameterServerCount": "x"}),
}


@pytest.mark.parametrize("name", LET_THROUGH)
def test_what_the_sdk_lets_through_is_stopped(name: str, make_source: MakeSource) -> None:
    """An error for every body that azure-ai-ml 1.35.2 sends although nobody can have meant it."""
    assert Level.ERROR in {finding.level for finding in check(LET_THROUGH[name], make_source)}


WRONG: dict[str, tuple[str, Case, str]] = {
    "all three are missing": (
        "AZ101", Case(account=account(missing=("subscription_id", "resource_group", "workspace"))), "subscription_id = ",
    ),
    "a size for a cluster": ("AZ103", settings(compute=ONE_GPU), f'`instance_type: {{azureml: "{ONE_GPU}"}}`'),
    "this machine for a cluster": ("AZ103", settings(compute="local"), "--target local"),
    "locations of a cluster": ("AZ104", settings(compute="gpu", locations=("westeurope",)), "remove `locations`"),
    "another case in the overrides": ("AZ111", overrides(DisplayName="x"), suggested("displayName")),
    "snake case in the overrides": ("AZ112", overrides(display_name="x"), suggested("displayName")),
    "a dropped field of a distribution": (
        "AZ112", changed({"distribution": TORCH}, distribution={"nodeCount": 2}), suggested("workerCount"),
    ),
    "the mark is removed with all properties": ("AZ113", overrides(properties={"cloudtrain.run": None}), "remove"),
    "metrics": ("AZ117", job(metrics={"loss": "loss=([0-9.]+)"}), "mlflow.log_metric"),
    "an overridden type": ("AZ201", overrides(resources={"instanceType": "Nope"}), "cloudtrain instances"),
    "one larger instance": (
        "AZ203",
        job(resources=on(ONE_GPU, 2), distribution=TORCH),
        "use one `Standard_NC48ads_A100_v4` (2 x A100-80GB, $7.35 an hour), which needs no network",
    ),
    "no less memory": (
        "AZ203", job(resources=on(FOUR_GPUS, 4), distribution=TORCH), "use `Standard_ND96amsr_A100_v4` (8 x A100-80GB",
    ),
    "no less memory in one larger instance": (
        "AZ203",
        job(resources=on(FOUR_GPUS, 2), distribution=TORCH),
        "use one `Standard_ND96amsr_A100_v4` (8 x A100-80GB",
    ),
    "on a cluster, by what the job says": (
        "AZ203", Case({"resources": on(FOUR_GPUS, 2), "distribution": TORCH}, {"compute": "gpu"}), "--ignore AZ203",
    ),
    "more instances by the overrides": (
        "AZ203", changed({"distribution": TORCH}, resources={"instanceCount": 2}), "--ignore AZ203",
    ),
    "guessed to have none": (
        "AZ205",
        job(resources=on("Standard_NC96ads_B200_v6", 2), distribution=TORCH | {"processes_per_instance": 4}),
        "--interconnect infiniband` lists types with it",
    ),
    "InfiniBand that NCCL cannot use is no RDMA": (
        "AZ208", job(resources=on("Standard_NC24rs_v2", interconnect="rdma")), "use `Standard_",
    ),
    "more processes by the overrides": (
        "AZ322", changed({"distribution": TORCH}, distribution={"processCountPerInstance": 8}), "`distribution.processes_per_instance` to 1",
    ),
    "the service's own default": (
        "AZ321",
        changed({"resources": on(EIGHT_GPUS), "distribution": TORCH}, distribution={"processCountPerInstance": None}),
        "remove `distribution.processCountPerInstance` from `azureml_overrides`",
    ),
    "MPI over 100 instances on Ethernet": ("AZ209", job(resources=on(CPU, 101), distribution=MPI), "to 100 or less"),
    "a week on spot capacity": ("AZ403", job(spot={}, max_runtime="8d"), "at most `7d`"),
    "without a price": (
        "AZ411", job(resources=on("Standard_ND96isr_H200_v5"), distribution=TORCH, max_runtime=None), "max_runtime: 4h",
    ),
    "no limit is 21 days": ("AZ412", Case({"max_runtime": None}, {"max_cost": 1000}), "`max_runtime` to at most `11d"),
    "no type, no price": (
        "AZ413", Case({"resources": None, "environment": curated("x")}, {"max_cost": 10}), "on a cluster too",
    ),
    "a quote in a user's own command": (
        "AZ504", job(command="echo '${{inputs.note}}'", inputs=LITERAL), "without quotes",
    ),
    "an address with a quote": (
        "AZ504",
        job(
            inputs={"train": {"azureml": "https://host/it's", "mode": "direct"}},
            hyperparameters={"data": "${{inputs.train}}"},
        ),
        "without quotes",
    ),
    "SageMaker's name of the same machine": ("AZ201", job(resources=on("ml.p4d.24xlarge")), "write `Standard_ND96asr_v4`"),
    "EC2's name of a type without GPUs": (
        "AZ201", job(resources=on("m5.xlarge")), "`cloudtrain instances --target azureml` lists those of Azure ML",
    ),
    "a version that the series does not have": (
        "AZ202", job(resources=on("Standard_NC24s_v33")), "`cloudtrain instances --target azureml --refresh`",
    ),
    "an image that is none": ("CT207", job(environment=image("mine/Train:1")), "write `mine/train:1`"),
    "an image of another framework than it says": (
        "AZ309", job(environment=image("mine/tensorflow:2.16", framework="pytorch")), "framework: pytorch",
    ),
    "an asset without a version by the overrides": (
        "AZ507",
        overrides(inputs={"x": {"jobInputType": "uri_folder", "uri": "azureml:foo"}}),
        "write `azureml:foo:1`",
    ),
    "a checkpoint on S3": ("AZ506", job(checkpoint={"azureml": "s3://bucket/x"}), f"use `{STORE}/checkpoint`"),
    "a checkpoint with a key in its address": (
        "AZ512", job(checkpoint={"azureml": "https://a.blob.core.windows.net/c/x?sig=SECRET"}), f"write `{STORE}/checkpoint`",
    ),
    "a key that the overrides bring": (
        "AZ512",
        overrides(outputs={"o": {"jobOutputType": "uri_folder", "uri": "https://a.blob.core.windows.net/c/x?sig=SECRET"}}),
        f"write `{STORE}/o`",
    ),
    "a version of nothing": ("AZ515", job(outputs={"model": {"asset_version": "1"}}), "remove `asset_version`"),
    "a place of an output that the overrides name": (
        "AZ515",
        overrides(outputs={"o": {"jobOutputType": "uri_folder", "pathOnCompute": "/x"}}),
        "remove `pathOnCompute`",
    ),
    "a lifetime of an output": (
        "AZ515",
        overrides(outputs={"o": {"jobOutputType": "uri_folder", "autoDeleteSetting": {"value": "30d"}}}),
        "remove `autoDeleteSetting`",
    ),
    "an environment by the overrides": (
        "AZ601", overrides(environmentId=f"{REGISTRY}/x/labels/latest"), f"{REGISTRY}/x/versions/VERSION",
    ),
    "the newest of the workspace": (
        "AZ601", job(environment={"azureml": "azureml:mine@latest"}), "write `azureml:mine:VERSION`",
    ),
    "the tag latest": ("AZ602", job(environment=image("mine/train:latest")), "`mine/train:VERSION`"),
    "an Arm image for x86-64": ("AZ603", job(environment=image("mine/train:1-aarch64")), "x86_64"),
    "ROCm for NVIDIA": ("AZ605", job(environment=image("rocm/pytorch:rocm7.0")), "CUDA"),
    "a rank by the overrides": (
        "CT204",
        overrides(environmentVariables={"RANK": "0"}),
        "remove `environmentVariables.RANK` from `azureml_overrides`",
    ),
    "a rank by an option of mpirun": (
        "AZ622",
        job(resources=on(FOUR_GPUS), distribution=MPI | {"options": "-x OMPI_COMM_WORLD_RANK=0"}),
        "remove `-x OMPI_COMM_WORLD_RANK`",
    ),
    "a private key": (
        "AZ711",
        settings(services={"shell": {"type": "ssh", "ssh_public_key": "-----BEGIN OPENSSH PRIVATE KEY-----"}}),
        "ssh_public_key = ",
    ),
    "docker's options that no shell can read": ("AZ703", settings(docker_args="--label 'x"), "close the quotes"),
    "docker's options twice": (
        "AZ703", Case({"azureml_overrides": {"resources": {"dockerArgsList": ["-v"]}}}, {"docker_args": "--init"}), "one of them",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_in_another_way_is_found(name: str, make_source: MakeSource) -> None:
    """The same rules, reached by other ways, with hints that fit these."""
    code, case, hint = WRONG[name]
    found = [finding for finding in check(case, make_source) if finding.code == code]
    assert found
    assert hint in (found[0].hint or "")


def one_finding(code: str, case: Case, make_source: MakeSource) -> Finding:
    """The only finding of a code."""
    (found,) = (finding for finding in check(case, make_source) if finding.code == code)
    return found


def test_a_private_key_is_no_missing_one(make_source: MakeSource) -> None:
    """Whoever writes it must learn that the job would show it."""
    key = "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n"
    case = settings(services={"shell": {"type": "ssh", "ssh_public_key": key}})
    message = one_finding("AZ711", case, make_source).message
    assert "has a private key, which the job's page would show" in message


def test_many_keys_are_read_at_once(make_source: MakeSource) -> None:
    """A file of keys that ends with another line, which once took years to tell."""
    key = f"{KEY}\r\n\r\n" * 40 + "# the end"
    case = settings(services={"shell": {"type": "ssh", "ssh_public_key": key}})
    assert "no valid public key" in one_finding("AZ711", case, make_source).message


def test_many_network_cards_are_read_at_once(make_source: MakeSource) -> None:
    """A name in which a card's name stands again and again."""
    cards = variables(NCCL_SOCKET_IFNAME="lo" * 40 + ",eth0")
    codes = {
        finding.code for finding in check(Case(TWO_H100 | {"environment": cards}), make_source)
    }
    assert "AZ623" not in codes


def test_pinning_is_offered_for_assets_of_the_workspace_alone(make_source: MakeSource) -> None:
    """`--pin` leaves the labels of a registry."""
    own = job(environment={"azureml": "azureml:mine@latest"})
    assert "add `--pin`, or" in (one_finding("AZ601", own, make_source).hint or "")
    registered = overrides(environmentId=f"{REGISTRY}/x/labels/latest")
    assert "--pin" not in (one_finding("AZ601", registered, make_source).hint or "")


def test_a_variable_that_is_set_twice_is_found_once(make_source: MakeSource) -> None:
    """The body has that of `environment.variables`, and not that of mpirun's options."""
    distribution = MPI | {"options": "-x NCCL_IB_DISABLE=1"}
    fields = TWO_H100 | {"distribution": distribution}
    case = Case(fields | {"environment": variables(NCCL_IB_DISABLE="1")})
    path = ("environment", "variables", "NCCL_IB_DISABLE")
    assert one_finding("AZ624", case, make_source).path == path
    on_anyway = Case(fields | {"environment": variables(NCCL_IB_DISABLE="0")})
    assert "AZ624" not in {finding.code for finding in check(on_anyway, make_source)}


@pytest.mark.parametrize(
    ("compute", "kind", "more"),
    [
        ("k8s", "gpu-large", {}),
        (
            "virtualClusters/a-long-name-of-a-virtual-cluster",
            "Singularity.ND40rs_v2",
            {"job_tier": "premium"},
        ),
    ],
)
def test_types_of_attached_computes_are_no_vm_sizes(
    compute: str, kind: str, more: dict[str, str], make_source: MakeSource
) -> None:
    """A job on Kubernetes or on a virtual cluster names a type of its compute; nothing is wrong with it."""
    resources = {"instance_type": {"azureml": kind}, "instance_count": 2}
    fields = {"resources": resources, "distribution": TORCH | {"processes_per_instance": 4}}
    assert {
        finding.code for finding in check(Case(fields, {"compute": compute, **more}), make_source)
    } == set()


@pytest.mark.parametrize("code", ["AZ512", "AZ513"])
def test_a_key_in_an_address_is_not_repeated(code: str, make_source: MakeSource) -> None:
    """What a finding says may be copied into an issue or a log."""
    (found,) = (finding for finding in check(CASES[code][0], make_source) if finding.code == code)
    assert "SECRET" not in found.message + (found.hint or "")


def test_the_finding_reads_as_documented(make_source: MakeSource) -> None:
    """The example of the documentation, word by word: two sizes that differ in one letter."""
    (found,) = (
        finding
        for finding in check(
            job(resources=on("Standard_NC24s_v3", 4), distribution=TORCH), make_source
        )
        if finding.code == "AZ203"
    )
    assert (
        found.message == "`Standard_NC24s_v3` has no InfiniBand, and this job runs on 4 instances"
    )
    assert (found.level, found.path) == (Level.ERROR, ("resources", "instance_type"))


def test_overrides_are_pointed_at(make_source: MakeSource) -> None:
    """A finding about what the overrides write leads there, and not to the field that they replace."""
    case = changed(
        {"distribution": TORCH}, resources={"instanceType": "Standard_NC24r", "instanceCount": 2}
    )
    places = {finding.code: finding.path for finding in check(case, make_source)}
    assert places["AZ204"] == ("azureml_overrides", "resources", "instanceType")


_ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 5) | st.text("a'-:/$ 1", max_size=5),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["a", "b-c"]), inner, max_size=2)
    ),
    max_leaves=4,
)


def _bodies(kind: Any) -> st.SearchStrategy[Any]:
    """Values for a field of the body: mostly of its shape, with anything at the ends."""
    if isinstance(kind, dict) and "*" in kind:
        return (
            st.dictionaries(st.sampled_from(["x", "model", "b-c"]), _bodies(kind["*"]), max_size=2)
            | _ANYTHING
        )
    if isinstance(kind, dict):
        known = {name: _bodies(inner) for name, inner in kind.items()}
        return st.fixed_dictionaries({}, optional=known) | _ANYTHING
    return _ANYTHING | (st.sampled_from(kind) if isinstance(kind, list) else st.just("PT1H"))


@run_with(
    max_examples=examples(100),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    body=st.fixed_dictionaries(
        {}, optional={name: _bodies(kind) for name, kind in body_schema().items()}
    )
)
def test_overrides_may_hold_anything(body: dict[str, Any], make_source: MakeSource) -> None:
    """Whatever the overrides put into the body, the answer is a list of findings, or the compiler's own refusal."""
    case = Case({"distribution": TORCH, "azureml_overrides": body}, {"max_cost": 5})
    try:
        findings = check(case, make_source)
    except JobError:
        return
    assert all("\n" not in finding.message for finding in findings)
