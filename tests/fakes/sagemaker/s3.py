"""S3, addressed by path: buckets in regions, objects whole or in parts, lists in pages."""

from __future__ import annotations

import base64
import hashlib
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from tests.fakes.sagemaker.faults import Refused


@dataclass
class Object:
    """The bytes, and the headers that came with them (`x-amz-meta-...`, encryption)."""

    data: bytes
    headers: dict[str, str] = field(default_factory=dict)
    checksum: str = ""
    """SHA-256 in base64, where the upload asked for one; of parts, that of their hashes and how many they are."""

    @property
    def etag(self) -> str:
        return f'"{hashlib.md5(self.data, usedforsecurity=False).hexdigest()}"'


@dataclass
class Bucket:
    region: str
    owner: str
    objects: dict[str, Object] = field(default_factory=dict)


class Reply(NamedTuple):
    status: int = HTTPStatus.OK
    body: bytes = b""
    headers: Mapping[str, str] = MappingProxyType({})
    length: int | None = None
    """Of the body that HEAD leaves out."""


class Target(NamedTuple):
    """What a request is about, and its operation."""

    bucket: str
    key: str
    query: dict[str, str]
    operation: str


_OPERATIONS = {
    ("HEAD", False): "HeadBucket", ("GET", False): "ListObjectsV2", ("PUT", False): "CreateBucket",
    ("HEAD", True): "HeadObject", ("GET", True): "GetObject", ("PUT", True): "PutObject",
    ("POST", True): "CreateMultipartUpload", ("DELETE", True): "AbortMultipartUpload",
}  # fmt: skip


def target_of(method: str, path: str) -> Target:
    """The operation of a request."""
    parts = urlsplit(path)
    bucket, _, key = unquote(parts.path).lstrip("/").partition("/")
    query = {
        name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()
    }
    operation = _OPERATIONS[method, bool(key)]
    if "uploadId" in query:
        operation = {
            "PUT": "UploadPart",
            "POST": "CompleteMultipartUpload",
            "DELETE": "AbortMultipartUpload",
        }[method]
    return Target(bucket, key, query, operation)


