"""Upload the bundle and local data to S3. Existing content is skipped, because addresses contain the content's hash.

S3 stores an object completely or not at all, and checks the SHA-256 of each part on arrival. An existing object counts
as cloudtrain's and complete if three values are right: the content's hash in its metadata, its size, and S3's own
checksum.
"""

from __future__ import annotations

import hashlib
import tempfile
from base64 import b64encode
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

from cloudtrain.bundle.data import DataFile
from cloudtrain.core.plan import Upload
from cloudtrain.system.extras import require
from cloudtrain.targets.base import BundleWriter, ByteProgress
from cloudtrain.targets.common.data import Report, Storage, below, send_data
from cloudtrain.targets.common.provider_errors import Denied, NotThere
from cloudtrain.targets.sagemaker.s3_uri import S3Uri
from cloudtrain.targets.sagemaker.service.clients import Clients

_PART = 16 << 20
"""Size of one part in bytes; larger files are uploaded in several parts at once."""

_TYPE = "ContentType"

_MARK, _SIZE, _CHECKSUM = "cloudtrain-sha256", "cloudtrain-bytes", "cloudtrain-checksum"
"""Metadata of an uploaded bundle: the hash of its content, and size and checksum of the archive."""


def upload(
    clients: Clients,
    item: Upload,
    bundle: BundleWriter,
    *,
    owner: str | None,
    kms_key: str | None,
    on_bytes: ByteProgress | None,
) -> bool:
    """Upload the bundle to `item.destination`; return False if it is already there.

    Args:
        owner: the account that must own the bucket. A bucket of another account is refused.
        kms_key: the KMS key that encrypts the object. Default: the bucket's key.

    Raises:
        TargetError: the bucket does not exist, is in another region, or is not writable.
    """
    where = S3Uri.parse(item.destination)
    place = {"Bucket": where.bucket, "Key": where.key} | ({"ExpectedBucketOwner": owner} if owner else {})
    if _is_there(clients, place, item.sha256):
        return False
    with tempfile.TemporaryDirectory(prefix="cloudtrain-") as folder:
        archive = Path(folder, "sourcedir.tar.gz")
        bundle.write(archive)
        metadata = {_MARK: item.sha256, _SIZE: str(archive.stat().st_size), _CHECKSUM: _checksum(archive)}
        count = None if on_bytes is None else _counting(archive.stat().st_size, on_bytes)
        _send(clients, archive, place, _extras(metadata, owner, kms_key), count)
    return True


def upload_data(
    clients: Clients, item: Upload, *, owner: str | None, kms_key: str | None, on_bytes: ByteProgress | None
) -> bool:
    """Upload local data to its S3 folder; return False if all files are already there.

    Arguments and errors are the same as for `upload`.
    """
    where = S3Uri.parse(item.destination)
    bucket = {"Bucket": where.bucket} | ({"ExpectedBucketOwner": owner} if owner else {})
    extras = {name: value for name, value in _extras({}, owner, kms_key).items() if name not in ("Metadata", _TYPE)}

    def sizes() -> dict[str, int]:
        pages = clients.pages(
            "s3", "list_objects_v2", token="ContinuationToken", next_token="NextContinuationToken",
            Prefix=where.folder, **bucket,
        )  # fmt: skip
        return below(where.key, {found["Key"]: found["Size"] for page in pages for found in page.get("Contents", ())})

    def send(file: DataFile, report: Report) -> None:
        count = _counting(file.size, lambda sent, _: report(sent))
        _send(clients, file.place, {**bucket, "Key": where.folder + file.path}, extras, count)

    def remove(name: str) -> None:
        clients.call("s3", "delete_object", Key=where.folder + name, **bucket)

    return send_data(item, Storage(sizes, send, remove), on_bytes)


def _is_there(clients: Clients, place: dict[str, str], sha256: str) -> bool:
    """Return whether S3 already has a complete object with the content's hash `sha256`.

    Returns False if the credentials do not allow reading from the bucket. If S3 does not report the checksum of an
    encrypted object, because the credentials cannot use its KMS key, hash and size suffice.
    """
    found = None
    for options in ({"ChecksumMode": "ENABLED"}, {}):
        try:
            found = clients.call("s3", "head_object", **place, **options)
            break
        except NotThere:
            return False
        except Denied:
            continue
    if found is None:
        return False
    said, checksum = found["Metadata"], found.get("ChecksumSHA256")
    checksum = checksum and checksum.partition("-")[0]  # the number of parts may follow it
    is_whole = said.get(_SIZE) == str(found["ContentLength"]) and checksum in (None, said.get(_CHECKSUM))
    return bool(said.get(_MARK) == sha256 and is_whole)


def _checksum(archive: Path) -> str:
    """Return the SHA-256 that S3 reports for the archive: for an upload in parts, the hash of the parts' hashes."""
    with archive.open("rb") as file:
        digests = [hashlib.sha256(part).digest() for part in iter(partial(file.read, _PART), b"")]
    is_one_part = archive.stat().st_size < _PART
    whole = b"".join(digests) or hashlib.sha256().digest()
    return b64encode(whole if is_one_part else hashlib.sha256(whole).digest()).decode()


def _extras(metadata: dict[str, str], owner: str | None, kms_key: str | None) -> dict[str, Any]:
    extras: dict[str, Any] = {
        "Metadata": metadata,
        _TYPE: "application/gzip",
        "ChecksumAlgorithm": "SHA256",
    }
    if owner is not None:
        extras["ExpectedBucketOwner"] = owner
    if kms_key is not None:
        extras |= {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": kms_key}
    return extras


def _send(
    clients: Clients,
    archive: Path,
    place: dict[str, str],
    extras: dict[str, Any],
    count: Callable[[int], None] | None,
) -> None:
    transfer = require("boto3.s3.transfer", extra="sagemaker")
    config = transfer.TransferConfig(multipart_threshold=_PART, multipart_chunksize=_PART)

    def send(client: Any) -> None:
        with archive.open("rb") as file:
            client.upload_fileobj(
                file,
                place["Bucket"],
                place["Key"],
                ExtraArgs=extras,
                Callback=count,
                Config=config,
            )

    clients.attempt("s3", "put_object", {"Bucket": place["Bucket"]}, send)


def _counting(total: int, on_bytes: ByteProgress) -> Callable[[int], None]:
    sent, lock = 0, Lock()

    def count(amount: int) -> None:
        nonlocal sent
        with lock:  # parts go up in several threads
            sent = min(total, max(0, sent + amount))  # a repeated part first counts backwards
            on_bytes(sent, total)

    return count
