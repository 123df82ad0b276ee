"""What a script was about to send: its request, with the account of its role."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from cloudtrain.core.adoption import Original
from cloudtrain.targets.sagemaker.account import account_id
from cloudtrain.targets.sagemaker.adopt import hook
from cloudtrain.targets.sagemaker.adopt.documents import originals_in
from cloudtrain.targets.sagemaker.adopt.jobs import code_uri

_DRIVERS = "sm_drivers"
"""The channel with the launch scripts of the SDK's version 3."""


def _not_uploaded(request: Mapping[str, Any]) -> dict[str, str]:
    """What version 3 of the SDK uploads before it sends a request: launch scripts that it writes, and the code."""
    names = {channel.get("ChannelName") for channel in request.get("InputDataConfig", ())}
    if _DRIVERS not in names:
        return {}
    why = (
        "the script uploads its code and the SDK's launch scripts to these places, and here nothing was uploaded: "
        "replace the inputs `code` and `sm_drivers` and the overrides by `source_dir`, `entry_point`, `distribution`"
    )
    return {"InputDataConfig": why}


def originals_of_script(record: Mapping[str, Any], uploads: Collection[str]) -> tuple[list[Original], str | None]:
    """The training jobs of a captured call, and the upload that is their code."""
    request = record.get("request")
    text = json.dumps(request)
    role = str(request.get("RoleArn", "")) if isinstance(request, Mapping) else ""
    owner = account_id(role)
    known = owner is not None and owner != hook.ACCOUNT
    request = json.loads(text.replace(hook.ACCOUNT, owner) if known and owner else text)
    places = {place.replace(hook.ACCOUNT, owner) if known and owner else place: place for place in uploads}
    settings = {"region": record["region"]} if isinstance(record.get("region"), str) else {}
    found = [
        replace(item, settings={**settings, **item.settings}, lost={**item.lost, **_not_uploaded(item.request)})
        for item in originals_in(request, None)
    ]
    code = next((places[uri] for item in found if (uri := code_uri(item.request)) in places), None)
    return found, code
