"""Ids in Azure Resource Manager. What a user writes as `azureml:name:version` is one, so a plan needs no question."""

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
"""The one label that Azure ML's own tools look up."""

_CURATED = "AzureML-"
"""Environments of this name are Microsoft's own. Their short names go out as they are, and the service knows them."""

MODELS = ("mlflow_model", "custom_model", "triton_model")
"""Types of data that are registered as models."""


def code_id(workspace_id: str, sha256: str) -> str:
    """The code asset of a bundle. Its name is its content, so the same code is the same asset."""
    return f"{workspace_id}/codes/cloudtrain-{sha256[:40]}/versions/1"


def environment_id(workspace_id: str, sha256: str) -> str:
    """The environment that is made of a definition with this hash."""
    return f"{workspace_id}/environments/cloudtrain/versions/{sha256[:32]}"


def compute_id(workspace_id: str, compute: str) -> str:
    """A compute of the workspace, which `serverless` is for Azure ML's tools too; `virtualClusters/NAME` is one beside
    the workspace. Whole ids stay what they are."""
    plain = compute.removeprefix(_PREFIX)
    if plain.startswith("/subscriptions/"):
        return plain
    if is_virtual_cluster(plain):
        return f"{workspace_id.partition('/workspaces/')[0]}/{_VIRTUAL_CLUSTERS}/{plain.partition('/')[2]}"
    return f"{workspace_id}/computes/{plain}"


def is_virtual_cluster(compute: str) -> bool:
    """Whether a setting or an id names a virtual cluster: `virtualClusters/NAME`, in any case of letters."""
    return f"/{_VIRTUAL_CLUSTERS}/" in f"/{compute.removeprefix(_PREFIX)}".lower()


def asset_id(workspace_id: str, written: str, kind: str) -> str | None:
    """The id of `azureml:name:version` or `azureml:name@latest`; what is an id or a URI already, as it is; None for
    anything else, an asset without a version among it: `azureml:foo` is no version `foo` of an asset `azureml`.

    `kind` is the collection: `environments`, `data`, `models`.
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
    """The asset of an id that ends with the label `latest`. None for other ids, and for those of registries, whose
    labels the service understands itself."""
    match = _LABELLED.fullmatch(written) if isinstance(written, str) else None
    return Labelled(match["thing"], match["kind"], match["name"]) if match else None


def is_label(written: str) -> bool:
    """Whether it is `name@label`."""
    return _LABEL.fullmatch(written.removeprefix(_PREFIX)) is not None


def asset_meant(written: str) -> tuple[str, str | None] | None:
    """Name and version of what is nearly an asset: `azureml:foo`, `azureml:azureml:foo:2`; None for anything else."""
    match = _MEANT.fullmatch(written)
    return (match["name"], match["version"]) if match else None
