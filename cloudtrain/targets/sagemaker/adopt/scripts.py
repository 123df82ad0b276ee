"""Read the request that a script was about to send, and insert the account number of the job's role."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cloudtrain.core.adoption import Original
from cloudtrain.targets.sagemaker.account import account_id
from cloudtrain.targets.sagemaker.adopt.documents import originals_in
from cloudtrain.targets.sagemaker.adopt.hook import ACCOUNT
from cloudtrain.targets.sagemaker.adopt.jobs import code_uri
from cloudtrain.targets.sagemaker.adopt.trainers import (
    Changed,
    code_of,
    idle_instances,
    is_trainer,
    lost_in_code,
    started_by_drivers,
)


def originals_of_script(record: Mapping[str, Any], uploads: Mapping[str, bytes]) -> tuple[list[Original], bytes | None]:
    """Return the training jobs of a captured API call, and the archive of their code.

    `uploads` maps addresses to the files that the script uploaded. The archive is None if they do not contain the code.
    """
    request = record.get("request")
    text = json.dumps(request)
    role = str(request.get("RoleArn", "")) if isinstance(request, Mapping) else ""
    owner = account_id(role)
    if owner is not None and owner != ACCOUNT:
        text = text.replace(ACCOUNT, owner)
        uploads = {place.replace(ACCOUNT, owner): content for place, content in uploads.items()}
    settings = {"region": record["region"]} if isinstance(record.get("region"), str) else {}
    found = [with_code(item, uploads) for item in originals_in(json.loads(text), None)]
    code = next((archive for _, archive in found if archive is not None), None)
    return [replace(item, settings={**settings, **item.settings}) for item, _ in found], code


def with_code(original: Original, objects: Mapping[str, bytes]) -> tuple[Original, bytes | None]:
    """Return the job and its code, read from S3 objects (content by address).

    If version 3's drivers start the job, the returned job also describes the program that they start. The code is None
    if `objects` lack it, or if a driver is missing or changed.
    """
    request = original.request
    if not is_trainer(request):
        return original, objects.get(code_uri(request) or "")
    try:
        start = started_by_drivers(request, objects)
    except Changed as changed:
        return replace(original, lost={**original.lost, "InputDataConfig": f"{changed}"}), None
    code = code_of(request, objects)
    lost = {**original.lost, **idle_instances(start, request), **lost_in_code(code, start)}
    return replace(original, start=start, lost=lost), code
