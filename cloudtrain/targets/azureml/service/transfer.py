"""Upload the user's code as blobs: each file separately, several at once, to the location that the
service names.

A job reads its code as files, so the bundle is uploaded unpacked. Storage checks the MD5 of each
request, and the code asset is created after all files have arrived. The service names a new
location for each upload, so two submits of the same code do not collide, and no asset refers to the
files of an interrupted upload.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

from cloudtrain.code.data import DataFile, files_below
from cloudtrain.code.unpack import DamagedBundle, unpack
from cloudtrain.documents import JsonMapping, JsonObject
from cloudtrain.errors import (
    TargetError,
    TargetUnreachable,
    did_you_mean,
)
from cloudtrain.plans.plan import Upload
from cloudtrain.rules.engine import value_at
from cloudtrain.system.plugins import require
from cloudtrain.targets.azureml.compile.places import FOLDER, NAMED_RESULTS, places_of
from cloudtrain.targets.azureml.parts import UNNAMED
from cloudtrain.targets.azureml.reading import Body, DatastorePlace, Where, place_of
from cloudtrain.targets.azureml.service.blobs import (
    OWN_STORE,
    READ,
    Blobs,
    Piece,
    read,
    resolved_place,
)
from cloudtrain.targets.azureml.service.client import CODE, ENVIRONMENT, Client
from cloudtrain.targets.azureml.service.logs import RunLog, artifact_place
from cloudtrain.targets.common.archives import below, landing, no_result, nothing_written
from cloudtrain.targets.common.services import Denied, NotThere
from cloudtrain.targets.common.transfers import (
    Check,
    Report,
    Storage,
    count_bytes,
    run_concurrently,
    send_data,
)
from cloudtrain.targets.contract import BundleWriter, ByteProgress

_FILES_AT_ONCE = 8
_BLOCKS_AT_ONCE = 4

_WHOLE = 8 << 20
_BLOCK = 4 << 20
"""Sizes in bytes: a file up to the first is uploaded in one request, a larger one in blocks of the
second."""

_RETRIES = 5
"""Retries of each request; the pauses begin with two seconds and double: about a minute in all."""

_FOLDER = "code"


def upload_code(
    client: Client, code_id: str, bundle: BundleWriter, on_bytes: ByteProgress | None
) -> str:
    """Upload the files of a bundle for a code asset, and return the address of their folder."""
    with _unpack(bundle) as source:
        files = _files(source)
        kind = {"pendingUploadType": "TemporaryBlobReference"}
        answer = client.post(f"{code_id}/startPendingUpload", kind, api_version=CODE)
        place = answer["blobReferenceForConsumption"]
        _send(_container(client, place), _FOLDER, files, Blobs(client), on_bytes)
    return f"{place['blobUri'].rstrip('/')}/{_FOLDER}"


def upload_folder(client: Client, folder: str, sha256: str, bundle: BundleWriter) -> str:
    """Upload a folder of a bundle to the workspace's own storage, under the name `sha256`, the hash
    of its content. Return its address, which ends with a slash, as azure-ai-ml 1.35.2 writes the
    addresses of build contexts."""
    blobs = Blobs(client)
    place = f"cloudtrain/folders/{sha256}"
    with _unpack(bundle) as source:
        files = _files(source / folder)

        def send(container: Any) -> str:
            _send(container, place, files, blobs, None)
            return str(container.url).partition("?")[0]

        store = DatastorePlace(client.place.workspace_id, OWN_STORE)
        address = blobs.container(store).use(folder, send)
    return f"{address}/{place}/"


def upload_data(client: Client, item: Upload, on_bytes: ByteProgress | None) -> bool:
    """Upload data of this machine; return False if it is there already."""
    where = place_of(item.destination, client.place.workspace_id)
    home = Blobs(client).container(where)
    folder = where.path

    def list_files() -> dict[str, int]:
        return below(folder, home.sizes(f"{folder}/"))

    def send(file: DataFile, report: Report) -> None:
        name = f"{folder}/{file.path}"
        home.use(file.path, lambda container: _put(container, name, file, report))

    def remove(name: str) -> None:
        home.use(name, lambda container: container.delete_blob(f"{folder}/{name}"))

    return send_data(item, Storage(list_files, send, remove), on_bytes)


def _put(container: Any, name: str, file: DataFile, report: Report) -> None:
    with file.place.open("rb") as content:
        container.upload_blob(
            name,
            content,
            length=file.size,
            overwrite=True,
            max_concurrency=_BLOCKS_AT_ONCE,
            validate_content=True,
            progress_hook=lambda amount, _: report(amount),
        )


@contextmanager
def _unpack(bundle: BundleWriter) -> Iterator[Path]:
    """Unpack a bundle into a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="cloudtrain-") as folder:
        archive = Path(folder, "bundle.tar.gz")
        source = Path(folder, "code")
        bundle.write(archive)
        try:
            unpack(archive, source, bundle.sha256)
        except DamagedBundle as error:
            raise TargetError(
                str(error),
                hint="check the disk that holds temporary files, or set TMPDIR to another folder",
            ) from None
        yield source


