"""Azure's clouds: their hosts, and the audiences of their tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from cloudtrain.errors import SettingsError, TargetError, did_you_mean

METADATA_URL = "ARM_CLOUD_METADATA_URL"
"""The variable with the address that describes other clouds; the az command and azure-ai-ml use it too."""

CURRENT = "AZUREML_CURRENT_CLOUD"


@dataclass(frozen=True)
class Cloud:
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
        """Return the scope of tokens for requests to the resource manager."""
        return f"{self.resource_manager}/.default"

    @property
    def job_scope(self) -> str:
        """Return the scope of the token with which a job accesses data as its user."""
        return f"{self.studio}/.default"

    @property
    def is_built_in(self) -> bool:
        """Return whether the cloud is built into cloudtrain: public, US government or China."""
        return self.name in BUILT_IN


BUILT_IN = {
    cloud.name: cloud
    for cloud in (
        Cloud(
            "AzureCloud",
            "https://management.azure.com",
            "https://login.microsoftonline.com",
            "https://ml.azure.com",
            "core.windows.net",
        ),
        Cloud(
            "AzureUSGovernment",
            "https://management.usgovcloudapi.net",
            "https://login.microsoftonline.us",
            "https://ml.azure.us",
            "core.usgovcloudapi.net",
        ),
        Cloud(
            "AzureChinaCloud",
            "https://management.chinacloudapi.cn",
            "https://login.chinacloudapi.cn",
            "https://ml.azure.cn",
            "core.chinacloudapi.cn",
        ),
    )
}


def known_cloud(name: str | None, environ: Mapping[str, str]) -> Cloud | None:
    """Return the target's cloud if it is built in, so that no request is needed; otherwise None.

    `name`: see `cloud_of`.
    """
    wanted = name or environ.get(CURRENT)
    if wanted is None:
        return None if environ.get(METADATA_URL) else BUILT_IN["AzureCloud"]
    return BUILT_IN.get(wanted)


def cloud_of(name: str | None, environ: Mapping[str, str], fetch: Callable[[str], Any]) -> Cloud:
    """Return the cloud of a target. Clouds that are not built in are looked up at ARM_CLOUD_METADATA_URL.

    Args:
        name: the target's setting `cloud`. Default: AZUREML_CURRENT_CLOUD, or else the cloud whose resource manager
            has the host of ARM_CLOUD_METADATA_URL, or else the public cloud.
        fetch: gets the JSON data at an address.

    Raises:
        SettingsError: the cloud is unknown.
    """
    known = known_cloud(name, environ)
    if known is not None:
        return known
    wanted, url = name or environ.get(CURRENT), environ.get(METADATA_URL)
    if not url:
        hint = did_you_mean(wanted or "", BUILT_IN)
        raise SettingsError(
            f"`{wanted}` is not an Azure cloud", hint=f"{hint} For another cloud, set {METADATA_URL}", code="CT917"
        )
    described = list(_read_clouds(fetch(url)))
    found = [cloud for cloud in described if _is_meant(cloud, wanted, url)]
    if found:
        return found[0]
    if wanted is None:
        return BUILT_IN["AzureCloud"]
    names = [cloud.name for cloud in described]
    raise SettingsError(
        f"the metadata at `{url}` describes no cloud `{wanted}`",
        hint=did_you_mean(wanted, [*BUILT_IN, *names]),
        code="CT917",
    )


def _is_meant(cloud: Cloud, wanted: str | None, url: str) -> bool:
    if wanted is not None:
        return cloud.name == wanted
    return urlsplit(cloud.resource_manager).netloc == urlsplit(url).netloc


def _read_clouds(answer: Any) -> Iterator[Cloud]:
    """Yield the clouds in the JSON data at ARM_CLOUD_METADATA_URL, which describes one cloud or a list of clouds."""
    for item in answer if isinstance(answer, list) else [answer]:
        try:
            yield Cloud(
                name=item["name"],
                resource_manager=item["resourceManager"].rstrip("/"),
                login=item["authentication"]["loginEndpoint"].rstrip("/"),
                studio=_studio(item["portal"]),
                storage=item["suffixes"]["storage"],
            )
        except (KeyError, TypeError, AttributeError) as error:
            hint = f"check the address in {METADATA_URL}"
            raise TargetError(f"the metadata of a cloud lacks the field {error}", hint=hint, code="CT917") from None


def _studio(portal: str) -> str:
    """Return the studio's address, `ml.azure.DOMAIN`, for a portal at `portal.azure.DOMAIN`.

    Azure does not document this rule.
    """
    parts = urlsplit(portal)
    host = parts.netloc
    return f"https://ml.{host.removeprefix('portal.')}" if host.startswith("portal.") else f"https://{host}"
