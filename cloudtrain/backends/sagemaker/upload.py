"""The bundle to S3. Its place holds its hash, so what is there already is the same and is not sent again."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Any

from cloudtrain._extras import require
from cloudtrain.backends.base import BundleWriter, OnBytes
from cloudtrain.backends.sagemaker.clients import Clients
from cloudtrain.backends.sagemaker.places import S3Uri
from cloudtrain.backends.sagemaker.refusals import Denied, NotThere
from cloudtrain.plans import Upload

_PART = 16 << 20
"""Bytes of one part; what is larger goes up in several at once."""

_MARK = "cloudtrain-sha256"
"""Metadata of an uploaded bundle: the hash of its content."""


def upload(
    clients: Clients,
    item: Upload,
    bundle: BundleWriter,
    *,
    owner: str | None,
    kms_key: str | None,
    on_bytes: OnBytes | None,
) -> bool:
    """Put the bundle at its destination; False when it is there already.

    Args:
        owner: the account that the bucket must belong to; a bucket of that name in another account is refused.
        kms_key: the key that the object is encrypted with, instead of the bucket's default.

    Raises:
        TargetError: the bucket does not exist, is in another region, or may not be written.
    """
    where = S3Uri.parse(item.destination)
    place = {"Bucket": where.bucket, "Key": where.key} | ({"ExpectedBucketOwner": owner} if owner else {})
    if _is_there(clients, place, item.sha256):
        return False
    with tempfile.TemporaryDirectory(prefix="cloudtrain-") as folder:
        archive = Path(folder, "sourcedir.tar.gz")
        bundle.write(archive)
        _send(clients, archive, place, _extras(item, owner, kms_key), on_bytes)
    return True


def _is_there(clients: Clients, place: dict[str, str], sha256: str) -> bool:
    """Whether the very content is there. Who may write a bucket and not read it sends it again."""
    try:
        found = clients.call("s3", "head_object", **place)
    except (NotThere, Denied):
        return False
    return bool(found["Metadata"].get(_MARK) == sha256 and found["ContentLength"])


def _extras(item: Upload, owner: str | None, kms_key: str | None) -> dict[str, Any]:
    extras: dict[str, Any] = {"Metadata": {_MARK: item.sha256}, "ContentType": "application/gzip"}
    if owner is not None:
        extras["ExpectedBucketOwner"] = owner
    if kms_key is not None:
        extras |= {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": kms_key}
    return extras


def _send(
    clients: Clients, archive: Path, place: dict[str, str], extras: dict[str, Any], on_bytes: OnBytes | None
) -> None:
    transfer = require("boto3.s3.transfer", extra="sagemaker")
    config = transfer.TransferConfig(multipart_threshold=_PART, multipart_chunksize=_PART)
    total = archive.stat().st_size

    def send(client: Any) -> None:
        with archive.open("rb") as file:
            client.upload_fileobj(
                file,
                place["Bucket"],
                place["Key"],
                ExtraArgs=extras,
                Callback=_counting(total, on_bytes) if on_bytes is not None else None,
                Config=config,
            )

    clients.attempt("s3", "put_object", {"Bucket": place["Bucket"]}, send)


def _counting(total: int, on_bytes: OnBytes) -> Callable[[int], None]:
    sent, lock = 0, Lock()

    def count(amount: int) -> None:
        nonlocal sent
        with lock:  # parts go up in several threads
            sent = min(total, max(0, sent + amount))  # one that is sent again counts backwards first
            on_bytes(sent, total)

    return count
