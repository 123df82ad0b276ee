"""Fetch a command job from a workspace for `cloudtrain adopt`: its body, and its code if it can be read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from cloudtrain.core.adoption import Original
from cloudtrain.documents.archives import archive_of
from cloudtrain.errors import TargetError, UsageError
from cloudtrain.targets.azureml.account_ref import AccountRef
from cloudtrain.targets.azureml.adopt.documents import originals_in
from cloudtrain.targets.azureml.service.blobs import Blobs
from cloudtrain.targets.azureml.service.client import Client
from cloudtrain.targets.azureml.service.download import fetch_code
from cloudtrain.targets.azureml.service.versions import SUBMIT
from cloudtrain.targets.common.provider_errors import NotThere

_MOST = 256 << 20
"""Bytes of code: more is data, and stays where it is."""


def workspace_of(place: str, account: AccountRef, missing: tuple[str, ...]) -> AccountRef:
    """Return the workspace in the middle part of a job's reference: `SUBSCRIPTION:RESOURCE_GROUP:WORKSPACE`.

    Args:
        place: the middle part, or only the workspace's name.
        account: the workspace in the settings. If `place` is only a name, the rest comes from `account`.
        missing: the names of the settings that are not set.

    Raises:
        UsageError: `place` is not valid, or the settings lack the subscription or resource group.
    """
    if ":" in place:
        return AccountRef.parse(place)
    if {"subscription_id", "resource_group"} & set(missing):
        hint = (
            "write `azureml://SUBSCRIPTION:RESOURCE_GROUP:WORKSPACE/NAME`, or set `subscription_id` and "
            "`resource_group` under `[azureml]` in cloudtrain.toml"
        )
        raise UsageError(f"the subscription of the workspace `{place}` is not known", hint=hint, code="CT933")
    return account._replace(workspace=place)


def fetch_original(client: Client, name: str) -> Original:
    """Return the job `name` with its code. If the code cannot be read, the result contains only the code's id.

    Raises:
        UsageError: the workspace has no job of that name, or the job is not a command job.
        TargetError: the workspace cannot be reached or refuses the request.
    """
    try:
        document = client.get(f"jobs/{name}", api_version=SUBMIT)  # older ones leave out fields of a body
    except NotThere:
        hint = "`cloudtrain ps --target azureml` lists the workspace's jobs"
        message = f"the workspace `{client.place.workspace}` has no job `{name}`"
        raise UsageError(message, hint=hint, code="CT974") from None
    found = originals_in(document, None)
    if len(found) != 1:
        hint = "name one of its steps' own jobs: the job's page in the studio lists them"
        raise UsageError(f"`{name}` is a pipeline, not a single job", hint=hint, code="CT981")
    own = {key: value for key in ("credential", "cloud") if (value := getattr(client.place, key))}
    code_id = str(found[0].request["properties"].get("codeId") or "").removeprefix("azureml:")
    code = _code(client, code_id) if code_id.startswith("/subscriptions/") else None
    return replace(found[0], kind=f"the job {name}", settings={**found[0].settings, **own}, code=code)


def _code(client: Client, code_id: str) -> bytes | None:
    """Return the files of a code asset as an archive; None if they are missing, too large, or the user may not read
    them.
    """
    with TemporaryDirectory(prefix="cloudtrain-") as scratch:
        try:
            folder = fetch_code(Blobs(client), code_id, Path(scratch, "code"))
        except TargetError:
            return None
        files = [file for file in folder.rglob("*") if file.is_file()]
        if not files or sum(file.stat().st_size for file in files) > _MOST:
            return None
        return archive_of({str(file.relative_to(folder)): file.read_bytes() for file in files})
