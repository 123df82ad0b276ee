"""`--pin`: the versions that `NAME@latest` means now stand in the plan."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import cloudtrain as ct
from tests.cli.conftest import Cli
from tests.fakes.azureml import FakeAzure

pytestmark = pytest.mark.lifecycle

TYPE = "Standard_NC24ads_A100_v4"
JOB = (
    "name: digits\nentry_point: train.py\nenvironment: {azureml: azureml:mine@latest}\nmax_runtime: 1h\n"
    f"resources: {{instance_type: {{azureml: {TYPE}}}}}\n"
    "inputs: {train: {azureml: 'azureml:cifar@latest'}, old: {azureml: 'azureml:cifar:1'}}\n"
)
SETTINGS = (
    '[azureml]\nsubscription_id = "00000000-0000-0000-0000-000000000000"\n'
    'resource_group = "rg"\nworkspace = "ws"\ncompute = "a100"\n'
)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAzure]:
    """A workspace with two versions of everything."""
    with FakeAzure() as service:
        service.computes.add("a100", TYPE)
        for version in ("1", "2"):
            service.assets.add("environments", "mine", version, image=f"image:{version}")
            service.assets.add(
                "data", "cifar", version, dataUri="https://a.blob.core.windows.net/c"
            )
        for name, value in service.environ.items():
            monkeypatch.setenv(name, value)
        yield service


@pytest.fixture
def job(make_source: Callable[..., Path], fake: FakeAzure) -> str:
    """A job that names both by the label."""
    return str(
        make_source({"train.py": "print(1)\n", "job.yaml": JOB, "cloudtrain.toml": SETTINGS})
        / "job.yaml"
    )


def versions(request: dict[str, object]) -> list[str]:
    """Of the environment and the inputs of a body."""
    body = request["properties"]
    assert isinstance(body, dict)
    places = [body["environmentId"], *(item["uri"] for _, item in sorted(body["inputs"].items()))]
    return ["/".join(place.rsplit("/", 3)[1:]) for place in places]


@pytest.mark.slow
def test_the_plan_is_that_of_the_versions(cli: Cli, fake: FakeAzure, job: str) -> None:
    """As if they stood in the file; a submit sends that plan, and keeps it, though a newer version is there."""
    pinned = ["mine/versions/2", "cifar/versions/1", "cifar/versions/2"]
    arguments = (job, "--target", "azureml", "--pin")
    plan = json.loads(cli("plan", *arguments, "--json").out)
    assert versions(plan["request"]) == pinned
    assert not {"AZ601", "AZ514"} & {finding["code"] for finding in plan["findings"]}
    said = (
        "--set",
        "environment.azureml=azureml:mine:2",
        "--set",
        "inputs.train.azureml=azureml:cifar:2",
    )
    assert plan == json.loads(cli("plan", job, "--target", "azureml", *said, "--json").out)
    assert json.loads(cli("submit", *arguments, "--dry-run", "--json").out) == plan
    found = cli("check", *arguments, "--json")
    assert not {"AZ601", "AZ514", "AZ916"} & {finding["code"] for finding in json.loads(found.out)}
    result = cli("submit", *arguments, "--detach", "--offline", "--set", "tags.a=b")
    assert (result.code, "remove `--offline`" in result.err) == (2, True)
    result = cli("submit", *arguments, "--detach")
    assert result.code == 0, result.err
    assert result.out.strip() == plan["run_name"]
    assert versions(fake.jobs[plan["run_name"]].request) == pinned
    fake.assets.add("environments", "mine", "3", image="image:3")
    assert "azureml:mine:2" in cli("show", plan["run_name"], "--job").out


def test_in_python(job: str) -> None:
    """A sweep's job is pinned too."""
    target = ct.AzureML(
        subscription_id="00000000-0000-0000-0000-000000000000", resource_group="rg", workspace="ws"
    )
    found = ct.pin(ct.load_job(job), target)
    assert found.environment.of("azureml") == "azureml:mine:2"
    search = {"lr": ct.Range(choice=[0.1, 1.0])}
    sweep = ct.Sweep(name="s", strategy="grid", job=ct.load_job(job), search=search)
    assert ct.pin(sweep, target).job == found


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        (["--target", "sagemaker"], "CT987"),
        (["--target", "local"], "CT987"),
        (["--set", "environment.azureml=azureml:mine:1", "--set", "inputs={}"], "CT987"),
        (
            ["--set", "environment.azureml=azureml://registries/r/environments/e/labels/latest"],
            "CT987",
        ),
        (["--set", "environment.azureml=azureml:AzureML-X@latest"], "CT987"),
        (["--set", "environment.azureml=azureml:nobody@latest"], "there is no `"),
    ],
)
def test_what_cannot_be_pinned(cli: Cli, job: str, changes: list[str], code: str) -> None:
    """A typed error, and no plan."""
    result = cli("plan", job, "--target", "azureml", *changes, "--pin")
    assert (result.code != 0, result.out) == (True, "")
    assert "hint: " in result.err
    assert code in result.err or "means no version" in result.err


def test_without_the_service(
    cli: Cli, job: str, monkeypatch: pytest.MonkeyPatch, fake: FakeAzure
) -> None:
    """Without an answer there is no plan."""
    fake.identity.refuses = True
    result = cli("plan", job, "--target", "azureml", "--pin")
    assert (result.code != 0, result.out) == (True, "")
    assert "hint: " in result.err
