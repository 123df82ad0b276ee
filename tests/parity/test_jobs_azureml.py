"""Azure ML's SDK makes exactly `plan.request` of every form of a plan: of the object, of the YAML, of the code."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import cloudtrain
from cloudtrain.errors import TargetError
from cloudtrain.plans.plan import Plan
from cloudtrain.targets.azureml.fields import MODES as INPUT_MODES
from cloudtrain.targets.azureml.service.client import SUBMIT
from cloudtrain.targets.azureml.settings import AzureML, AzureMLAccount
from tests.fakes.azureml import FakeAzure
from tests.parity.azureml_jobs import ACCOUNT, CASES, PYTHON_ALONE, Case, plan_of

pytestmark = pytest.mark.parity("azureml")

REPOSITORY = Path(__file__).parents[2]


def compiled(job: Any) -> dict[str, Any]:
    """The body that the SDK's client would PUT, made by the SDK's own code."""
    from azure.ai.ml._restclient.arm_ml_service._utils.model_base import SdkJSONEncoder
    from azure.ai.ml.entities._job.to_rest_functions import to_rest_job_object

    job = job._to_job() if hasattr(job, "_to_job") else job
    body: dict[str, Any] = json.loads(
        json.dumps(to_rest_job_object(job), cls=SdkJSONEncoder, exclude_readonly=True)
    )
    return body


def test_there_are_enough_cases() -> None:
    """The table does not shrink unseen."""
    assert len(CASES) >= 90


@pytest.mark.parametrize("name", CASES)
def test_the_object_makes_the_plan(name: str) -> None:
    """`plan.to_command()` becomes the plan's body, whole, under the run's name."""
    plan = plan_of(CASES[name])
    command = plan.to_command()
    assert compiled(command) == plan.request
    assert command.name == plan.run_name


@pytest.mark.parametrize("name", [name for name in CASES if name not in PYTHON_ALONE])
def test_the_yaml_makes_the_plan(name: str, tmp_path: Path) -> None:
    """What `load_job` reads from `plan.to_yaml()` becomes the plan's body, whole, under the run's name."""
    from azure.ai.ml import load_job

    plan = plan_of(CASES[name])
    file = tmp_path / "job.yml"
    file.write_text(plan.to_yaml(), encoding="utf-8")
    job = load_job(file)
    assert compiled(job) == plan.request
    assert job.name == plan.run_name


@pytest.mark.parametrize("name", CASES)
def test_the_code_makes_the_plan(name: str) -> None:
    """The printed code, run as far as it needs no network, makes an object that becomes the plan's body."""
    plan = plan_of(CASES[name])
    before, client, _ = plan.to_python().partition("\nml_client = ")
    assert client
    scope: dict[str, Any] = {}
    exec(compile(before, "job.py", "exec"), scope)
    assert compiled(scope["job"]) == plan.request


@pytest.mark.parametrize("name", PYTHON_ALONE)
def test_modes_that_the_yaml_lacks(name: str, tmp_path: Path) -> None:
    """The schema refuses these modes, so the plan says it has no word for them; the object and the code have."""
    from azure.ai.ml import load_job

    plan = plan_of(CASES[name])
    with pytest.raises(
        TargetError, match=re.escape("the YAML of Azure ML cannot express `inputs.train.mode`")
    ):
        plan.to_yaml()
    mode = INPUT_MODES[plan.request["properties"]["inputs"]["train"]["mode"]]
    known = plan_of(CASES["input_mount"]).to_yaml()
    file = tmp_path / "job.yml"
    file.write_text(known.replace("mode: ro_mount", f"mode: {mode}"))
    with pytest.raises(Exception, match="is not in set"):
        load_job(file)


@pytest.mark.parametrize(
    "name", ["input_written_to", "path_4", "path_5", "path_6", "path_7", "path_8", "docker_list"]
)
def test_the_sdks_own_yaml_is_another_job(name: str, tmp_path: Path) -> None:
    """What the SDK writes of the very same object cannot be read again, or is read as another job."""
    from azure.ai.ml import load_job
    from azure.ai.ml.exceptions import ValidationException
    from marshmallow import ValidationError

    plan = plan_of(CASES[name])
    file = tmp_path / "job.yml"
    plan.to_command()._to_job().dump(file)
    with suppress(ValidationError, ValidationException):
        assert compiled(load_job(file)) != plan.request


