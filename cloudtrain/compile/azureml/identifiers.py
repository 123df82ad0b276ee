"""Ids in Azure Resource Manager. What a user writes as `azureml:name:version` is one, so a plan needs no question."""

from __future__ import annotations

import re

_ASSET = re.compile(r"(?:azureml:)?(?P<name>[A-Za-z0-9_][A-Za-z0-9_.-]*):(?P<version>[A-Za-z0-9_][A-Za-z0-9_.-]*)")
_LABEL = re.compile(r"(?:azureml:)?(?P<name>[A-Za-z0-9_][A-Za-z0-9_.-]*)@(?P<label>[A-Za-z0-9_.-]+)")

MODELS = ("mlflow_model", "custom_model", "triton_model")
"""Types of data that are registered as models."""


def code_id(workspace_id: str, sha256: str) -> str:
    """The code asset of a bundle. Its name is its content, so the same code is the same asset."""
    return f"{workspace_id}/codes/cloudtrain-{sha256[:40]}/versions/1"


def environment_id(workspace_id: str, sha256: str) -> str:
    """The environment that is made of a definition with this hash."""
    return f"{workspace_id}/environments/cloudtrain/versions/{sha256[:32]}"


def compute_id(workspace_id: str, compute: str) -> str:
    """A cluster of the workspace; `serverless` and whole ids stay what they are."""
    if compute == "serverless" or compute.startswith("/subscriptions/"):
        return compute
    return f"{workspace_id}/computes/{compute.removeprefix('azureml:')}"


def asset_id(workspace_id: str, written: str, kind: str) -> str | None:
    """The id of `azureml:name:version`; what is an id or a URI already, as it is; None for anything else.

    `kind` is the collection: `environments`, `data`, `models`.
    """
    plain = written.removeprefix("azureml:")
    if plain.startswith("/subscriptions/"):
        return plain
    if written.startswith("azureml://"):
        return written
    match = _ASSET.fullmatch(written)
    return f"{workspace_id}/{kind}/{match['name']}/versions/{match['version']}" if match else None


def is_label(written: str) -> bool:
    """Whether it is `name@latest`: which version that is, only the workspace knows."""
    return _LABEL.fullmatch(written) is not None
