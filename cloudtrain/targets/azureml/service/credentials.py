"""Get credentials through azure-identity: the first that works, or only the kind in the target's setting `credential`.

azure-identity reads AZURE_CLIENT_ID, IDENTITY_ENDPOINT and its other variables from the process's environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cloudtrain.errors import SettingsError, did_you_mean
from cloudtrain.system.extras import require
from cloudtrain.targets.azureml.az import az_folder, az_subscriptions
from cloudtrain.targets.azureml.service.clouds import Cloud


@dataclass(frozen=True)
class Kind:
    """A credential class of azure-identity. `login` tells the user how to log in."""

    name: str
    login: str
    takes_authority: bool = False
    takes_client_id: bool = False


_SERVICE_PRINCIPAL = "set AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET"

KINDS = {
    "cli": Kind("AzureCliCredential", "log in: `az login`"),
    "developer_cli": Kind("AzureDeveloperCliCredential", "log in: `azd auth login`"),
    "powershell": Kind("AzurePowerShellCredential", "log in: `Connect-AzAccount`"),
    "environment": Kind("EnvironmentCredential", _SERVICE_PRINCIPAL, takes_authority=True),
    "managed_identity": Kind(
        "ManagedIdentityCredential",
        "give this machine an identity; AZURE_CLIENT_ID chooses one of several",
        takes_client_id=True,
    ),
    "workload_identity": Kind(
        "WorkloadIdentityCredential",
        "set AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_FEDERATED_TOKEN_FILE",
        takes_authority=True,
    ),
}
"""The kinds that a target may name. All of them work without a question or a browser."""

ANY = Kind("DefaultAzureCredential", f"log in: `az login`, or {_SERVICE_PRINCIPAL}", takes_authority=True)
"""Tries each kind in turn, until one has a token."""


def kind_of(name: str | None) -> Kind:
    """Return the kind of credential with the name `name`; for None, the kind that tries all others in turn.

    Raises:
        SettingsError: `name` is not a kind of credential.
    """
    if name is None:
        return ANY
    if name not in KINDS:
        raise SettingsError(f"`{name}` is not a kind of Azure credential", hint=did_you_mean(name, KINDS), code="CT916")
    return KINDS[name]


def credential_of(name: str | None, cloud: Cloud, environ: Mapping[str, str]) -> Any:
    """Return a credential that gets tokens from `cloud`, and new tokens when they expire.

    Raises:
        SettingsError: `name` is not a kind of credential, or a variable or file that it needs is missing.
        MissingExtra: azure-identity is not installed.
    """
    kind = kind_of(name)
    identity = require("azure.identity", extra="azureml")
    options: dict[str, Any] = {}
    if kind.takes_authority:
        options["authority"] = cloud.login
        if not cloud.is_built_in:
            options["disable_instance_discovery"] = True  # it would ask the public cloud, which does not know this one
    if kind.takes_client_id and environ.get("AZURE_CLIENT_ID"):
        options["client_id"] = environ["AZURE_CLIENT_ID"]
    try:
        return getattr(identity, kind.name)(**options)
    except ValueError as error:
        raise SettingsError(f"{' '.join(str(error).split()).rstrip('.')}", hint=kind.login, code="CT916") from error
    except OSError as error:  # from reading a certificate's file
        raise SettingsError(
            f"`{error.filename}` cannot be read: {error.strerror}", hint=kind.login, code="CT916"
        ) from error


_SIGNS = (
    "AZURE_CLIENT_ID",
    "AZURE_USERNAME",
    "AZURE_FEDERATED_TOKEN_FILE",
    "IDENTITY_ENDPOINT",
    "MSI_ENDPOINT",
)


def credentials_in_sight(environ: Mapping[str, str]) -> bool:
    """Return whether this machine seems to have credentials, without using the network.

    A virtual machine gets credentials from its metadata service over the network; cloudtrain asks that service only
    with `--online`.
    """
    return any(environ.get(sign) for sign in _SIGNS) or bool(az_subscriptions(az_folder(environ)))
