"""Azure's clouds, with their hosts and the audiences of their tokens, and the credentials that get
these tokens.

azure-identity reads AZURE_CLIENT_ID, IDENTITY_ENDPOINT and its other variables from the process's
environment.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from cloudtrain.documents import JsonObject
from cloudtrain.documents.document import load_table
from cloudtrain.errors import SettingsError, TargetError, did_you_mean
from cloudtrain.system.plugins import require
from cloudtrain.targets.azureml.settings import az_folder, az_subscriptions

METADATA_URL = "ARM_CLOUD_METADATA_URL"
"""The variable with the address that describes other clouds; the az command and azure-ai-ml use it
too."""

CURRENT = "AZUREML_CURRENT_CLOUD"


class Cloud(NamedTuple):
    """One of Azure's clouds. Its addresses do not end with a slash."""

    name: str
    resource_manager: str
    login: str
    """The login service, which issues tokens."""
    studio: str
    """The studio's address, and the audience of the token with which a job acts for its user."""
    storage: str
    """Suffix of the storage accounts' hosts: `core.windows.net`."""

    @property
    def scope(self) -> str:
        """The scope of tokens for requests to the resource manager."""
        return f"{self.resource_manager}/.default"

    @property
    def job_scope(self) -> str:
        """The scope of the token with which a job accesses data as its user."""
        return f"{self.studio}/.default"


_TABLES = load_table(__file__, "clouds.toml")

BUILT_IN = {name: Cloud(name, **row) for name, row in _TABLES["clouds"].items()}


def cloud_of(name: str | None, environ: Mapping[str, str], fetch: Callable[[str], Any]) -> Cloud:
    """Return the cloud of a target. Clouds that are not built in are looked up at
    ARM_CLOUD_METADATA_URL. By default (`name` is the target's setting) it is that of
    AZUREML_CURRENT_CLOUD, or else the cloud whose resource manager has the host of
    ARM_CLOUD_METADATA_URL, or else the public cloud. `fetch` gets the JSON data at an address."""
    name = name or environ.get(CURRENT)
    url = environ.get(METADATA_URL)
    if name in BUILT_IN:
        return BUILT_IN[name]

    known = list(BUILT_IN)
    for cloud in _read_clouds(fetch(url)) if url else ():
        known.append(cloud.name)
        is_at_host = urlsplit(cloud.resource_manager).netloc == urlsplit(url).netloc
        if cloud.name == name or (name is None and is_at_host):
            return cloud
    if name is None:
        return BUILT_IN["AzureCloud"]
    hint = f"{did_you_mean(name, known)} For another cloud, set {METADATA_URL}"
    raise SettingsError(f"no Azure cloud `{name}` is known", hint=hint, code="CT917")


def _read_clouds(answer: Any) -> Iterator[Cloud]:
    """Yield the clouds that a metadata service describes: a list, or a single one."""
    items = answer if isinstance(answer, list) else [answer]
    for item in items:
        try:
            yield Cloud(
                name=item["name"],
                resource_manager=item["resourceManager"].rstrip("/"),
                login=item["authentication"]["loginEndpoint"].rstrip("/"),
                # a rule without a source: `ml.azure.DOMAIN` for a portal at `portal.azure.DOMAIN`
                studio=f"https://{re.sub('^portal', 'ml', urlsplit(item['portal']).netloc)}",
                storage=item["suffixes"]["storage"],
            )
        except (KeyError, TypeError, AttributeError) as error:
            message = f"the metadata of a cloud has an unknown form: {error!r}"
            raise TargetError(
                message, hint=f"check the address in {METADATA_URL}", code="CT917"
            ) from None


# Get credentials through azure-identity: the first that works, or only the kind in the target's
# setting `credential`.


class CredentialKind(NamedTuple):
    """A credential class of azure-identity. `login` tells the user how to log in."""

    name: str
    login: str
    takes_authority: bool = False
    takes_client_id: bool = False


KINDS = {name: CredentialKind(**row) for name, row in _TABLES["credentials"].items()}

ANY = CredentialKind(
    "DefaultAzureCredential",
    f"log in: `az login`, or {KINDS['environment'].login}",
    takes_authority=True,
)
"""Tries each kind in turn, until one has a token."""


def kind_of(name: str | None) -> CredentialKind:
    """For None, return the kind that tries all others in turn."""
    if name is None:
        return ANY
    if name not in KINDS:
        message = f"`{name}` is not a kind of Azure credential"
        raise SettingsError(message, hint=did_you_mean(name, KINDS), code="CT916")
    return KINDS[name]


def credential_of(name: str | None, cloud: Cloud, environ: Mapping[str, str]) -> Any:
    """Return a credential of azure-identity that gets tokens from `cloud`, and new tokens when they
    expire."""
    kind = kind_of(name)
    identity = require("azure.identity", extra="azureml")
    options: JsonObject = {}
    if kind.takes_authority:
        options["authority"] = cloud.login
        if cloud.name not in BUILT_IN:
            # it would ask the public cloud, which does not know this one
            options["disable_instance_discovery"] = True
    if kind.takes_client_id and environ.get("AZURE_CLIENT_ID"):
        options["client_id"] = environ["AZURE_CLIENT_ID"]

    try:
        return getattr(identity, kind.name)(**options)
    except (ValueError, OSError) as error:  # the latter from reading a certificate's file
        message = " ".join(str(error).split()).rstrip(".")
        raise SettingsError(message, hint=kind.login, code="CT916") from error


_SIGNS = (
    "AZURE_CLIENT_ID",
    "AZURE_USERNAME",
    "AZURE_FEDERATED_TOKEN_FILE",
    "IDENTITY_ENDPOINT",
    "MSI_ENDPOINT",
)


def credentials_in_sight(environ: Mapping[str, str]) -> bool:
    """A virtual machine gets credentials from its metadata service over the network; cloudtrain
    asks that service only with `--online`."""
    signs = [sign for sign in _SIGNS if environ.get(sign)]
    return bool(signs or az_subscriptions(az_folder(environ)))