def _files(folder: Path) -> list[DataFile]:
    """Return every file below a folder. Links become copies of their targets, because blobs have no
    links. Raises `TargetError` for a name that no blob can have."""
    files = list(files_below(folder))
    for file in files:
        try:
            file.path.encode()
        except UnicodeEncodeError:
            text = file.path.encode(errors="surrogateescape").decode(errors="backslashreplace")
            message = f"Azure ML cannot store the file `{text}`, because its name is not UTF-8"
            raise TargetError(
                message, hint="rename the file, or exclude it in `.cloudtrainignore`", code="CT052"
            ) from None
    return files


def _container(client: Client, place: JsonObject) -> Any:
    """Return a client for `place`, the container that the service has created for the upload. If
    the service's answer has a signature, the client uses the signature; otherwise it uses the
    credentials."""
    storage = require("azure.storage.blob", extra="azureml")
    sizes = {"max_single_put_size": _WHOLE, "max_block_size": _BLOCK, "retry_total": _RETRIES}
    options = Blobs(client).options | sizes

    url = value_at(place, "credential", "sasUri")
    credential = None
    if not url:
        url = place["blobUri"]
        credential = client.credential
    return storage.ContainerClient.from_container_url(url, credential=credential, **options)


def _send(
    container: Any, folder: str, files: list[DataFile], blobs: Blobs, on_bytes: ByteProgress | None
) -> None:
    """Upload all files into `folder`. The first failure ends the upload."""
    count = count_bytes(sum(file.size for file in files), on_bytes)

    def send(file: DataFile, check: Check) -> None:
        def report(amount: int) -> None:
            check()
            count(file.path, amount)

        with blobs.translating(file.path):
            _put(container, f"{folder}/{file.path}", file, report)
        count(file.path, file.size)  # also for an empty file, of which nothing is reported

    run_concurrently(_FILES_AT_ONCE, send, files)


# Copy a job's results: `model/`, `outputs/NAME`, `checkpoint/`, `logs/`, or all of them.
#
# `outputs/` also includes the script's own folder `./outputs`, which the service always keeps.
# Files are copied in parts, several parts at once. If a connection breaks or a key expires, only
# the interrupted part is requested again.

OUTPUTS = "outputs"
LOGS = "logs"

_FILES = 4
_PARTS = 4
"""The number of files copied at once, and the number of parts of each."""

_TRIES = 2
"""The number of attempts to copy a file that is rewritten meanwhile."""

Open = Callable[[Callable[[Any], "Piece | None"]], "Piece | None"]
"""Calls the function with azure-storage-blob's client of the file, and renews expired keys."""


class File(NamedTuple):
    """A file of a run: its path among the results, such as `outputs/plots/a.png`, and a function
    that opens it."""

    name: str
    open: Open


def download(blobs: Blobs, job: JsonMapping, path: str, destination: Path) -> list[Path]:
    """Copy everything under `path` into `destination`, which is created, and return the written
    files. The content of the folder `path` goes directly into `destination`. With an empty path,
    `destination` gets a folder for each result, such as `model`. `path` can also name a single
    file, such as `model/weights.pt`."""
    results = Results(blobs, job)
    path = results.check_path(path.strip("/"))

    files: dict[str, File] = {}
    for file in results.files(path):
        name = _behind(file.name, path) or file.name.rpartition("/")[2]
        files.setdefault(name, file)

    if not files and path:
        raise nothing_written(path, results.names)
    return _land(files, destination)


