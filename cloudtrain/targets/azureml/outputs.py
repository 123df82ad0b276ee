"""The addresses of a job's results: from the job's body, or the service's defaults.

By default an output goes to `azureml/RUN/OUTPUT/` in the workspace's default datastore, which is `workspaceblobstore`
if the workspace has not chosen another. Once the job has begun, the run history has the real address.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

OWN = ("model", "checkpoint")
"""Outputs with their own top-level name among a run's results; the others are `outputs/NAME`."""

_SERVICES_OWN = "default"
_SHORT = re.compile(r"azureml://(?=datastores/)", re.IGNORECASE)


def places_of(body: Mapping[str, Any], run_name: str, workspace: str) -> dict[str, str]:
    """Map a job's results (`model`, `checkpoint`, `outputs/NAME`) to their addresses.

    A datastore's address includes the workspace, so it is also valid in other workspaces.

    Args:
        body: body of the PUT that creates the job, or of the answer that describes the job.
        workspace: the workspace's ARM id.
    """
    outputs = body["properties"].get("outputs") or {}
    named = {name: output for name, output in outputs.items() if name != _SERVICES_OWN and output}
    return {
        name if name in OWN else f"outputs/{name}": _long(output.get("uri") or default_place(run_name, name), workspace)
        for name, output in named.items()
    }


def default_place(run_name: str, output: str) -> str:
    """Return the default address of an output."""
    return f"azureml://datastores/workspaceblobstore/paths/azureml/{run_name}/{output}/"


def _long(uri: str, workspace: str) -> str:
    """Add the workspace's id to an address such as `azureml://datastores/...`."""
    scope = workspace.replace("/providers/Microsoft.MachineLearningServices", "").strip("/")
    return _SHORT.sub(lambda _: f"azureml://{scope}/", uri)
