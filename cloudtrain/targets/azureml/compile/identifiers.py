"""Ids in Azure Resource Manager.

`azureml:name:version` becomes an id without the network, so a plan needs no request.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_PREFIX = "azureml:"
_WORD = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
_ASSET = re.compile(rf"(?P<name>{_WORD}):(?P<version>{_WORD})")
_LABEL = re.compile(rf"(?P<name>{_WORD})@(?P<label>[A-Za-z0-9_.-]+)")
_LABELLED = re.compile(r"(?P<thing>/subscriptions/.+/(?P<kind>environments|data|models)/(?P<name>[^/]+))/labels/latest")
_MEANT = re.compile(rf"(?:azureml:)+(?P<name>{_WORD})(?::(?P<version>{_WORD}))?:?")

_VIRTUAL_CLUSTERS = "virtualclusters"

LATEST = "latest"
"""The only label that Azure ML's own tools look up."""

_CURATED = "AzureML-"
"""Matches names of Microsoft's own environments.

Their short names are sent unchanged, because the service knows them.
"""

UNNAMED = "cloudtrain"
"""Name of all environments that a job defines without a name. Their version is a hash of the definition."""

MODELS = ("mlflow_model", "custom_model", "triton_model")
"""Types of data that are registered as models."""


def code_id(workspace_id: str, sha256: str) -> str:
    """Return the id of a bundle's code asset. It contains the content's hash, so the same code is the same asset."""
    return f"{workspace_id}/codes/cloudtrain-{sha256[:40]}/versions/1"


def environment_id(workspace_id: str, name: str, version: str) -> str:
    """Return the id of an environment of the workspace."""
    return f"{workspace_id}/environments/{name}/versions/{version}"


def compute_id(workspace_id: str, compute: str) -> str:
    """Return the id of a compute of the workspace. `serverless` counts as a compute, as in Azure ML's tools.

    `virtualClusters/NAME` is a compute outside the workspace. Complete ids stay unchanged.
    """
    plain = compute.removeprefix(_PREFIX)
    if plain.startswith("/subscriptions/"):
        return plain
    if is_virtual_cluster(plain):
        return f"{workspace_id.partition('/workspaces/')[0]}/{_VIRTUAL_CLUSTERS}/{plain.partition('/')[2]}"
    return f"{workspace_id}/computes/{plain}"


def is_virtual_cluster(compute: str) -> bool:
    """Return whether a setting or an id names a virtual cluster: `virtualClusters/NAME`, in upper or lower case."""
    return f"/{_VIRTUAL_CLUSTERS}/" in f"/{compute.removeprefix(_PREFIX)}".lower()


def asset_id(workspace_id: str, written: str, kind: str) -> str | None:
    """Return the id of `azureml:name:version` or `azureml:name@latest`; ids and URIs stay unchanged.

    Returns None for anything else, including an asset without a version: `azureml:foo` does not mean version `foo` of
    an asset `azureml`. `kind` is the collection: `environments`, `data`, `models`.
    """
    plain = written.removeprefix(_PREFIX)
    if plain.startswith("/subscriptions/"):
        return plain
    if written.startswith("azureml://"):
        return written
    if plain.startswith(_PREFIX):
        return None
    if match := _ASSET.fullmatch(plain):
        if kind == "environments" and plain.startswith(_CURATED):
            return f"{_PREFIX}{plain}"
        return f"{workspace_id}/{kind}/{match['name']}/versions/{match['version']}"
    match = _LABEL.fullmatch(plain)
    if match is None or match["label"] != LATEST:
        return None
    if kind == "environments" and plain.startswith(_CURATED):
        return f"{_PREFIX}{plain}"
    return f"{workspace_id}/{kind}/{match['name']}/labels/{LATEST}"


class Labelled(NamedTuple):
    """The newest version of an asset of a workspace: `.../environments/mine/labels/latest`."""

    thing: str
    """ARM id without version: `.../environments/mine`."""
    kind: str
    name: str


def parse_label(written: object) -> Labelled | None:
    """Return the asset of an id that ends with the label `latest`.

    Returns None for other ids, and for ids of registries, whose labels the service itself resolves.
    """
    match = _LABELLED.fullmatch(written) if isinstance(written, str) else None
    return Labelled(match["thing"], match["kind"], match["name"]) if match else None


def is_label(written: str) -> bool:
    """Return whether the text is `name@label`."""
    return _LABEL.fullmatch(written.removeprefix(_PREFIX)) is not None


def asset_meant(written: str) -> tuple[str, str | None] | None:
    """Guess the name and version in a misspelt reference, such as `azureml:azureml:foo:2`; None if that is impossible.

    The version is None if the reference has none, such as `azureml:foo`.
    """
    match = _MEANT.fullmatch(written)
    return (match["name"], match["version"]) if match else None
