"""Access to blob storage through azure-storage-blob: containers and their keys.

cloudtrain opens a datastore with the secret that the workspace has for it: a signature or the key
of the account. If the storage refuses the secret, for example because the account accepts no keys,
cloudtrain uses the user's own Azure credentials. An expired secret is renewed once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from threading import RLock
from typing import Any, TypeVar

from cloudtrain.documents import JsonObject
from cloudtrain.errors import TargetError, TargetUnreachable
from cloudtrain.rules.engine import value_at
from cloudtrain.system.plugins import require
from cloudtrain.targets.azureml.reading import BlobPlace, Where
from cloudtrain.targets.azureml.service.client import DATASTORE, HISTORY, Client
from cloudtrain.targets.common.services import Denied, Expired

Result = TypeVar("Result")
Key = Callable[[], Any]
"""Gets a container's key, in one of the forms that azure-storage-blob accepts as `credential`."""

OWN_STORE = "workspaceblobstore"
"""The datastore that every workspace has."""

READ = 4 << 20
"""Bytes of one request: for a log, and for each part of a file that is copied."""

RETRIES: dict[str, float] = {
    "retry_total": 3,
    "initial_backoff": 0.3,
    "increment_base": 2,
    "random_jitter_range": 0.2,
}
"""Retries of a request and their pauses: 2.3, 4.3 and 8.3 seconds, each 0.2 more or less. The
package counts before it waits, so the first pause is `initial_backoff` plus `increment_base` to the
power of one."""

_UNCHANGED = 304
_ANOTHER = 412
_NOTHING_BEYOND = 416

_REFUSED = (Denied, Expired)


@dataclass(frozen=True)
class Piece:
    """A part of a blob. `size` is the size of the whole blob, and `last_modified` is in seconds
    since the epoch."""

    data: bytes
    size: int
    etag: str
    created: datetime | None
    last_modified: float


class Blobs:
    """The storage of one workspace. This class is thread-safe."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._lock = RLock()
        self._containers: dict[Where, Container] = {}

    def container(self, where: Where) -> Container:
        """Return the container of a folder or file, always the same object for the same one."""
        home = replace(where, path="")
        with self._lock:
            if home not in self._containers:
                self._containers[home] = self._new_container(home)
            return self._containers[home]

    def beside(self, container_url: str) -> Container:
        """Return the container at `container_url`, which must be in the workspace's own storage
        account. It is opened with the credentials, or else with the account's key."""
        account_url, _, name = container_url.rpartition("/")
        store = f"{self.client.place.workspace_id}/datastores/{OWN_STORE}"
        keys: list[Key] = [self._credential, lambda: self._secret(store)]
        return Container(self, account_url, name, keys)

    def at(self, url: str) -> Any:
        """Return azure-storage-blob's client of the blob at a URL with a signature."""
        storage = require("azure.storage.blob", extra="azureml")
        return storage.BlobClient.from_blob_url(url, **self.options)

    @cached_property
    def options(self) -> JsonObject:
        transport = require("azure.core.pipeline.transport", extra="azureml")
        return {
            "transport": transport.RequestsTransport(connection_timeout=10, read_timeout=60),
            **RETRIES,
            "max_single_get_size": READ,
            "max_chunk_get_size": READ,
        }

    @contextmanager
    def translating(self, about: str) -> Iterator[None]:
        """Translate Azure's errors to cloudtrain's errors, which name the blob `about`."""
        exceptions = require("azure.core.exceptions", extra="azureml")
        try:
            yield
        except exceptions.AzureError as error:
            raise self.client.explain(error, about) from error

    def _new_container(self, where: Where) -> Container:
        if isinstance(where, BlobPlace):
            key: Key = (lambda: where.signature) if where.signature else self._credential
            return Container(self, where.account_url, where.container, [key])

        path = f"{where.workspace}/datastores/{where.name}"
        store = self.client.get(path, api_version=DATASTORE)["properties"]
        kind = store.get("datastoreType")
        container = store.get("containerName") or store.get("filesystem")
        if kind not in ("AzureBlob", "AzureDataLakeGen2") or not container:
            message = f"cloudtrain cannot read the datastore `{where.name}` of type `{kind}`"
            hint = (
                "copy the files with that storage's own tools; "
                f"`az ml datastore show --name {where.name}` prints the location"
            )
            raise TargetError(message, hint=hint, code="CT936")

        protocol = store.get("protocol") or "https"
        suffix = store.get("endpoint") or self.client.cloud.storage
        url = f"{protocol}://{store['accountName']}.blob.{suffix}"
        keys: list[Key] = [self._credential]
        if value_at(store, "credentials", "credentialsType") != "None":  # else it has no secret
            keys.insert(0, lambda: self._secret(path))
        return Container(self, url, container, keys)

    def _credential(self) -> Any:
        return self.client.credential

    def _secret(self, path: str) -> str:
        """Return the signature or the account key. Raises `Denied` for another secret, which cannot
        open blobs."""
        body = {"expirableSecret": True, "expireAfterHours": 1}
        answer = self.client.post(f"{path}/listSecrets", body, api_version=DATASTORE)
        secret: str | None = answer.get("sasToken") or answer.get("key")
        if not secret:
            message = f"the secrets of `{path}` are of type `{answer.get('secretsType')}`"
            raise Denied(
                message,
                hint="ask for the role `Storage Blob Data Contributor` on the storage account, "
                "which needs no secrets",
            )
        return secret


