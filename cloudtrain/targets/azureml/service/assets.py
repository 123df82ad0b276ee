"""Create code and environment assets. Their names contain a hash of their content, so existing assets can be reused."""

from __future__ import annotations

import json

from cloudtrain.core.plan import Upload
from cloudtrain.errors import TargetError, TargetUnreachable
from cloudtrain.targets.azureml.compile.environments import FOLDER
from cloudtrain.targets.azureml.compile.identifiers import UNNAMED
from cloudtrain.targets.azureml.service.client import Client
from cloudtrain.targets.azureml.service.upload import upload_code, upload_folder
from cloudtrain.targets.azureml.service.versions import CODE, ENVIRONMENT
from cloudtrain.targets.base import BundleWriter, ByteProgress
from cloudtrain.targets.common.provider_errors import Denied, NotThere

_VERSIONS = {"code": CODE, "environment": ENVIRONMENT}

HASH = "cloudtrain.sha256"
"""A code asset's property with the hash of its content.

The SDK's own property (`hash_sha256`) follows other rules; the SDK would mistake our hash for its own.
"""


def make_asset(client: Client, item: Upload, bundle: BundleWriter, on_bytes: ByteProgress | None) -> bool:
    """Create an asset; return False if it exists already. An interrupted creation is repeated from the beginning.

    An environment that the user has named is sent even if it exists, as azure-ai-ml does, to update its tags and
    description. The service refuses other changes to it.

    Raises:
        TargetError: the workspace or its storage refuses the asset.
    """
    *_, name, _, version = item.destination.split("/")
    named = item.kind == "environment" and name != UNNAMED
    if not named and _is_there(client, item):
        return False
    content = item.content if item.content is not None else _code(client, item, bundle, on_bytes)
    if item.folder is not None:
        content = content.replace(FOLDER, upload_folder(client, item.folder, item.sha256, bundle))
    try:
        client.send("PUT", item.destination, api_version=_VERSIONS[item.kind], content=content.encode())
    except (TargetUnreachable, Denied):
        raise
    except TargetError as error:
        if not _is_there(client, item):  # another process may have made the same asset meanwhile
            raise
        if named:
            message = f"the environment `{name}:{version}` exists already, and Azure ML does not change it: {error}"
            hint = f"raise `asset_version`, or use what exists: `environment: {{azureml: azureml:{name}:{version}}}`"
            raise TargetError(message, hint=hint) from None
    return True


def _is_there(client: Client, item: Upload) -> bool:
    """Return whether the asset exists. An existing asset is complete, because it is created after all its files.

    Raises:
        TargetError: the code asset of that name has different content.
    """
    try:
        found = client.get(item.destination, api_version=_VERSIONS[item.kind])
    except NotThere:
        return False
    said = ((found.get("properties") or {}).get("properties") or {}).get(HASH)
    if item.kind == "code" and said != item.sha256:
        name = item.destination.rpartition("/codes/")[2]
        message = f"the code asset `{name}` does not match the hash in its name"
        raise TargetError(message, hint="archive the asset in the workspace, or submit to another workspace")
    return True


def _code(client: Client, item: Upload, bundle: BundleWriter, on_bytes: ByteProgress | None) -> str:
    """Upload the code, and return the body of the request that creates the code asset."""
    where = upload_code(client, item.destination, bundle, on_bytes)
    return json.dumps({"properties": {"codeUri": where, "isAnonymous": True, "properties": {HASH: item.sha256}}})
