"""A plan in the words of Azure's tools, as far as no SDK is needed; `tests/parity` runs the real one."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import cloudtrain as ct
from cloudtrain.errors import MissingExtra, TargetError
from cloudtrain.plans.plan import Plan
from cloudtrain.system.plugins import pip_line
from cloudtrain.targets.azureml.settings import AzureMLAccount
from tests.examples import examples
from tests.hints import one_of
from tests.parity.azureml_jobs import (
    ACCOUNT,
    CASES,
    PYTHON_ALONE,
    RUN,
    STORE,
    WORKSPACE,
    Case,
    overrides,
    plan_of,
)

YAML = "the YAML of Azure ML"
CREDENTIAL = "azure.identity.DefaultAzureCredential"


def loaded(plan: Plan) -> dict[str, Any]:
    """What a reader of YAML finds."""
    found: dict[str, Any] = yaml.safe_load(plan.to_yaml())
    return found


def calls_of(code: str, name: str) -> list[dict[str, str]]:
    """Argument to its code, for each call of `name` in the code."""
    calls = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
    return [
        {str(keyword.arg): ast.unparse(keyword.value) for keyword in call.keywords}
        for call in calls
        if ast.unparse(call.func) == name
    ]


def test_the_yaml_of_a_whole_job() -> None:
    """Every field that the body has stands there once, in the schema's words; nothing else does."""
    assert loaded(plan_of(CASES["everything"])) == {
        "$schema": "https://azuremlschemas.azureedge.net/latest/commandJob.schema.json",
        "type": "command",
        "name": RUN,
        "display_name": "all",
        "experiment_name": "exp",
        "description": "all of it",
        "command": "python train.py --epochs 3 --lr 0.001",
        "code": f"azureml:{WORKSPACE}/codes/cloudtrain-{'ab' * 20}/versions/1",
        "environment": "azureml://registries/azureml/environments/acpt-pytorch-2.8-cuda12.6/labels/latest",
        "distribution": {"type": "pytorch", "process_count_per_instance": 8},
        "resources": {
            "instance_count": 2,
            "instance_type": "Standard_ND96asr_v4",
            "locations": ["eastus"],
            "max_instance_count": 4,
            "shm_size": "64g",
            "docker_args": "--ipc=host",
        },
        "limits": {"timeout": 86400},
        "queue_settings": {"job_tier": "premium", "priority": "high"},
        "identity": {"type": "user_identity"},
        "services": {"shell": {"type": "ssh", "ssh_public_keys": "ssh-rsa AAA"}},
        "inputs": {"train": {"type": "uri_folder", "path": f"{STORE}/x", "mode": "download"}, "rate": "0.1"},
        "outputs": {
            "logs": {"type": "uri_folder", "mode": "upload"},
            "model": {"type": "uri_folder"},
            "checkpoint": {
                "type": "uri_folder", "mode": "rw_mount", "path": f"{STORE}/cloudtrain/checkpoints/{RUN}/",
            },
        },
        "environment_variables": plan_of(CASES["everything"]).request["properties"]["environmentVariables"],
        "properties": {"cloudtrain.run": RUN},
        "tags": {"team": "x"},
    }  # fmt: skip


def test_the_yaml_says_how_it_is_sent() -> None:
    """The head names the workspace, and what must be there first."""
    head = plan_of(CASES["torch"]).to_yaml().splitlines()[:3]
    assert head == [
        f"# az ml job create --file job.yml --subscription {ACCOUNT.subscription_id} --resource-group research "
        "--workspace-name vision",
        "# Needs what `cloudtrain submit` uploads: the code.",
        "$schema: https://azuremlschemas.azureedge.net/latest/commandJob.schema.json",
    ]
    assert "cloudtrain submit" not in plan_of(CASES["no_code"]).to_yaml()
    both = "# Needs what `cloudtrain submit` uploads: the code and the environment.\n"
    assert both in plan_of(CASES["environment_conda"]).to_yaml()


@pytest.mark.parametrize(
    "workspace", ["w\nname: other", "\x7f", "\x1b[2J", "\x85name: other", "\u2028name: other"]
)
def test_no_name_breaks_out_of_the_head(workspace: str) -> None:
    """A name with a line end stays a comment, and one with control characters leaves YAML."""
    account = AzureMLAccount("s", "r", workspace)
    plan = replace(plan_of(CASES["torch"]), place=account.place)
    assert loaded(plan)["name"] == RUN