class Container:
    """A container, opened with the first of its keys that storage accepts. This class is
    thread-safe."""

    def __init__(self, blobs: Blobs, account_url: str, name: str, keys: Sequence[Key]) -> None:
        self._blobs = blobs
        self._account_url = account_url
        self._name = name
        self._keys = list(keys)
        self._client: Any = None
        self._lock = RLock()

    def use(self, about: str, operation: Callable[[Any], Result]) -> Result:
        """Return `operation(container)`, with azure-storage-blob's ContainerClient. Errors name the
        blob `about`; if storage accepts none of the keys, it is the error for the last key."""
        client = self._client
        if client is not None:
            try:
                return self._try(about, operation, client)
            except _REFUSED:
                pass  # the key worked before, so it may have expired
        with self._lock:
            if self._client is client:
                return self._first_that_fits(about, operation)
            client = self._client  # another thread has renewed it already
        return self._try(about, operation, client)

    def sizes(self, prefix: str) -> dict[str, int]:
        """Map the names of the blobs that begin with `prefix` to their sizes, without Data Lake's
        folders."""

        def list_sizes(container: Any) -> dict[str, int]:
            blobs = container.list_blobs(name_starts_with=prefix, include=["metadata"])
            return {blob.name: blob.size for blob in blobs if not _is_folder(blob)}

        return self.use(prefix, list_sizes)

    def _first_that_fits(self, about: str, operation: Callable[[Any], Result]) -> Result:
        """Try the keys in turn, keep the client of the first that storage accepts, and return the
        operation's result with it."""
        storage = require("azure.storage.blob", extra="azureml")
        refusals: list[TargetError] = []
        for key in self._keys:
            try:
                credential = key()
            except TargetUnreachable:
                raise
            except TargetError as error:  # the secret is unavailable; the next key may fit
                refusals.append(error)
                continue
            client = storage.ContainerClient(
                self._account_url, self._name, credential=credential, **self._blobs.options
            )
            try:
                result = self._try(about, operation, client)
            except _REFUSED as error:
                refusals.append(error)
                continue
            self._client = client
            return result
        raise refusals[-1]

    def _try(self, about: str, operation: Callable[[Any], Result], client: Any) -> Result:
        """Return the operation's result; Azure's errors become cloudtrain's."""
        with self._blobs.translating(about):
            return operation(client)


def read(
    blob: Any,
    offset: int,
    *,
    unless: str | None = None,
    only: str | None = None,
    length: int = READ,
) -> Piece | None:
    """Read at most `length` bytes of a blob, beginning at `offset`. `blob` is a BlobClient of
    azure-storage-blob. The result is None if the blob still has the ETag `unless`, or another one
    than `only`. Errors are azure-core's."""
    core = require("azure.core", extra="azureml")
    exceptions = require("azure.core.exceptions", extra="azureml")
    condition = {}
    if unless:
        condition = {"etag": unless, "match_condition": core.MatchConditions.IfModified}
    elif only:
        condition = {"etag": only, "match_condition": core.MatchConditions.IfNotModified}

    try:
        download = blob.download_blob(offset=offset, length=length, **condition)
        properties = download.properties
        size = int(properties.content_range.rpartition("/")[2])
        return _piece(download.readall(), size, properties)
    except exceptions.HttpResponseError as error:
        if error.status_code in (_UNCHANGED, _ANOTHER):
            return None
        if error.status_code != _NOTHING_BEYOND:
            raise
    # The blob ends before `offset`.
    properties = blob.get_blob_properties()
    return _piece(b"", properties.size, properties)


def _piece(data: bytes, size: int, properties: Any) -> Piece:
    last_modified = properties.last_modified.timestamp()
    return Piece(data, size, properties.etag, properties.creation_time, last_modified)


def _is_folder(blob: Any) -> bool:
    """Return whether a blob stands for a folder, as Data Lake's do."""
    metadata = {name.lower(): value for name, value in (blob.metadata or {}).items()}
    is_marked = metadata.get("hdi_isfolder", "").lower() == "true"
    return bool(is_marked or blob.name.endswith("/"))


# Look up the storage location of a job's output in the run history.

_RESOLVE = "1.5.0"


def resolved_place(client: Client, run_name: str, output: str) -> str | None:
    """Return the address of an output; None if the run history has none."""
    query = {"runId": run_name, "selectRunMetadata": True}
    path = client.gateway(f"history/{HISTORY}", "rundata")
    answer = client.post(path, query, api_version=HISTORY)
    asset = value_at(answer, "runMetadata", "outputs", output, "assetId")
    if not asset:
        return None

    path = client.gateway("data/v1.0", "dataversion/batchGetResolvedUris")
    answer = client.post(path, {"values": [asset]}, api_version=_RESOLVE)
    uri: str | None = value_at(answer, "values", asset, "uri")
    return uri
