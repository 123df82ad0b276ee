"""Parse the addresses of files that Azure ML uses: paths in datastores and in storage accounts."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from urllib.parse import unquote, urlsplit

from cloudtrain.errors import TargetError

_DATASTORE = re.compile(
    r"azureml://"
    r"(?:(?P<workspace>subscriptions/[^/]+/resourcegroups/[^/]+(?:/providers/[^/]+)?/workspaces/[^/]+)/)?"
    r"datastores/(?P<name>[^/]+)(?:/paths(?=/|$))?(?:/(?P<path>.*))?",
    re.IGNORECASE | re.DOTALL,
)
"""Matches the long form, the short form, and the form without `paths` in which the service names a job's artifacts."""

_WORKSPACE = re.compile(
    r"subscriptions/(?P<sub>[^/]+)/resourcegroups/(?P<group>[^/]+)(?:/providers/[^/]+)?/workspaces/(?P<name>[^/]+)",
    re.IGNORECASE,
)
_HADOOP = re.compile(r"(?:wasbs?|abfss?)://(?P<container>[^@/]+)@(?P<host>[^/]+)(?:/(?P<path>.*))?", re.DOTALL)


@dataclass(frozen=True)
class DatastorePlace:
    """A folder or file in a datastore. `workspace` is an ARM id."""

    workspace: str
    name: str
    path: str = ""

    @property
    def home(self) -> DatastorePlace:
        """Return the datastore itself."""
        return replace(self, path="")


@dataclass(frozen=True)
class BlobPlace:
    """A folder or file in a storage account. `signature` is the text after the `?` of its address."""

    account_url: str
    container: str
    path: str = ""
    signature: str = ""

    @property
    def home(self) -> BlobPlace:
        """Return the container itself."""
        return replace(self, path="")


Where = DatastorePlace | BlobPlace


def place_of(uri: str, workspace: str) -> Where:
    """Parse an address. A datastore belongs to `workspace`, an ARM id, if the address does not name another workspace.

    Raises:
        TargetError: the text is not the address of a file, or the storage is of an unsupported kind.
    """
    match = _DATASTORE.fullmatch(uri)
    if match:
        named = match["workspace"]
        return DatastorePlace(_arm_id(named) if named else workspace, match["name"], match["path"] or "")
    match = _HADOOP.fullmatch(uri)
    if match:
        return BlobPlace(f"https://{_blob_host(match['host'])}", match["container"], match["path"] or "")
    parts = urlsplit(uri)
    container, _, path = parts.path.lstrip("/").partition("/")
    if parts.scheme == "https" and container and re.search(r"\.(blob|dfs)\.", parts.netloc):
        return BlobPlace(f"https://{_blob_host(parts.netloc)}", container, unquote(path), parts.query)
    raise TargetError(
        f"cloudtrain cannot copy from `{uri}`",
        hint="`az ml data show` prints the address of a data asset",
        code="CT936",
    )


def _blob_host(host: str) -> str:
    """Return the storage account's host for the blob protocol. Data Lake addresses have another host (`.dfs.`)."""
    return host.replace(".dfs.", ".blob.", 1)


def _arm_id(text: str) -> str:
    match = _WORKSPACE.fullmatch(text)
    assert match is not None, "the address's own pattern has matched it"
    return (
        f"/subscriptions/{match['sub']}/resourceGroups/{match['group']}"
        f"/providers/Microsoft.MachineLearningServices/workspaces/{match['name']}"
    )
