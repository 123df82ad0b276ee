"""The blob store of one account: block blobs whole or in blocks, ranges, conditions, lists in pages.

Its address is `https://localhost:PORT/ACCOUNT.blob.SUFFIX/container/blob`: azure-ai-ml puts the account's name between
`https://` and `.blob.`, so an account called `localhost:PORT/fakeacct` leads it here.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from itertools import count
from typing import NamedTuple
from urllib.parse import quote
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from tests.fakes.azureml import identity, sas
from tests.fakes.azureml.messages import Refused, Reply, Request

KEY = "bm9ib2R5LWhhcy10aGlzLWtleS1idXQtdGhlLWZha2U="
_VERSIONS = count(1)


@dataclass
class Blob:
    """The bytes, the metadata (`x-ms-meta-...`, without the prefix), and an ETag of its own for every change."""

    data: bytes
    metadata: dict[str, str] = field(default_factory=dict)
    content_type: str = "application/octet-stream"
    made: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        self.touch()

    def touch(self) -> None:
        """A new version."""
        self.changed, self.etag = time.time(), f'"0x8DE{next(_VERSIONS):012X}"'

    @property
    def headers(self) -> dict[str, str]:
        return {
            "ETag": self.etag,
            "Last-Modified": formatdate(self.changed, usegmt=True),
            "x-ms-creation-time": formatdate(self.made, usegmt=True),
            "x-ms-blob-type": "BlockBlob",
            "Content-Type": self.content_type,
            "Accept-Ranges": "bytes",
            **{f"x-ms-meta-{name}": value for name, value in self.metadata.items()},
        }


class Place(NamedTuple):
    container: str
    blob: str


class Blobs:
    """The service. `page_size` is how many entries a list has at most; containers are made by `add_container`."""

    def __init__(self) -> None:
        self.account = "fakeacct"
        self.host = ""
        """`localhost:PORT`, once the server listens."""
        self.suffix = "core.windows.net"
        self.page_size = 5000
        self.allows_shared_key = True
        self.containers: dict[str, dict[str, Blob]] = {}
        self._blocks: dict[Place, dict[str, bytes]] = {}
        self.lock = threading.RLock()

    @property
    def account_name(self) -> str:
        """What datastores call the account."""
        return f"{self.host}/{self.account}"

    @property
    def prefix(self) -> str:
        """The path of the account."""
        return f"/{self.account}.blob.{self.suffix}"

    @property
    def url(self) -> str:
        return f"https://{self.host}{self.prefix}"

    def add_container(self, name: str) -> None:
        self.containers.setdefault(name, {})

    def put(self, container: str, name: str, data: bytes, **metadata: str) -> Blob:
        """A blob; the container is made if need be."""
        with self.lock:
            self.add_container(container)
            self.containers[container][name] = blob = Blob(data, metadata)
            return blob

    def append(self, container: str, name: str, data: bytes) -> Blob:
        """More of a blob, which gets a new ETag, as an append blob does."""
        with self.lock:
            blob = self.containers.get(container, {}).get(name)
            if blob is None:
                return self.put(container, name, data)
            blob.data += data
            blob.touch()
            return blob

    def get(self, container: str, name: str) -> bytes:
        return self.containers[container][name].data

    def sas_url(self, container: str, blob: str = "", *, permissions: str = "r", seconds: float = 3600) -> str:
        """The address of a container or a blob that opens it for a while; no token is needed with it."""
        token = self.sas_token(container, blob, permissions=permissions, seconds=seconds)
        return f"{self.url}/{container}" + (f"/{quote(blob)}" if blob else "") + f"?{token}"

    def sas_token(self, container: str, blob: str = "", *, permissions: str = "rl", seconds: float = 3600) -> str:
        expires = time.time() + seconds
        return sas.make_token(self.account, container, blob, KEY, permissions=permissions, expires=expires)

    def handle(self, request: Request) -> Reply:
        """The answer to a request below `prefix`."""
        container, _, name = request.path[len(self.prefix) :].lstrip("/").partition("/")
        place = Place(container, name)
        operation, permissions = _operation(request, name)
        self._authorize(request, place, permissions)
        with self.lock:
            if container not in self.containers:
                raise Refused(404, "ContainerNotFound", "The specified container does not exist.")
            reply: Reply = getattr(self, f"_{operation}")(place, request)
        return reply._replace(headers={**reply.headers, "x-ms-version": request.headers.get("x-ms-version", "")})

    def _authorize(self, request: Request, place: Place, permissions: str) -> None:
        kind = request.headers.get("authorization", "").partition(" ")[0]
        if "sig" in request.query:
            self._check_sas(request, place, permissions)
        elif kind == "SharedKey":
            self._check_shared_key(request)
        elif kind == "Bearer":
            _check_token(request)
        else:
            message = "Public access is not permitted on this storage account."
            raise Refused(409, "PublicAccessNotPermitted", message)

    def _check_sas(self, request: Request, place: Place, permissions: str) -> None:
        reason = sas.refusal(request.query, self._names, place.container, place.blob, KEY)
        if reason:
            raise Refused(403, "AuthenticationFailed", f"{_AUTHENTICATION_FAILED} {reason}")
        if not set(permissions) & set(request.query.get("sp", "")):
            message = "This request is not authorized to perform this operation using this permission."
            raise Refused(403, "AuthorizationPermissionMismatch", message)

    def _check_shared_key(self, request: Request) -> None:
        account = request.headers["authorization"].removeprefix("SharedKey ").rpartition(":")[0]
        if account not in self._names:
            raise Refused(403, "AuthenticationFailed", _AUTHENTICATION_FAILED)
        if not self.allows_shared_key:
            message = "Key based authentication is not permitted on this storage account."
            raise Refused(403, "KeyBasedAuthenticationNotPermitted", message)

    @property
    def _names(self) -> tuple[str, ...]:
        """All that clients take for the account's name: they cut it out of the address, each in its own way."""
        return self.account, self.account_name, self.prefix.lstrip("/")

    def _put_blob(self, place: Place, request: Request) -> Reply:
        if request.headers.get("x-ms-blob-type") != "BlockBlob":
            raise Refused(
                400, "InvalidHeaderValue", "The value for one of the HTTP headers is not in the correct format."
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
        blob = Blob(data, _metadata(request), request.headers.get("x-ms-blob-content-type", "application/octet-stream"))
        self.containers[place.container][place.blob] = blob
        return Reply(201, headers={"ETag": blob.etag, "Last-Modified": blob.headers["Last-Modified"]})

    def _set_metadata(self, place: Place, request: Request) -> Reply:
        blob = self._found(place)
        blob.metadata = _metadata(request)
        blob.touch()
        return Reply(200, headers={"ETag": blob.etag, "Last-Modified": blob.headers["Last-Modified"]})

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
            raise Refused(416, "InvalidRange", message, headers={"Content-Range": f"bytes */{size}"})
        end = min(int(match[2] or size), size - 1)
        return Reply(206, blob.data[start : end + 1], blob.headers | {"Content-Range": f"bytes {start}-{end}/{size}"})

    def _delete(self, place: Place, request: Request) -> Reply:
        self._found(place)
        del self.containers[place.container][place.blob]
        return Reply(202)

    def _list(self, place: Place, request: Request) -> Reply:
        query, blobs = request.query, self.containers[place.container]
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        entries = _entries(blobs, prefix, delimiter)
        marker, size = query.get("marker", ""), min(self.page_size, int(query.get("maxresults", self.page_size)))
        rest = [entry for entry in entries if entry >= marker]
        page, more = rest[:size], (rest[size] if len(rest) > size else "")
        items = "".join(
            f"<BlobPrefix><Name>{escape(entry)}</Name></BlobPrefix>"
            if entry not in blobs
            else _listed(entry, blobs[entry], with_metadata="metadata" in query.get("include", ""))
            for entry in page
        )
        text = (
            '<?xml version="1.0" encoding="utf-8"?>'
            f'<EnumerationResults ServiceEndpoint="{self.url}/" ContainerName="{place.container}">'
            f"<Prefix>{escape(prefix)}</Prefix><Marker>{escape(marker)}</Marker><MaxResults>{size}</MaxResults>"
            f"<Blobs>{items}</Blobs><NextMarker>{escape(more)}</NextMarker></EnumerationResults>"
        )
        return Reply(200, text.encode(), {"Content-Type": "application/xml"})

    def _properties(self, place: Place, request: Request) -> Reply:
        return Reply(200, headers={"ETag": '"0x8DE"', "Last-Modified": formatdate(usegmt=True)})

    def _found(self, place: Place) -> Blob:
        blob = self.containers[place.container].get(place.blob)
        if blob is None:
            raise Refused(404, "BlobNotFound", "The specified blob does not exist.")
        return blob


_AUTHENTICATION_FAILED = (
    "Server failed to authenticate the request. Make sure the value of Authorization header is formed correctly "
    "including the signature."
)

_ON_BLOB = {
    ("PUT", ""): ("put_blob", "cw"), ("PUT", "block"): ("put_block", "cw"), ("PUT", "blocklist"): ("put_block_list", "cw"),
    ("PUT", "metadata"): ("set_metadata", "w"), ("HEAD", ""): ("head", "r"), ("GET", ""): ("get", "r"),
    ("DELETE", ""): ("delete", "d"),
}  # fmt: skip
_ON_CONTAINER = {("GET", "list"): ("list", "l"), ("GET", ""): ("properties", "r"), ("HEAD", ""): ("properties", "r")}


def _operation(request: Request, blob: str) -> tuple[str, str]:
    """The operation, and the permissions of which a signature needs one."""
    table = _ON_BLOB if blob else _ON_CONTAINER
    found = table.get((request.method, request.query.get("comp", "")))
    if found is None:
        raise Refused(400, "UnsupportedHttpVerb", f"the fake knows no {request}")
    return found


def _check_token(request: Request) -> None:
    try:
        identity.check_bearer(request, (identity.STORAGE,))
    except Refused as refusal:
        code = "InvalidAuthenticationInfo"
        raise Refused(401, code, refusal.message, headers=refusal.headers) from None


def _check_conditions(blob: Blob, request: Request) -> None:
    if request.headers.get("if-match", blob.etag) not in (blob.etag, "*"):
        message = "The condition specified using HTTP conditional header(s) is not met."
        raise Refused(412, "ConditionNotMet", message)


def _metadata(request: Request) -> dict[str, str]:
    prefix = "x-ms-meta-"
    return {name[len(prefix) :]: value for name, value in request.headers.items() if name.startswith(prefix)}


def _entries(blobs: Iterable[str], prefix: str, delimiter: str) -> list[str]:
    """Names and, up to the delimiter, the beginnings of names, in order."""
    found = set()
    for name in blobs:
        if not name.startswith(prefix):
            continue
        head, cut, _ = name[len(prefix) :].partition(delimiter) if delimiter else (name, "", "")
        found.add(prefix + head + cut if cut else name)
    return sorted(found)


def _listed(name: str, blob: Blob, *, with_metadata: bool) -> str:
    metadata = "".join(f"<{key}>{escape(value)}</{key}>" for key, value in blob.metadata.items())
    properties: Mapping[str, str] = {
        "Creation-Time": blob.headers["x-ms-creation-time"],
        "Last-Modified": blob.headers["Last-Modified"],
        "Etag": blob.etag.strip('"'),
        "Content-Length": str(len(blob.data)),
        "Content-Type": blob.content_type,
        "BlobType": "BlockBlob",
    }
    inner = "".join(f"<{key}>{escape(value)}</{key}>" for key, value in properties.items())
    tail = f"<Metadata>{metadata}</Metadata>" if with_metadata else ""
    return f"<Blob><Name>{escape(name)}</Name><Properties>{inner}</Properties>{tail}</Blob>"


def refused(refusal: Refused) -> Reply:
    """The error as the blob service says it."""
    text = (
        f'<?xml version="1.0" encoding="utf-8"?><Error><Code>{refusal.code}</Code>'
        f"<Message>{escape(refusal.message)}</Message></Error>"
    )
    headers = {"Content-Type": "application/xml", "x-ms-error-code": refusal.code, **refusal.headers}
    return Reply(refusal.status, text.encode(), headers)