class S3:
    """The service. `page_size` is how many keys a list has at most; `may_decrypt` whether the caller may use KMS keys."""

    def __init__(self, region: str, account: str) -> None:
        self.region = region
        self.buckets = {f"sagemaker-{region}-{account}": Bucket(region, account)}
        self.page_size = 1000
        self.may_decrypt = True
        self._parts: dict[str, tuple[dict[str, str], dict[int, bytes]]] = {}
        self._lock = threading.RLock()

    def add_bucket(
        self, name: str, *, region: str | None = None, owner: str = "123456789012"
    ) -> Bucket:
        self.buckets[name] = Bucket(region or self.region, owner)
        return self.buckets[name]

    def put(self, uri: str, data: bytes) -> None:
        """An object at `s3://bucket/key`; the bucket is made if need be."""
        bucket, _, key = uri.removeprefix("s3://").partition("/")
        (self.buckets.get(bucket) or self.add_bucket(bucket)).objects[key] = Object(data)

    def get(self, uri: str) -> Object:
        bucket, _, key = uri.removeprefix("s3://").partition("/")
        return self.buckets[bucket].objects[key]

    def handle(self, target: Target, headers: Mapping[str, str], body: bytes) -> Reply:
        """The answer to a request."""
        with self._lock:
            bucket = self.buckets.get(target.bucket)
            if bucket is None:
                raise Refused("NoSuchBucket", "The specified bucket does not exist", 404)
            if headers.get("x-amz-expected-bucket-owner", bucket.owner) != bucket.owner:
                raise Refused("AccessDenied", "Access Denied", 403)
            name = re.sub(r"(?<!^)(?=[A-Z])", "_", target.operation).lower()
            return getattr(self, f"_{name}")(bucket, target, headers, body)

    def _head_bucket(self, bucket: Bucket, *_: object) -> Reply:
        return Reply(headers={"x-amz-bucket-region": bucket.region})

    def _list_objects_v2(self, bucket: Bucket, target: Target, *_: object) -> Reply:
        query = target.query
        keys = sorted(key for key in bucket.objects if key.startswith(query.get("prefix", "")))
        start = int(query.get("continuation-token", 0))
        end = start + min(self.page_size, int(query.get("max-keys", 1000)))
        items = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(bucket.objects[key].data)}</Size></Contents>"
            for key in keys[start:end]
        )
        more = f"<NextContinuationToken>{end}</NextContinuationToken>" if end < len(keys) else ""
        truncated = "true" if more else "false"
        return _xml(
            "ListBucketResult",
            f"<KeyCount>{len(keys[start:end])}</KeyCount><IsTruncated>{truncated}</IsTruncated>{more}{items}",
        )

    def _head_object(
        self, bucket: Bucket, target: Target, headers: Mapping[str, str], _: bytes
    ) -> Reply:
        item = self._item(bucket, target)
        asked = headers.get("x-amz-checksum-mode") == "ENABLED" and item.checksum
        if asked and not self.may_decrypt and "x-amz-server-side-encryption" in item.headers:
            raise Refused("AccessDenied", "not authorized to perform: kms:Decrypt", 403)
        checksum = {"x-amz-checksum-sha256": item.checksum} if asked else {}
        return Reply(headers={**item.headers, **checksum, "ETag": item.etag}, length=len(item.data))

    def _get_object(
        self, bucket: Bucket, target: Target, headers: Mapping[str, str], _: bytes
    ) -> Reply:
        item = self._item(bucket, target)
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", headers.get("range", ""))
        if match is None:
            return Reply(body=item.data, headers={**item.headers, "ETag": item.etag})
        start, end = int(match[1]), int(match[2] or len(item.data) - 1)
        end = min(end, len(item.data) - 1)
        span = f"bytes {start}-{end}/{len(item.data)}"
        return Reply(
            HTTPStatus.PARTIAL_CONTENT,
            item.data[start : end + 1],
            {"Content-Range": span, "ETag": item.etag},
        )

    def _put_object(
        self, bucket: Bucket, target: Target, headers: Mapping[str, str], body: bytes
    ) -> Reply:
        bucket.objects[target.key] = item = Object(body, _kept(headers))
        if headers.get("x-amz-sdk-checksum-algorithm") == "SHA256":
            item.checksum = base64.b64encode(hashlib.sha256(body).digest()).decode()
        return Reply(headers={"ETag": item.etag})

    def _create_multipart_upload(
        self, bucket: Bucket, target: Target, headers: Mapping[str, str], _: bytes
    ) -> Reply:
        upload = f"upload-{len(self._parts) + 1}"
        algorithm = {key: headers[key] for key in ("x-amz-checksum-algorithm",) if key in headers}
        self._parts[upload] = _kept(headers) | algorithm, {}
        return _xml(
            "InitiateMultipartUploadResult",
            f"<Bucket>{target.bucket}</Bucket><Key>{escape(target.key)}</Key><UploadId>{upload}</UploadId>",
        )

    def _upload_part(
        self, bucket: Bucket, target: Target, headers: Mapping[str, str], body: bytes
    ) -> Reply:
        self._parts[target.query["uploadId"]][1][int(target.query["partNumber"])] = body
        return Reply(headers={"ETag": Object(body).etag})

    def _complete_multipart_upload(self, bucket: Bucket, target: Target, *_: object) -> Reply:
        headers, parts = self._parts.pop(target.query["uploadId"])
        item = Object(b"".join(parts[number] for number in sorted(parts)), headers)
        if headers.pop("x-amz-checksum-algorithm", None) == "SHA256":
            digests = b"".join(hashlib.sha256(parts[number]).digest() for number in sorted(parts))
            item.checksum = (
                f"{base64.b64encode(hashlib.sha256(digests).digest()).decode()}-{len(parts)}"
            )
        bucket.objects[target.key] = item
        return _xml("CompleteMultipartUploadResult", f"<ETag>{escape(item.etag)}</ETag>")

    def _abort_multipart_upload(self, bucket: Bucket, target: Target, *_: object) -> Reply:
        self._parts.pop(target.query["uploadId"], None)
        return Reply(HTTPStatus.NO_CONTENT)

    def _item(self, bucket: Bucket, target: Target) -> Object:
        item = bucket.objects.get(target.key)
        if item is None:
            raise Refused("NoSuchKey", "The specified key does not exist.", 404)
        return item


def _kept(headers: Mapping[str, str]) -> dict[str, str]:
    return {
        key: value
        for key, value in headers.items()
        if key.startswith(("x-amz-meta-", "x-amz-server-side-"))
    }


def _xml(root: str, inner: str) -> Reply:
    return Reply(body=f'<?xml version="1.0" encoding="UTF-8"?><{root}>{inner}</{root}>'.encode())
