"""Look up the storage location of a job's output in the run history."""

from __future__ import annotations

from cloudtrain.targets.azureml.service.client import Client

_HISTORY, _RESOLVE = "v1.0", "1.5.0"


def resolved_place(client: Client, run_name: str, output: str) -> str | None:
    """Return the address of an output; None if the run history has none.

    Raises:
        TargetError: see `provider_errors`.
    """
    services, workspace = client.service("api"), client.place.workspace_id
    asked = {"runId": run_name, "selectRunMetadata": True}
    run = (
        client.post(f"{services}/history/v1.0{workspace}/rundata", asked, api_version=_HISTORY).get("runMetadata") or {}
    )
    asset = ((run.get("outputs") or {}).get(output) or {}).get("assetId")
    if not asset:
        return None
    path = f"{services}/data/v1.0{workspace}/dataversion/batchGetResolvedUris"
    found = client.post(path, {"values": [asset]}, api_version=_RESOLVE).get("values") or {}
    uri: str | None = (found.get(asset) or {}).get("uri")
    return uri
