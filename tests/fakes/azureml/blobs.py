"""The blob store of one account: block blobs whole or in blocks, ranges, conditions, lists in pages."""

from __future__ import annotations

import re
import threading
from email.utils import formatdate
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from tests.fakes.azureml.account import Account, Place
from tests.fakes.azureml.containers import Blob, list_blobs
from tests.fakes.azureml.messages import Refused, Reply, Request

_NOT_MODIFIED = 304


class Blobs(Account):
    """The service. `page_size` is how many entries a list has at most; containers are made by `add_container`."""

    def __init__(self) -> None:
        super().__init__()
        self.page_size = 5000
        self.containers: dict[str, dict[str, Blob]] = {}
        self._blocks: dict[Place, dict[str, bytes]] = {}
        self._lock = threading.RLock()

    def add_container(self, name: str) -> None:
        self.containers.setdefault(name, {})

    def put(self, container: str, name: str, data: bytes, **metadata: str) -> Blob:
        """A blob; the container is made if need be."""
        with self._lock:
            self.add_container(container)
            self.containers[container][name] = blob = Blob(data, metadata)
            return blob

    def append(self, container: str, name: str, data: bytes) -> Blob:
        """More of a blob, which gets a new ETag, as an append blob does."""
        with self._lock:
            blob = self.containers.get(container, {}).get(name)
            if blob is None:
                return self.put(container, name, data)
            blob.data += data
            blob.touch()
            return blob

    def get(self, container: str, name: str) -> bytes:
        return self.containers[container][name].data

    def handle(self, request: Request) -> Reply:
        """The answer to a request below `prefix`."""
        container, _, name = request.path[len(self.prefix) :].lstrip("/").partition("/")
        place = Place(container, name)
        operation, permissions = _operation(request, name)
        self.authorize(request, place, permissions)
        with self._lock:
            if container not in self.containers:
                raise Refused(404, "ContainerNotFound", "The specified container does not exist.")
            reply: Reply = getattr(self, f"_{operation}")(place, request)
        return reply._replace(
            headers={**reply.headers, "x-ms-version": request.headers.get("x-ms-version", "")}
        )

    def _put_blob(self, place: Place, request: Request) -> Reply:
        if request.headers.get("x-ms-blob-type") != "BlockBlob":
            raise Refused(
                400,
                "InvalidHeaderValue",
                "The value for one of the HTTP headers is not in the correct format.",
            )
        return self._store(place, request, request.raw)

    def _put_block(self, place: Place, request: Request) -> Reply:
        self._blocks.setdefault(place, {})[request.query["blockid"]] = request.raw
        return Reply(201)

    def _put_block_list(self, place: Place, request: Request) -> Reply:
        blocks = self._blocks.get(place, {})
        names = [item.text or "" for item in ElementTree.fromstring(request.raw)]
        if any(name not in blocks for name in names):
            raise Refused(400, "InvalidBlockList", "The specified block list is invalid.")
        reply = self._store(place, request, b"".join(blocks[name] for name in names))
        self._blocks.pop(place, None)
        return reply

    def _store(self, place: Place, request: Request, data: bytes) -> Reply:
        existing = self.containers[place.container].get(place.blob)
        if existing is not None and request.headers.get("if-none-match") == "*":
            raise Refused(409, "BlobAlreadyExists", "The specified blob already exists.")
        blob = Blob(
            data,
            _metadata(request),
            request.headers.get("x-ms-blob-content-type", "application/octet-stream"),
        )
        self.containers[place.container][place.blob] = blob
        return Reply(
            201, headers={"ETag": blob.etag, "Last-Modified": blob.headers["Last-Modified"]}
        )

    def _set_metadata(self, place: Place, request: Request) -> Reply:
        blob = self._found(place)
        blob.metadata = _metadata(request)
        blob.touch()
        return Reply(
            200, headers={"ETag": blob.etag, "Last-Modified": blob.headers["Last-Modified"]}
        )

    def _head(self, place: Place, request: Request) -> Reply:
        blob = self._found(place)
        _check_conditions(blob, request)
        return Reply(200, headers=blob.headers, length=len(blob.data))

    def _get(self, place: Place, request: Request) -> Reply:
        blob = self._found(place)
        _check_conditions(blob, request)
        wanted = request.headers.get("x-ms-range") or request.headers.get("range", "")
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", wanted)
        if match is None:
            return Reply(200, blob.data, blob.headers)
        start, size = int(match[1]), len(blob.data)
        if start >= size:
            message = "The range specified is invalid for the current size of the resource."
            raise Refused(
                416, "InvalidRange", message, headers={"Content-Range": f"bytes */{size}"}
            )
        end = min(int(match[2] or size), size - 1)
        return Reply(
            206,
            blob.data[start : end + 1],
            blob.headers | {"Content-Range": f"bytes {start}-{end}/{size}"},
        )

    def _delete(self, place: Place, request: Request) -> Reply:
        self._found(place)
        del self.containers[place.container][place.blob]
        return Reply(202)

    def _list(self, place: Place, request: Request) -> Reply:
        text = list_blobs(self.containers[place.container], request.query, self.page_size)
        return Reply(200, text, {"Content-Type": "application/xml"})

    def _properties(self, place: Place, request: Request) -> Reply:
        return Reply(200, headers={"ETag": '"0x8DE"', "Last-Modified": formatdate(usegmt=True)})

    def _found(self, place: Place) -> Blob:
        blob = self.containers[place.container].get(place.blob)
        if blob is None:
            raise Refused(404, "BlobNotFound", "The specified blob does not exist.")
        return blob


