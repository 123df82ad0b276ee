"""Read a training job from the account for `cloudtrain adopt`: its description, its tags, and its code if readable."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from io import BytesIO
from typing import Any

from cloudtrain.core.adoption import Original
from cloudtrain.errors import TargetError, UsageError
from cloudtrain.targets.common.provider_errors import NotThere
from cloudtrain.targets.sagemaker.adopt.documents import originals_in
from cloudtrain.targets.sagemaker.adopt.jobs import code_uri
from cloudtrain.targets.sagemaker.adopt.scripts import with_code
from cloudtrain.targets.sagemaker.adopt.trainers import CODE, DRIVERS, place_of
from cloudtrain.targets.sagemaker.s3_uri import S3Uri
from cloudtrain.targets.sagemaker.service.clients import Clients

_MOST = 256 << 20
"""Largest code archive in bytes; anything larger is treated as data and left in S3."""


def fetch_original(clients: Clients, name: str) -> Original:
    """Return the job with its code. If the code cannot be read, the new job file contains the code's S3 address.

    Raises:
        UsageError: the account has no training job with this name.
        TargetError: the request to the account failed.
    """
    try:
        described = clients.call("sagemaker", "describe_training_job", TrainingJobName=name)
    except NotThere:
        hint = "`cloudtrain ps --target sagemaker` lists the account's jobs"
        raise UsageError(
            f"there is no training job `{name}` in this account and region", hint=hint, code="CT974"
        ) from None
    document: dict[str, Any] = {key: value for key, value in described.items() if key != "ResponseMetadata"}
    pages = clients.pages("sagemaker", "list_tags", ResourceArn=described["TrainingJobArn"])
    document["Tags"] = [row for page in pages for row in page.get("Tags", ())]
    (original,) = originals_in(document, None)
    found, code = with_code(original, dict(_objects(clients, original.request)))
    return replace(found, kind=f"the job {name}", code=code)


def _objects(clients: Clients, request: Mapping[str, Any]) -> Iterator[tuple[str, bytes]]:
    """Yield address and content of the code's S3 objects: an archive, or the files that SDK version 3 uploaded."""
    drivers = place_of(request, DRIVERS)
    places = [drivers, place_of(request, CODE)] if drivers else [code_uri(request)]
    left = _MOST
    for place in places:
        where = S3Uri.parse(place) if place else None
        if where is None:
            continue
        try:
            for key, size in _keys(clients, where):
                left -= size
                if left < 0:
                    return
                yield f"s3://{where.bucket}/{key}", _content(clients, where.bucket, key)
        except TargetError:
            continue  # the code is gone, or the caller may not read it


def _keys(clients: Clients, where: S3Uri) -> Iterator[tuple[str, int]]:
    pages = clients.pages(
        "s3", "list_objects_v2", token="ContinuationToken", next_token="NextContinuationToken",
        Bucket=where.bucket, Prefix=where.key,
    )  # fmt: skip
    for page in pages:
        yield from ((row["Key"], row["Size"]) for row in page.get("Contents", ()) if not row["Key"].endswith("/"))


def _content(clients: Clients, bucket: str, key: str) -> bytes:
    content = BytesIO()
    clients.attempt(
        "s3", "get_object", {"Bucket": f"{bucket}/{key}"}, lambda client: client.download_fileobj(bucket, key, content)
    )
    return content.getvalue()
