"""Upload the user's code as blobs: each file separately, several at once, to the location that the service names.

A job reads its code as files, so the bundle is uploaded unpacked. Storage checks the MD5 of each request, and the code
asset is created after all files have arrived. The service names a new location for each upload, so two submits of the
same code do not collide, and no asset refers to the files of an interrupted upload.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

from cloudtrain.bundle.data import DataFile
from cloudtrain.bundle.unpack import DamagedBundle, unpack
from cloudtrain.core.plan import Upload
from cloudtrain.errors import TargetError
from cloudtrain.system.extras import require
from cloudtrain.targets.azureml.service.blobs import OWN_STORE, Blobs
from cloudtrain.targets.azureml.service.client import Client
from cloudtrain.targets.azureml.service.places import DatastorePlace, place_of
from cloudtrain.targets.azureml.service.versions import CODE
from cloudtrain.targets.base import BundleWriter, ByteProgress
from cloudtrain.targets.common.data import Report, Storage, below, send_data
from cloudtrain.targets.common.transfers import Check, run_concurrently

_FILES_AT_ONCE, _BLOCKS_AT_ONCE = 8, 4

_WHOLE, _BLOCK = 8 << 20, 4 << 20
"""Sizes in bytes: a file up to the first is uploaded in one request, a larger one in blocks of the second."""

_RETRIES = 5
"""Retries of each request; the pauses begin with two seconds and double: about a minute in all."""

_FOLDER = "code"


class _File(NamedTuple):
    name: str
    """The path in the bundle, with slashes."""
    place: Path
    size: int


def upload_code(client: Client, code_id: str, bundle: BundleWriter, on_bytes: ByteProgress | None) -> str:
    """Upload the files of a bundle for a code asset, and return the address of their folder.

    Raises:
        TargetError: the service names no location, storage refuses the files, or a file's name is not UTF-8.
    """
    with _unpack(bundle) as source:
        files = list(_files(source))
        given = client.post(
            f"{code_id}/startPendingUpload", {"pendingUploadType": "TemporaryBlobReference"}, api_version=CODE
        )["blobReferenceForConsumption"]
        _send(_container(client, given), _FOLDER, files, Blobs(client), _counting(files, on_bytes))
    return f"{given['blobUri'].rstrip('/')}/{_FOLDER}"


def upload_folder(client: Client, folder: str, sha256: str, bundle: BundleWriter) -> str:
    """Upload the folder `folder` of a bundle to the workspace's own storage, and return the address of the copy.

    The name of the copy is `sha256`, the hash of the folder's content. The address ends with a slash, as azure-ai-ml
    1.35.2 writes the addresses of build contexts.

    Raises:
        TargetError: the workspace's storage refuses the folder.
    """
    blobs, place = Blobs(client), f"cloudtrain/folders/{sha256}"
    with _unpack(bundle) as source:
        files = list(_files(source / folder))

        def send(container: Any) -> str:
            _send(container, place, files, blobs, _counting(files, None))
            return str(container.url).partition("?")[0]

        address = blobs.container(DatastorePlace(client.place.workspace_id, OWN_STORE)).use(folder, send)
    return f"{address}/{place}/"


def upload_data(client: Client, item: Upload, on_bytes: ByteProgress | None) -> bool:
    """Upload local data to the workspace's own storage; return False if all files are already there.

    Raises:
        TargetError: the workspace's storage refuses the data.
        UnreadableData: the data is missing on this machine, or has changed.
    """
    blobs, where = Blobs(client), place_of(item.destination, client.place.workspace_id)
    home = blobs.container(where)

    def send(file: DataFile, report: Report) -> None:
        home.use(file.path, lambda container: _put(container, f"{where.path}/{file.path}", file, report))

    def remove(name: str) -> None:
        home.use(name, lambda container: container.delete_blob(f"{where.path}/{name}"))

    return send_data(item, Storage(lambda: below(where.path, home.sizes(f"{where.path}/")), send, remove), on_bytes)


def _put(container: Any, name: str, file: _File | DataFile, report: Report) -> None:
    with file.place.open("rb") as content:
        container.upload_blob(
            name,
            content,
            length=file.size,
            overwrite=True,
            max_concurrency=_BLOCKS_AT_ONCE,
            validate_content=True,
            progress_hook=lambda sent, _: report(sent),
        )


@contextmanager
def _unpack(bundle: BundleWriter) -> Iterator[Path]:
    """Yield a temporary folder with the files of a bundle."""
    with tempfile.TemporaryDirectory(prefix="cloudtrain-") as folder:
        archive, source = Path(folder, "bundle.tar.gz"), Path(folder, "code")
        bundle.write(archive)
        try:
            unpack(archive, source, bundle.sha256)
        except DamagedBundle as error:
            raise TargetError(
                str(error), hint="check the disk that holds temporary files, or set TMPDIR to another folder"
            ) from None
        yield source


def _files(folder: Path, prefix: str = "", above: tuple[Path, ...] = ()) -> Iterator[_File]:
    """Yield every file below a folder. Links become copies of their targets, because blobs have no links.

    A link to a folder that contains the link itself is skipped.

    Args:
        prefix: the text before each file's path below the folder, such as `src/`.
        above: the resolved paths of the parent folders, to detect cycles.
    """
    here = folder.resolve()
    if here in above:
        return
    for place in folder.iterdir():
        name = f"{prefix}{place.name}"
        if place.is_dir():
            yield from _files(place, f"{name}/", (*above, here))
        else:
            yield _File(_text(name), place, place.stat().st_size)


def _text(name: str) -> str:
    """Return the name of a blob; raise TargetError if the name is not UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        shown = name.encode(errors="surrogateescape").decode(errors="backslashreplace")
        message = f"Azure ML cannot store the file `{shown}`, because its name is not UTF-8"
        raise TargetError(message, hint="rename the file, or exclude it in `.cloudtrainignore`", code="CT052") from None
    return name


def _container(client: Client, given: dict[str, Any]) -> Any:
    """Return a client for the container that the service has created for the upload.

    `given` is the service's answer about the container. If it has a signature, the client uses the signature;
    otherwise it uses the credentials.
    """
    storage = require("azure.storage.blob", extra="azureml")
    signed = (given.get("credential") or {}).get("sasUri")
    sizes = {"max_single_put_size": _WHOLE, "max_block_size": _BLOCK, "retry_total": _RETRIES}
    return storage.ContainerClient.from_container_url(
        signed or given["blobUri"],
        credential=None if signed else client.credential,
        **{**Blobs(client).options, **sizes},
    )


def _send(container: Any, folder: str, files: list[_File], blobs: Blobs, count: Callable[[_File, int], None]) -> None:
    """Upload all files into `folder`, and report each file's progress to `count`. The first failure ends the upload."""

    def send(file: _File, check: Check) -> None:
        def report(sent: int) -> None:
            check()
            count(file, sent)

        with blobs.translating(file.name):
            _put(container, f"{folder}/{file.name}", file, report)
        count(file, file.size)

    run_concurrently(_FILES_AT_ONCE, send, files)


def _counting(files: list[_File], on_bytes: ByteProgress | None) -> Callable[[_File, int], None]:
    """Return a function that takes a file and the number of its bytes sent so far, and calls `on_bytes` with the total
    of all files.
    """
    total, sent, lock = sum(file.size for file in files), dict.fromkeys(files, 0), Lock()
    sent_of_all = 0

    def count(file: _File, amount: int) -> None:
        nonlocal sent_of_all
        if on_bytes is not None:
            with lock:
                sent_of_all += amount - sent[file]
                sent[file] = amount
                on_bytes(sent_of_all, total)

    return count