_ON_BLOB = {
    ("PUT", ""): ("put_blob", "cw"), ("PUT", "block"): ("put_block", "cw"), ("PUT", "blocklist"): ("put_block_list", "cw"),
    ("PUT", "metadata"): ("set_metadata", "w"), ("HEAD", ""): ("head", "r"), ("GET", ""): ("get", "r"),
    ("DELETE", ""): ("delete", "d"),
}  # fmt: skip
_ON_CONTAINER = {
    ("GET", "list"): ("list", "l"),
    ("GET", ""): ("properties", "r"),
    ("HEAD", ""): ("properties", "r"),
}


def _operation(request: Request, blob: str) -> tuple[str, str]:
    """The operation, and the permissions of which a signature needs one."""
    table = _ON_BLOB if blob else _ON_CONTAINER
    found = table.get((request.method, request.query.get("comp", "")))
    if found is None:
        raise Refused(400, "UnsupportedHttpVerb", f"the fake knows no {request}")
    return found


def _check_conditions(blob: Blob, request: Request) -> None:
    message = "The condition specified using HTTP conditional header(s) is not met."
    if request.headers.get("if-match", blob.etag) not in (blob.etag, "*"):
        raise Refused(412, "ConditionNotMet", message)
    if request.headers.get("if-none-match") == blob.etag:
        raise Refused(304, "ConditionNotMet", message, headers={"ETag": blob.etag})


def _metadata(request: Request) -> dict[str, str]:
    prefix = "x-ms-meta-"
    return {
        name[len(prefix) :]: value
        for name, value in request.headers.items()
        if name.startswith(prefix)
    }


def refused(refusal: Refused) -> Reply:
    """The error as the blob service says it."""
    text = (
        f'<?xml version="1.0" encoding="utf-8"?><Error><Code>{refusal.code}</Code>'
        f"<Message>{escape(refusal.message)}</Message></Error>"
    )
    headers = {
        "Content-Type": "application/xml",
        "x-ms-error-code": refusal.code,
        **refusal.headers,
    }
    body = b"" if refusal.status == _NOT_MODIFIED else text.encode()
    return Reply(refusal.status, body, headers)