def fetch_code(blobs: Blobs, code_id: str, destination: Path) -> Path:
    """Copy the files of a code asset into `destination`, which is created, and return it. Raises
    `NotThere` if the asset does not exist, and `TargetError` if the user may not read its files, or
    a file's path is not allowed."""
    asset = blobs.client.get(code_id, api_version=CODE)
    address = str(asset["properties"]["codeUri"]).partition("?")[0]
    container_url, root = code_folder(address)
    container = blobs.beside(container_url)

    files = {}
    for blob in container.sizes(f"{root}/" if root else ""):
        if name := _behind(blob, root):
            files[name] = File(name, _opener(container, blob))
    _land(files, destination)
    return destination


def _land(files: Mapping[str, File], destination: Path) -> list[Path]:
    """Copy files to their paths in the folder `destination`: all of them, or none."""
    with landing(destination) as staging:
        places = [(files[name], staging.place(name)) for name in sorted(files)]
        run_concurrently(_FILES, lambda item, check: _fetch(*item, check), places)
        return staging.move()


def code_folder(address: str) -> tuple[str, str]:
    """Split the address of a code asset's files into the container's address and the folder in the
    container. The folder of `upload_code` has one level, and the SDK's has several. A single file
    is in the container itself, whose address ends with a slash (recorded March 2026): the folder is
    empty."""
    address = address.rstrip("/")
    match = re.fullmatch(r"(https://(?:[^/]+/)?[^/]+\.blob\.[^/]+/[^/]+)/?(.*)", address)
    if match:
        return match[1], match[2]
    container, _, folder = address.rpartition("/")
    return container, folder


class Results:
    """The results of one run, under the names that results have on all targets."""

    def __init__(self, blobs: Blobs, job: JsonMapping) -> None:
        self._blobs = blobs
        self._job = job
        self._run: str = job["name"]
        self._workspace = blobs.client.place.workspace_id
        self._places = places_of(job, self._run, self._workspace)

    @property
    def names(self) -> list[str]:
        return [*self._places, OUTPUTS, LOGS]

    def check_path(self, path: str) -> str:
        """Return the path with the result's standard name: `model` for `outputs/model`."""
        for name in NAMED_RESULTS:
            if name in self._places and _behind(path, f"{OUTPUTS}/{name}") is not None:
                path = path.removeprefix(f"{OUTPUTS}/")
        is_result = any(_overlap(name, path) for name in self.names)
        if not is_result or ".." in path.split("/"):
            raise no_result(path, did_you_mean(path, self.names))
        return path

    def files(self, path: str) -> Iterator[File]:
        """Yield the files under `path` in the results. Of two files with the same name, the first
        counts."""
        names = [name for name in self._places if _overlap(name, path)]
        for name in names:
            yield from self._output(name, _behind(path, name) or "")

        is_inside_one = any(_behind(path, name) is not None for name in names)
        if _overlap(OUTPUTS, path) and not is_inside_one:
            where = artifact_place(self._workspace, self._run, f"{OUTPUTS}/")
            yield from self._at(OUTPUTS, where, _behind(path, OUTPUTS) or "")

        if _overlap(LOGS, path):
            log = RunLog(self._blobs, self._run, Body(self._job))
            log.discover()
            for name in log.names:
                if _behind(f"{LOGS}/{name}", path) is not None:
                    yield File(f"{LOGS}/{name}", partial(log.use_file, name))

    def _output(self, name: str, rest: str) -> list[File]:
        """Return the files of an output below the path `rest`, from its default place or else from
        the one that the service chose."""
        where = place_of(self._places[name], self._workspace)
        files = list(self._at(name, where, rest))
        if not files and (elsewhere := self._resolve(name)):
            return list(self._at(name, elsewhere, rest))
        return files

    def _resolve(self, name: str) -> Where | None:
        """Return the storage location that the service chose for an output. Returns None if the job
        itself names a location, or if the run history has none or may not be read."""
        output = name.rpartition("/")[2]
        if self._job["properties"]["outputs"][output].get("uri"):
            return None
        try:
            uri = resolved_place(self._blobs.client, self._run, output)
        except (NotThere, Denied):
            return None
        return place_of(uri, self._workspace) if uri else None

    def _at(self, name: str, where: Where, rest: str) -> Iterator[File]:
        """Yield the files of the result `name` at a place, below the path `rest`."""
        container = self._blobs.container(where)
        root = where.path.rstrip("/")
        blobs = container.sizes(f"{root}/{rest}" if root else rest)
        if not blobs and root and not rest:  # the place may be a file
            blobs = container.sizes(root)

        for blob in blobs:
            below = root.rpartition("/")[2] if blob == root else _behind(blob, root)
            if below and _behind(below, rest) is not None:
                yield File(f"{name}/{below}", _opener(container, blob))


