"""Whose credentials are used, whether there seem to be any, and what is said when none works."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cloudtrain.errors import CloudtrainError, SettingsError, TargetError
from cloudtrain.plans.states import RunRef
from cloudtrain.targets.azureml.service.client import WORKSPACE, Client
from cloudtrain.targets.azureml.service.clouds import (
    BUILT_IN,
    KINDS,
    Cloud,
    credential_of,
    credentials_in_sight,
)
from cloudtrain.targets.azureml.service.service import AzureMLService
from cloudtrain.targets.azureml.settings import AzureML, AzureMLAccount, account_of
from tests.fakes.azureml import FakeAzure
from tests.fakes.azureml.identity import make_token
from tests.targets.azureml.conftest import PLACE, plan_of

PUBLIC = BUILT_IN["AzureCloud"]
NEEDS = {
    "AZURE_TENANT_ID": "11111111-1111-1111-1111-111111111111",
    "AZURE_CLIENT_ID": "22222222-2222-2222-2222-222222222222",
    "AZURE_CLIENT_SECRET": "secret",
    "AZURE_FEDERATED_TOKEN_FILE": "/nowhere",
}


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_can_be_made(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is azure-identity's class of that name, and takes what we give it."""
    for variable, value in NEEDS.items():
        monkeypatch.setenv(variable, value)
    credential = credential_of(name, PUBLIC, dict(os.environ))
    assert type(credential).__name__ == KINDS[name].name


def test_the_first_that_works_unless_said_otherwise() -> None:
    """azure-identity's own order of trying, without its browser."""
    credential = credential_of(None, PUBLIC, {})
    assert type(credential).__name__ == "DefaultAzureCredential"
    assert "Browser" not in repr([type(one).__name__ for one in credential.credentials])