def test_the_sdk_loses_locations_beside_a_list() -> None:
    """A list of docker arguments takes `locations` and the most instances out of the SDK's body. They stay in ours, and
    the forms say that they cannot be had."""
    from azure.ai.ml import command

    plan = plan_of(
        Case({}, {"docker_args": ["--ipc=host"], "locations": ["eastus"], "max_instance_count": 4})
    )
    theirs = command(
        command="x",
        environment="e:1",
        docker_args=["--ipc=host"],
        locations=["eastus"],
        instance_count=2,
    )
    assert compiled(theirs)["properties"]["resources"] == {
        "instanceCount": 2, "properties": {}, "dockerArgsList": ["--ipc=host"]
    }  # fmt: skip
    assert plan.request["properties"]["resources"]["locations"] == ["eastus"]
    assert plan.request["properties"]["resources"]["maxInstanceCount"] == 4
    for form in (plan.to_command, plan.to_python, plan.to_yaml):
        with pytest.raises(
            TargetError, match=r"`resources\.locations beside dockerArgsList`, `resources\.maxInst"
        ):
            form()


def test_the_sdk_rewrites_braces() -> None:
    """`{inputs.train}`, a value that a script may well be given, is turned into a reference by the SDK; not by us."""
    from azure.ai.ml import command

    plan = plan_of(Case({"hyperparameters": {"format": "{inputs.train}"}}))
    line = plan.request["properties"]["command"]
    assert line == "python train.py --format '{inputs.train}'"
    theirs = compiled(command(command=line, environment="e:1", inputs={"train": "x"}))
    assert theirs["properties"]["command"] == "python train.py --format '${{inputs.train}}'"
    with pytest.raises(TargetError, match=re.escape("`{inputs.train} in command`")):
        plan.to_command()