def _opener(container: Any, blob: str) -> Open:
    return lambda copy: container.use(blob, lambda client: copy(client.get_blob_client(blob)))


def _behind(name: str, folder: str) -> str | None:
    """Return a path relative to `folder`: empty for the folder itself, None for a path outside the
    folder."""
    if not folder:
        return name
    if name == folder:
        return ""
    if not name.startswith(f"{folder}/"):
        return None
    return name.removeprefix(f"{folder}/")


def _overlap(one: str, other: str) -> bool:
    """Return whether one of two paths contains the other."""
    return _behind(one, other) is not None or _behind(other, one) is not None


def _fetch(file: File, place: Path, check: Check) -> None:
    """Copy a file to a place. Raises `TargetError` if it changes during each attempt."""
    for _ in range(_TRIES):
        if _copy(file, place, check):
            return
    raise TargetError(
        f"`{file.name}` changed while cloudtrain copied it", hint="try again when the run has ended"
    )


def _copy(file: File, place: Path, check: Check) -> bool:
    """Copy all parts of a file, each opened separately; return False if the file changed
    meanwhile."""
    first = file.open(partial(read, offset=0))
    assert first is not None, "no ETag was named"
    lock = Lock()

    def copy_parts(start: int, check: Check) -> bool:
        """Copy the part at the offset `start` and every `_PARTS`-th part after it; return False if
        the file changed."""
        for offset in range(start, first.size, READ * _PARTS):
            check()
            part = file.open(partial(read, offset=offset, only=first.etag))
            if part is None or part.etag != first.etag:
                return False
            with lock:
                content.seek(offset)
                content.write(part.data)
        return True

    with place.open("wb") as content:
        content.write(first.data)
        starts = range(READ, first.size, READ)[:_PARTS]
        return all(run_concurrently(_PARTS, copy_parts, starts, check))


# Create code and environment assets. Their names contain a hash of their content, so existing
# assets can be reused.

_VERSIONS = {"code": CODE, "environment": ENVIRONMENT}

HASH = "cloudtrain.sha256"
"""A code asset's property with the hash of its content. The SDK's own property (`hash_sha256`)
follows other rules; the SDK would mistake our hash for its own."""


def make_asset(
    client: Client, item: Upload, bundle: BundleWriter, on_bytes: ByteProgress | None
) -> bool:
    """Create an asset; return False if it exists already. An interrupted creation is repeated from
    the beginning. An environment that the user has named is sent even if it exists, as azure-ai-ml
    does, to update its tags and description. The service refuses other changes to it."""
    *_, name, _, version = item.destination.split("/")
    is_named = item.kind == "environment" and name != UNNAMED
    if not is_named and _is_there(client, item):
        return False
    if item.content is not None:
        text = item.content
    else:
        where = upload_code(client, item.destination, bundle, on_bytes)
        properties = {"codeUri": where, "isAnonymous": True, "properties": {HASH: item.sha256}}
        text = json.dumps({"properties": properties})
    if item.folder is not None:
        text = text.replace(FOLDER, upload_folder(client, item.folder, item.sha256, bundle))

    api_version = _VERSIONS[item.kind]
    try:
        client.send("PUT", item.destination, api_version=api_version, content=text.encode())
    except (TargetUnreachable, Denied):
        raise
    except TargetError as error:
        if not _is_there(client, item):  # another process may have made the same asset meanwhile
            raise
        if is_named:
            asset = f"{name}:{version}"
            message = (
                f"the environment `{asset}` exists already, and Azure ML does not change it: "
                f"{error}"
            )
            raise TargetError(
                message,
                hint="raise `asset_version`, or use what exists: `environment: {azureml: "
                f"azureml:{asset}}}`",
            ) from None
    return True


def _is_there(client: Client, item: Upload) -> bool:
    """Return whether an asset exists. It is then complete, because it is created after all its
    files. Raises `TargetError` if its content is not what its name says."""
    try:
        asset = client.get(item.destination, api_version=_VERSIONS[item.kind])
    except NotThere:
        return False
    sha256 = value_at(asset, "properties", "properties", HASH)
    if item.kind == "code" and sha256 != item.sha256:
        name = item.destination.rpartition("/codes/")[2]
        raise TargetError(
            f"the code asset `{name}` does not match the hash in its name",
            hint="archive the asset in the workspace, or submit to another workspace",
        )
    return True
