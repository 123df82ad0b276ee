"""Which cloud is meant, and where its services are: built in, or described by another resource manager."""

from __future__ import annotations

from typing import Any

import pytest

from cloudtrain.errors import CloudtrainError, SettingsError, TargetError
from cloudtrain.targets.azureml.service.client import Client
from cloudtrain.targets.azureml.service.clouds import BUILT_IN, cloud_of
from cloudtrain.targets.azureml.settings import AzureMLAccount
from tests.fakes.azureml import FakeAzure

URL = "https://management.local.azurestack.external/metadata/endpoints?api-version=2019-05-01"
STACK: dict[str, Any] = {
    "name": "Stack",
    "portal": "https://portal.azure.stack.example/",
    "resourceManager": "https://management.local.azurestack.external/",
    "authentication": {"loginEndpoint": "https://login.stack.example/"},
    "suffixes": {"storage": "stack.example"},
}


def fetched(*clouds: dict[str, Any]) -> Any:
    """What an address answers."""

    def fetch(url: str) -> Any:
        assert url == URL
        return list(clouds)

    return fetch


def never(url: str) -> Any:
    raise AssertionError(f"nobody should ask {url}")


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_clouds_ask_nobody(name: str) -> None:
    """By the target's word or by the variable of azure-ai-ml; tokens are for the resource manager and the studio."""
    cloud = cloud_of(name, {}, never)
    assert cloud == cloud_of(
        None, {"AZUREML_CURRENT_CLOUD": name, "ARM_CLOUD_METADATA_URL": URL}, never
    )
    assert cloud.scope == f"{cloud.resource_manager}/.default"
    assert cloud.job_scope == f"{cloud.studio}/.default"
    for address in (cloud.resource_manager, cloud.login, cloud.studio):
        assert address.startswith("https://")
        assert not address.endswith("/")


def test_the_public_cloud_unless_said_otherwise() -> None:
    """Without a word of anybody."""
    assert cloud_of(None, {}, never).resource_manager == "https://management.azure.com"


def test_the_targets_word_goes_first() -> None:
    """Before that of the environment."""
    assert cloud_of(
        "AzureChinaCloud", {"AZUREML_CURRENT_CLOUD": "AzureUSGovernment"}, never
    ).storage == ("core.chinacloudapi.cn")


@pytest.mark.parametrize("variables", [{"AZUREML_CURRENT_CLOUD": "Stack"}, {}])
def test_a_cloud_that_is_described_elsewhere(variables: dict[str, str]) -> None:
    """By its name, or as the one whose resource manager gives the description."""
    other = {**STACK, "name": "Other", "resourceManager": "https://management.other.example"}
    cloud = cloud_of(None, {**variables, "ARM_CLOUD_METADATA_URL": URL}, fetched(other, STACK))
    assert cloud.resource_manager == "https://management.local.azurestack.external"
    assert cloud.login == "https://login.stack.example"
    assert cloud.studio == "https://ml.azure.stack.example"
    assert cloud.name not in BUILT_IN


def test_metadata_that_describe_only_others() -> None:
    """Without a name, the cloud is the public one."""
    other = {**STACK, "resourceManager": "https://management.other.example"}
    assert cloud_of(None, {"ARM_CLOUD_METADATA_URL": URL}, fetched(other)) == BUILT_IN["AzureCloud"]


@pytest.mark.parametrize(
    ("name", "environ", "kind", "hint"),
    [
        ("AzureCloudd", {}, SettingsError, "`AzureCloud`"),
        ("Stak", {"ARM_CLOUD_METADATA_URL": URL}, SettingsError, "`Stack`"),
    ],
)
def test_no_such_cloud(
    name: str, environ: dict[str, str], kind: type[CloudtrainError], hint: str
) -> None:
    """The nearest is named, or how others are found."""
    with pytest.raises(kind) as caught:
        cloud_of(name, environ, fetched(STACK))
    assert hint in (caught.value.hint or "")


def test_a_description_that_lacks_something() -> None:
    """Is an error that says what."""
    lacking = {key: value for key, value in STACK.items() if key != "resourceManager"}
    with pytest.raises(TargetError, match="resourceManager") as caught:
        cloud_of("Stack", {"ARM_CLOUD_METADATA_URL": URL}, fetched(lacking))
    assert "ARM_CLOUD_METADATA_URL" in (caught.value.hint or "")


@pytest.mark.lifecycle
def test_the_description_is_asked_for_without_a_token(fake: FakeAzure) -> None:
    """Over the network, once, before anybody has logged in."""
    client = Client(AzureMLAccount(fake.subscription_id, "rg", "ws"), fake.environ)
    assert client.cloud.resource_manager == fake.url
    assert client.cloud.name == fake.environ["AZUREML_CURRENT_CLOUD"]
    (asked,) = fake.requests
    assert "authorization" not in asked.headers
    assert fake.identity.asked == []