@pytest.mark.parametrize("name", sorted(CASES.keys() - PYTHON_ALONE.keys()))
@pytest.mark.slow_after(30)
def test_ids_have_the_yamls_own_scheme(name: str) -> None:
    """Whatever is an id of Azure Resource Manager starts with `azureml:` there, and there alone."""
    job = loaded(plan_of(CASES[name]))
    places = [job.get(field, "") for field in ("code", "environment", "compute")]
    places += [item["path"] for item in job.get("inputs", {}).values() if isinstance(item, dict)]
    assert not [place for place in places if place.startswith("/")]


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=30)


@settings(max_examples=examples(100), deadline=None)
@given(
    TEXT,
    TEXT,
    st.lists(st.sampled_from("\n\r\t \x85\u2028\ufeff|>:#-'\"\\é😀a"), max_size=12).map("".join),
)
def test_texts_are_read_back_from_the_yaml(variable: str, tag: str, description: str) -> None:
    """Whatever they hold: line ends, marks that look like some, what YAML takes for numbers or structure."""
    job = {
        "environment": {"framework": "pytorch", "variables": {"X": variable}},
        "tags": {"t": tag},
    }
    found = loaded(plan_of(Case(job | {"description": description})))
    assert (found["environment_variables"]["X"], found["tags"]["t"]) == (variable, tag)
    assert found["description"] == description


def test_mails_are_for_the_rest_api_alone() -> None:
    """The SDK has no word for them."""
    plan = plan_of(Case({}, {"compute": "gpu", "notifications": {"emails": ["ada@example.org"]}}))
    with pytest.raises(TargetError, match="`notificationSetting`"):
        plan.to_python()


@pytest.mark.parametrize(
    "written", ["azureml:mine@latest", "azureml:AzureML-mine@latest", "azureml:AzureML-mine:6"]
)
def test_labels_and_short_names_are_written_as_people_do(written: str) -> None:
    """The tools look a label up themselves; an id with a label in it they would send as it is."""
    inputs = {"train": {"azureml": "azureml:cifar@latest"}}
    plan = plan_of(Case({"environment": {"azureml": written}, "inputs": inputs}))
    document = loaded(plan)
    assert (document["environment"], document["inputs"]["train"]["path"]) == (
        written,
        "azureml:cifar@latest",
    )
    (call,) = calls_of(plan.to_python(), "command")
    assert ast.literal_eval(call["environment"]) in (written, written.removeprefix("azureml:"))
    (data,) = calls_of(plan.to_python(), "Input")
    assert ast.literal_eval(data["path"]) == "cifar@latest"


def test_lines_of_a_command_stay_lines() -> None:
    """A script in the job is as readable in the YAML as it was."""
    command = "set -e\npython a.py\npython b.py"
    text = plan_of(
        Case({"entry_point": None, "hyperparameters": None, "command": command})
    ).to_yaml()
    assert "command: |-\n  set -e\n  python a.py\n  python b.py\n" in text


RESOURCES = {"docker_args": ["--ipc=host"], "locations": ["eastus"], "max_instance_count": 2}
WORDLESS = {
    "sweep": (overrides(jobType="Sweep"), ["jobType"]),
    "archived": (overrides(isArchived=True), ["isArchived"]),
    "no_display_name": (overrides(displayName=None), ["displayName left out"]),
    "unknown": (overrides(futureField={"a": 1}, another=2), ["futureField", "another"]),
    "docker_list": (Case({}, RESOURCES), ["resources.locations beside dockerArgsList", "resources.maxInstanceCount beside dockerArgsList"]),
    "resources": (overrides(resources={"instanceCount": "2", "cores": 3}), ["resources.instanceCount", "resources.cores"]),
    "resource_property": (overrides(resources={"properties": {"Singularity": {}}}), ["resources.properties.Singularity"]),
    "resource_properties": (overrides(resources={"properties": 5}), ["resources"]),
    "limits": (overrides(limits={"jobLimitsType": "Command", "timeout": "PT90S"}), ["limits.timeout"]),
    "limits_kind": (overrides(limits={"jobLimitsType": "Sweep", "timeout": "PT1M", "maxTotalTrials": 1}), ["limits.jobLimitsType", "limits.maxTotalTrials"]),
    "tier": (overrides(queueSettings={"jobTier": "Cheap"}), ["queueSettings.jobTier"]),
    "priority": (overrides(queueSettings={"priority": True}), ["queueSettings.priority"]),
    "queue": (overrides(queueSettings={}), ["queueSettings"]),
    "distribution": (overrides(distribution={"distributionType": "Other"}), ["distribution.distributionType"]),
    "distribution_field": (overrides(distribution={"distributionType": "PyTorch", "nodeCount": 2}), ["distribution.nodeCount"]),
    "servers": (overrides(distribution={"distributionType": "TensorFlow", "workerCount": 2}), ["distribution.parameterServerCount left out"]),
    "identity": (overrides(identity={"identityType": "Managed", "resourceId": "x"}), ["identity.resourceId"]),
    "service": (overrides(services={"a": {"jobServiceType": "Custom"}, "b": {"jobServiceType": "SSH", "endpoint": "x"}}), ["services.a.jobServiceType", "services.b.endpoint"]),
    "input": (overrides(inputs={"train": {"pathOnCompute": "/x"}}), ["inputs.train.pathOnCompute"]),
    "input_kind": (overrides(inputs={"x": {"uri": "azureml:x:1"}}), ["inputs.x.jobInputType"]),
    "output": (overrides(outputs={"model": {"autoDeleteSetting": {}}}), ["outputs.model.autoDeleteSetting"]),
    "code": (overrides(codeId="./src"), ["codeId"]),
    "environment": (overrides(environmentId="mine:1"), ["environmentId"]),
    "this_machine": (overrides(computeId="local"), ["computeId"]),
    "tag": (overrides(tags={"n": 1}), ["tags.n"]),
    "text": (overrides(description=["a"]), ["description"]),
    "braces": (Case({"hyperparameters": {"a": "{inputs.train}", "b": "{outputs.x y}"}}), ["{inputs.train} in command", "{outputs.x y} in command"]),
    "no_reference": (overrides(command="echo ${{inputs.nope}} ${{inputs.train}}"), ["${{inputs.nope}} in command"]),
}  # fmt: skip
"""What the SDK would refuse, change or lose, and how it is named."""