def test_nothing_is_said_while_the_object_is_made() -> None:
    """Neither the import of the SDK nor the object's classes write to stderr, not even about being experimental; the
    SDK's logger says afterwards what it said before."""
    code = (
        "import logging\n"
        "from tests.parity.azureml_jobs import CASES, plan_of\n"
        "for name in ('service_ssh', 'ray', 'everything'):\n"
        "    plan_of(CASES[name]).to_command()\n"
        "assert logging.getLogger('azure.ai.ml._utils._experimental').level == logging.NOTSET\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAzure]:
    """A workspace to which all Azure packages in this process talk, with what the cases refer to."""
    with FakeAzure() as service:
        for name, value in service.environ.items():
            monkeypatch.setenv(name, value)
        yield service


def plan_for(fake: FakeAzure, name: str) -> Plan:
    """The case's plan for the fake's workspace, in which its assets stand already."""
    account = AzureMLAccount(fake.subscription_id, fake.resource_group, fake.workspace_name)
    plan = plan_of(CASES[name], account)
    for upload in plan.uploads:
        kind, asset, _, version = upload.destination.removeprefix(f"{fake.workspace_id}/").split(
            "/"
        )
        fake.assets.add(kind, asset, version)
    return plan


SENT = [
    "torch", "deepspeed_launcher", "mpi_options", "tensorflow_servers", "ray", "cluster", "spot", "tier_premium",
    "docker_list", "path_0", "path_4", "input_written_to", "literal_hostile", "output_asset_next", "checkpoint",
    "environment_registry", "environment_conda", "identity_user", "service_lab", "names", "hostile_values", "no_code",
    "everything",
]  # fmt: skip


@pytest.mark.lifecycle
@pytest.mark.parametrize("name", SENT)
def test_the_client_sends_the_plan(fake: FakeAzure, name: str) -> None:
    """The printed code, run as it is, sends the plan's body under the run's name, to the version of the service that we
    send it to; before it there is nothing to upload."""
    plan = plan_for(fake, name)
    exec(compile(plan.to_python(), "job.py", "exec"), {})
    (put,) = fake.received("PUT")
    assert put.body == plan.request
    assert put.path == f"{fake.workspace_id}/jobs/{plan.run_name}"
    assert put.query == {"api-version": SUBMIT}


@pytest.mark.lifecycle
@pytest.mark.parametrize("name", ["torch", "environment_conda", "names"])
def test_the_client_sends_the_yaml(fake: FakeAzure, name: str, tmp_path: Path) -> None:
    """A job from the YAML arrives as the plan's body too."""
    from azure.ai.ml import MLClient, load_job
    from azure.identity import ManagedIdentityCredential

    plan = plan_for(fake, name)
    (tmp_path / "job.yml").write_text(plan.to_yaml(), encoding="utf-8")
    with ManagedIdentityCredential() as credential:
        client = MLClient(
            credential, fake.subscription_id, fake.resource_group, fake.workspace_name
        )
        client.jobs.create_or_update(load_job(tmp_path / "job.yml"))
    assert fake.received("PUT")[0].body == plan.request


@pytest.mark.lifecycle
def test_what_the_client_adds_by_itself(
    fake: FakeAzure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one difference: inside a git repository the client adds properties about it, unasked. We send none."""
    who = {
        "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a@b",
        "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@b",
    }
    for name, value in who.items():
        monkeypatch.setenv(name, value)
    for words in (
        "init -q -b main",
        "commit -q --allow-empty -m x",
        "remote add origin https://example.org/x.git",
    ):
        subprocess.run(["git", *words.split()], cwd=tmp_path, check=True)
    monkeypatch.chdir(tmp_path)
    plan = plan_for(fake, "torch")
    exec(compile(plan.to_python(), "job.py", "exec"), {})
    (put,) = fake.received("PUT")
    added = (
        put.body["properties"]["properties"].keys()
        - plan.request["properties"]["properties"].keys()
    )
    assert added
    assert all(name.startswith(("azureml.git.", "mlflow.source.git.")) for name in added)
    for name in added:
        del put.body["properties"]["properties"][name]
    assert put.body == plan.request


@pytest.mark.parametrize("named", [{}, {"name": "mine", "version": "3"}])
def test_an_environment_is_registered_as_by_the_sdk(fake: FakeAzure, named: dict[str, str]) -> None:
    """The asset that the SDK's client makes of an environment in place: body, name and version."""
    from azure.ai.ml import MLClient, command
    from azure.ai.ml.entities import Environment
    from azure.identity import ManagedIdentityCredential

    words: dict[str, Any] = {"image": "x:1", "description": "For training", "tags": {"team": "a"}}
    ours: dict[str, Any] = {f"asset_{key}": value for key, value in named.items()}
    plan = plan_of(Case({"environment": {**words, **ours}}))
    (upload,) = (item for item in plan.uploads if item.kind == "environment")
    with ManagedIdentityCredential() as credential:
        client = MLClient(
            credential, fake.subscription_id, fake.resource_group, fake.workspace_name
        )
        client.jobs.create_or_update(
            command(command="x", environment=Environment(**named, **words))
        )
    put, job = fake.received("PUT")
    assert put.body == json.loads(upload.content or "")
    if named:
        assert put.path.removeprefix(fake.workspace_id) == upload.destination.removeprefix(
            ACCOUNT.workspace_id
        )
        assert job.body["properties"]["environmentId"] == put.path


ONLY_SAGEMAKER = {"smddp_mnist", "smp_gpt2"}
EXAMPLES = [
    file
    for file in sorted((REPOSITORY / "examples").iterdir())
    if file.suffix in (".yaml", ".json") and file.stem not in ONLY_SAGEMAKER
]


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_the_yaml_of_the_examples(file: Path, tmp_path: Path) -> None:
    """`load_job` accepts every example, and makes the plan's body of it; so does the object."""
    from azure.ai.ml import load_job

    target = AzureML(subscription_id=ACCOUNT.subscription_id, resource_group="rg", workspace="team")
    plan = cloudtrain.plan(cloudtrain.load_job(file), target)
    (tmp_path / "job.yml").write_text(plan.to_yaml(), encoding="utf-8")
    assert compiled(load_job(tmp_path / "job.yml")) == plan.request
    assert compiled(plan.to_command()) == plan.request