def test_another_clouds_login(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens come from there, and the public cloud is not asked about it."""
    for variable, value in NEEDS.items():
        monkeypatch.setenv(variable, value)
    other = Cloud(
        "Other", "https://arm.example", "https://login.example", "https://ml.example", "example"
    )
    credential = credential_of("environment", other, dict(os.environ))
    assert credential._credential._authority == "https://login.example"
    assert credential._credential._instance_discovery is False


def test_no_such_kind() -> None:
    """The nearest is named."""
    with pytest.raises(SettingsError, match="`clj` is not a kind") as caught:
        credential_of("clj", PUBLIC, {})
    assert "`cli`" in (caught.value.hint or "")


def test_a_kind_that_lacks_something(monkeypatch: pytest.MonkeyPatch) -> None:
    """What azure-identity finds wrong when it is made, with what to set."""
    for variable in NEEDS:
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(SettingsError) as caught:
        credential_of("workload_identity", PUBLIC, {})
    assert "AZURE_FEDERATED_TOKEN_FILE" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("profile", "seen"),
    [
        (None, False),
        ("not JSON", False),
        ("[]", False),
        ('{"subscriptions": []}', False),
        ('{"subscriptions": null}', False),
        ('{"subscriptions": 5}', False),
        ('\ufeff{"installationId": "x", "subscriptions": [{"id": "1"}]}', True),
    ],
)
def test_the_az_command(tmp_path: Path, profile: str | None, seen: bool) -> None:
    """Somebody has logged in if it has a subscription: `az logout` leaves the file, which begins with a byte order mark."""
    if profile is not None:
        (tmp_path / ".azure").mkdir()
        (tmp_path / ".azure/azureProfile.json").write_text(profile, encoding="utf-8")
    assert credentials_in_sight({"HOME": str(tmp_path)}) is seen
    assert (
        credentials_in_sight({"HOME": "/nowhere", "AZURE_CONFIG_DIR": str(tmp_path / ".azure")})
        is seen
    )


@pytest.mark.parametrize("profile", ["null", "5", "[null]", '[{"isDefault": true}]'])
def test_an_unusual_profile_of_az(tmp_path: Path, profile: str) -> None:
    """Names no subscription, and is no reason not to plan."""
    (tmp_path / "azureProfile.json").write_text(f'{{"subscriptions": {profile}}}')
    account = account_of(AzureML(), {"AZURE_CONFIG_DIR": str(tmp_path)}, tmp_path)
    assert "subscription_id" in account.missing


@pytest.mark.parametrize(
    "environ",
    [{"AZURE_CONFIG_DIR": "~/az"}, {"USERPROFILE": "{home}/windows"}],
    ids=["tilde", "windows"],
)
def test_credentials_and_account_look_into_the_same_folder(
    clean_environment: Path, monkeypatch: pytest.MonkeyPatch, environ: dict[str, str]
) -> None:
    """That of az: AZURE_CONFIG_DIR, in which `~` is the home folder, or `.azure` at home, on Windows too."""
    for folder in ("az", "windows/.azure"):
        (clean_environment / folder).mkdir(parents=True)
        profile = {"subscriptions": [{"id": "1234", "isDefault": True}]}
        (clean_environment / folder / "azureProfile.json").write_text(json.dumps(profile))
    found = {name: value.format(home=clean_environment) for name, value in environ.items()}
    assert credentials_in_sight(found)
    assert account_of(AzureML(), found, clean_environment).subscription_id == "1234"


@pytest.mark.parametrize(
    "variable",
    ["AZURE_CLIENT_ID", "IDENTITY_ENDPOINT", "MSI_ENDPOINT", "AZURE_FEDERATED_TOKEN_FILE"],
)
def test_variables_that_are_signs(tmp_path: Path, variable: str) -> None:
    """Of a service principal, a managed identity, a pod's identity; an empty one is none."""
    assert credentials_in_sight({"HOME": str(tmp_path), variable: "x"})
    assert not credentials_in_sight({"HOME": str(tmp_path), variable: ""})


def az(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """An `az` on the path that does this, in Python."""
    command = folder / "bin" / "az"
    command.parent.mkdir()
    # As pip starts programs: a kernel takes no interpreter with a space in its path.
    start = f"#!/bin/sh\n'''exec' \"{sys.executable}\" \"$0\" \"$@\"\n' '''\n"
    command.write_text(f"{start}import json, sys\n{script}\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}:/bin:/usr/bin")


@pytest.mark.lifecycle
def test_a_login_of_the_az_command(
    fake: FakeAzure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A target that names it gets its token, for this cloud's resource manager; the identity of the machine is not asked."""
    expires = int(time.time()) + 3600
    answer = {
        "accessToken": make_token(fake.url, expires),
        "expires_on": expires,
        "tokenType": "Bearer",
    }
    az(tmp_path, monkeypatch, f"open({str(tmp_path / 'asked')!r}, 'a').write(' '.join(sys.argv) + chr(10))\n"
       f"print({json.dumps(json.dumps(answer))})")  # fmt: skip
    service = AzureMLService(fake.environ, None)
    service.submit(plan_of(place=f"cli@{PLACE}"))
    assert list(fake.jobs.by_name)
    assert fake.identity.asked == []
    (asked,) = (tmp_path / "asked").read_text().splitlines()
    assert f"--resource {fake.url}" in asked


@pytest.mark.lifecycle
@pytest.mark.parametrize(
    ("script", "match", "hint"),
    [
        ("sys.stderr.write(\"ERROR: Please run 'az login' to setup account.\"); sys.exit(1)",
         "no Azure credentials that work", "`az login`"),
        ("sys.stderr.write('ERROR: AADSTS700082: The refresh token has expired due to inactivity.'); sys.exit(1)",
         "the Azure login has expired", "`az login`"),
        ("sys.stderr.write('ERROR: AADSTS50076: you must use multi-factor authentication'); sys.exit(1)",
         "another authentication step", "`az login --tenant TENANT`"),
    ],
)  # fmt: skip
def test_a_login_that_does_not_work(
    fake: FakeAzure,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    script: str,
    match: str,
    hint: str,
) -> None:
    """One line says why, and what to type; nothing is sent but the question for the cloud."""
    az(tmp_path, monkeypatch, script)
    with pytest.raises(TargetError, match=match) as caught:
        AzureMLService(fake.environ, None).status(RunRef("azureml", f"cli@{PLACE}", "run-1"))
    assert "\n" not in caught.value.message
    assert hint in (caught.value.hint or "")
    assert fake.calls() == ["GET /metadata/endpoints"]


@pytest.mark.lifecycle
def test_no_az_command(fake: FakeAzure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Said as it is, with the login to make."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TargetError, match="not found on path") as caught:
        AzureMLService(fake.environ, None).status(RunRef("azureml", f"cli@{PLACE}", "run-1"))
    assert "`az login`" in (caught.value.hint or "")


@pytest.mark.lifecycle
def test_an_identity_that_is_refused(
    fake: FakeAzure, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A managed identity that does not exist; azure-identity's own warnings stay out of sight."""
    fake.identity.refuses = True
    ref = RunRef("azureml", f"managed_identity@{PLACE}", "run-1")
    with pytest.raises(CloudtrainError) as caught:
        AzureMLService(fake.environ, None).status(ref)
    assert "Unable to get a token" in caught.value.message
    assert "AZURE_CLIENT_ID" in (caught.value.hint or "")
    assert capfd.readouterr() == ("", "")


@pytest.mark.lifecycle
@pytest.mark.parametrize(
    "ask",
    [
        lambda client: client.get("", api_version=WORKSPACE),
        lambda client: client.token("https://example/.default"),
    ],
)
@pytest.mark.parametrize("kind", ["environment", "workload_identity"])
def test_a_file_of_the_credentials_that_is_not_there(
    fake: FakeAzure, monkeypatch: pytest.MonkeyPatch, kind: str, ask: Callable[[Client], object]
) -> None:
    """A certificate, a pod's token: the file is named, and the variables to set; nothing is said about the network."""
    for variable in ("AZURE_TENANT_ID", "AZURE_CLIENT_ID"):
        monkeypatch.setenv(variable, NEEDS[variable])
    for variable in ("AZURE_CLIENT_CERTIFICATE_PATH", "AZURE_FEDERATED_TOKEN_FILE"):
        monkeypatch.setenv(variable, "/nowhere/file")
    with pytest.raises(CloudtrainError, match="/nowhere/file") as caught:
        ask(Client(AzureMLAccount.parse(f"{kind}@{PLACE}"), fake.environ))
    assert caught.value.hint == KINDS[kind].login
    assert "connection" not in caught.value.message


@pytest.mark.lifecycle
def test_a_new_login_is_found(fake: FakeAzure) -> None:
    """A token that Azure refuses is got anew from new credentials."""
    client = Client(AzureMLAccount.parse(PLACE), fake.environ)
    before = client.credential
    fake.faults.expire_token("GET", r"\{WS\}$")
    client.get("", api_version="2024-10-01-preview")
    assert client.credential is not before
    assert len(fake.identity.asked) == 2