@pytest.mark.parametrize("name", WORDLESS)
def test_what_the_tools_cannot_say_is_named(name: str) -> None:
    """In every form; the hint names what sends it all the same."""
    case, fields = WORDLESS[name]
    plan = plan_of(case)
    for form in (plan.to_command, *plan.forms().values()):
        with pytest.raises(TargetError) as caught:
            form()
        assert (
            caught.value.message
            == f"the SDK of Azure ML cannot express {', '.join(f'`{field}`' for field in fields)}"
        )
        assert "`az rest --method put`" in str(caught.value.hint)


@pytest.mark.parametrize("name", PYTHON_ALONE)
def test_what_the_yaml_alone_cannot_say_is_named(name: str) -> None:
    """Its schema has fewer modes than the SDK's objects; the code has them."""
    plan = plan_of(CASES[name])
    with pytest.raises(TargetError, match=f"{YAML} cannot express `inputs.train.mode`"):
        plan.to_yaml()
    assert "mode=" in plan.to_python()


def test_the_code_of_a_whole_job() -> None:
    """It is what one would write by hand, and as formatters lay it out."""
    assert (
        plan_of(CASES["docker_text"]).to_python()
        == f'''"""Job `{RUN}`, for the SDK of Azure ML: pip install azure-ai-ml azure-identity

Needs what `cloudtrain submit` uploads: the code.
"""

from azure.ai.ml import Input, MLClient, Output, command
from azure.identity import DefaultAzureCredential

job = command(
    name="{RUN}",
    display_name="{RUN}",
    experiment_name="parity",
    command="python train.py --epochs 3 --lr 0.001",
    code="{WORKSPACE}/codes/cloudtrain-{"ab" * 20}/versions/1",
    environment="azureml://registries/azureml/environments/acpt-pytorch-2.8-cuda12.6/labels/latest",
    instance_count=2,
    instance_type="Standard_ND96asr_v4",
    locations=["eastus"],
    docker_args="--ulimit memlock=-1 --ipc=host",
    inputs={{
        "train": Input(
            type="uri_folder",
            path="{STORE}/cifar10/",
        ),
    }},
    outputs={{"model": Output(type="uri_folder")}},
    environment_variables={{
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "NCCL_IB_PCI_RELAXED_ORDERING": "1",
        "NCCL_SOCKET_IFNAME": "eth0",
        "UCX_NET_DEVICES": "eth0",
        "UCX_TLS": "tcp",
        "NCCL_TOPO_FILE": "/opt/microsoft/ndv4-topo.xml",
    }},
    properties={{"cloudtrain.run": "{RUN}"}},
)

ml_client = MLClient(
    credential=DefaultAzureCredential(),
    subscription_id="{ACCOUNT.subscription_id}",
    resource_group_name="research",
    workspace_name="vision",
)

ml_client.jobs.create_or_update(job=job)
'''
    )


@pytest.mark.parametrize("name", CASES)
@pytest.mark.slow_after(30)
def test_the_code_makes_one_job_and_sends_it(name: str) -> None:
    """Whatever the job holds, it is Python, with one `command` and one call of the client."""
    code = plan_of(CASES[name]).to_python()
    assert len(calls_of(code, "command")) == 1
    assert calls_of(code, "ml_client.jobs.create_or_update") == [{"job": "job"}]


