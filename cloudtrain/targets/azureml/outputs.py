"""Where the results of a job are: where its body says, or where the service puts what the body leaves open.

An output without a place goes to `azureml/RUN/OUTPUT/` in the workspace's default datastore, which is
`workspaceblobstore` unless somebody chose another; the run history knows for certain, once the job has begun.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

OWN = ("model", "checkpoint")
"""Outputs that have a place of their own among a run's results; the others are `outputs/NAME`."""

_SERVICES_OWN = "default"
_SHORT = re.compile(r"azureml://(?=datastores/)", re.IGNORECASE)


def places_of(body: Mapping[str, Any], run_name: str, workspace: str) -> dict[str, str]:
    """`model`, `checkpoint` and `outputs/NAME` of a job to their addresses, which hold in every workspace.

    Args:
        body: of the PUT that makes the job, or of the answer that describes it.
        workspace: ARM id.
    """
    outputs = body["properties"].get("outputs") or {}
    named = {name: output for name, output in outputs.items() if name != _SERVICES_OWN and output}
    return {
        name if name in OWN else f"outputs/{name}": _long(output.get("uri") or default_place(run_name, name), workspace)
        for name, output in named.items()
    }


def default_place(run_name: str, output: str) -> str:
    """Where an output goes for which the job names no place."""
    return f"azureml://datastores/workspaceblobstore/paths/azureml/{run_name}/{output}/"


def _long(uri: str, workspace: str) -> str:
    """`azureml://datastores/...` with the workspace whose datastore it is."""
    scope = workspace.replace("/providers/Microsoft.MachineLearningServices", "").strip("/")
    return _SHORT.sub(lambda _: f"azureml://{scope}/", uri)