@pytest.mark.parametrize(
    ("account", "credential", "cloud"),
    [
        ({}, "DefaultAzureCredential()", None),
        ({"credential": "cli"}, "AzureCliCredential()", None),
        ({"credential": "managed_identity"}, "ManagedIdentityCredential()", None),
        ({"cloud": "AzureCloud"}, "DefaultAzureCredential()", "'AzureCloud'"),
        (
            {"cloud": "AzureUSGovernment"},
            "DefaultAzureCredential(authority='https://login.microsoftonline.us')",
            "'AzureUSGovernment'",
        ),
        (
            {"cloud": "AzureChinaCloud", "credential": "cli"},
            "AzureCliCredential()",
            "'AzureChinaCloud'",
        ),
        ({"cloud": "Elsewhere"}, "DefaultAzureCredential()", "'Elsewhere'"),
    ],
)
def test_the_client_of_the_code(
    account: dict[str, str], credential: str, cloud: str | None
) -> None:
    """The target's credential, the workspace, and the cloud where one is named."""
    plan = plan_of(CASES["torch"], AzureMLAccount("sub", "my group", "ws", **account))  # type: ignore[arg-type] # texts
    (client,) = calls_of(plan.to_python(), "MLClient")
    assert client.pop("cloud", None) == cloud
    assert client == {
        "credential": credential, "subscription_id": "'sub'", "resource_group_name": "'my group'", "workspace_name": "'ws'",
    }  # fmt: skip


def test_forms() -> None:
    """What `plan --format` can print beside the formats of every plan."""
    plan = plan_of(CASES["torch"])
    forms = plan.forms()
    assert {name: form() for name, form in forms.items()} == {
        "az-cli": plan.to_yaml(),
        "python": plan.to_python(),
    }


def has_sdk() -> bool:
    """Whether azure-ai-ml is installed beside the tests."""
    try:
        return bool(version("azure-ai-ml"))
    except PackageNotFoundError:
        return False


@pytest.mark.skipif(has_sdk(), reason="the SDK is installed")
def test_the_object_needs_an_extra() -> None:
    """Where azure-ai-ml is missing, the error says what to install; the YAML and the code do without."""
    with pytest.raises(MissingExtra) as caught:
        plan_of(CASES["torch"]).to_command()
    assert caught.value.hint == pip_line("azureml-sdk")


@pytest.mark.slow
def test_forms_import_no_sdk() -> None:
    """Neither the YAML nor the code needs any package of Azure."""
    code = (
        "import sys\n"
        "from tests.parity.azureml_jobs import CASES, plan_of\n"
        "for form in plan_of(CASES['everything']).forms().values():\n"
        "    assert form()\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('azure', 'marshmallow', 'msrest')])\n"
    )
    repository = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=repository, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.fixture
def job_file(make_source: Callable[..., Path]) -> Path:
    """A job that could be submitted, with its code."""
    folder = make_source({"train.py": "print(1)\n"})
    job = {"name": "digits", "entry_point": "train.py", "environment": {"framework": "pytorch"}}
    (folder / "job.json").write_text(json.dumps(job))
    (folder / "cloudtrain.toml").write_text(
        '[profiles.azure.azureml]\nsubscription_id = "00000000-0000-0000-0000-000000000001"\n'
        'resource_group = "rg"\nworkspace = "team"\ncompute = "gpu"\n'
    )
    return folder / "job.json"


@pytest.mark.slow
@pytest.mark.parametrize("form", ["az-cli", "python"])
def test_the_command_line_prints_the_forms(
    job_file: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """`cloudtrain plan --format` prints what the plan gives; stderr says what comes before it."""
    monkeypatch.chdir(job_file.parent)
    command = [
        sys.executable,
        "-m",
        "cloudtrain",
        "plan",
        str(job_file),
        "--target",
        "azureml",
        "--profile",
        "azure",
        "--format",
        form,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.splitlines()[:1]) == (
        0,
        ["the code has to be uploaded first:"],
    )
    plan = ct.plan(ct.load_job(job_file), "azureml", profile="azure")
    assert done.stdout == plan.forms()[form]()


@pytest.mark.slow
def test_another_targets_form_is_refused(job_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names those that there are."""
    monkeypatch.chdir(job_file.parent)
    command = [
        sys.executable,
        "-m",
        "cloudtrain",
        "plan",
        str(job_file),
        "--target",
        "azureml",
        "--profile",
        "azure",
        "--format",
        "aws-cli",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "the target `azureml` has no format `aws-cli`" in done.stderr
    assert one_of("text", "json", "request", "az-cli", "python") in done.stderr
