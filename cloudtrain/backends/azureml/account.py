"""The account settings, as far as this machine knows them: no network, no Azure package.

Whole workspaces are taken, never a mixture of two: the target's own settings first; what they leave open comes from
the SDK's `config.json` (in the folder or one above it, also below `.azureml`), else from the defaults of `az`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cloudtrain.backends.azureml.az import az_folder, az_subscriptions, mapping_in
from cloudtrain.plans import AzureMLAccount
from cloudtrain.targets import AzureML

PLACEHOLDERS = {
    "subscription_id": "00000000-0000-0000-0000-000000000000",
    "resource_group": "RESOURCE_GROUP",
    "workspace": "WORKSPACE",
}
"""For what nobody gave; a rule stops the submit and says what to type."""

_CONFIG_NAMES = {
    "subscription_id": "subscription_id",
    "resource_group": "resource_group",
    "workspace": "workspace_name",
}
"""Our names to those of the SDK's `config.json`."""


def account_of(target: AzureML, environ: Mapping[str, str], folder: Path) -> AzureMLAccount:
    """The target's settings, completed from the files of `folder` and from the defaults of `az`."""
    known = {name: value for name in PLACEHOLDERS if (value := getattr(target, name))}
    for found in (_config(folder), _defaults_of_az(environ)):
        if all(found.get(name, value) == value for name, value in known.items()):
            known = {**found, **known}
    missing = tuple(name for name in PLACEHOLDERS if name not in known)
    return AzureMLAccount(
        **(PLACEHOLDERS | known),
        missing=missing,
        credential=target.credential,
        cloud=target.cloud or environ.get("AZUREML_CURRENT_CLOUD") or None,
    )


def _config(folder: Path) -> dict[str, str]:
    """The nearest `config.json` that names a workspace; the studio offers it for download."""
    for place in (folder, *folder.parents):
        for file in (place / ".azureml" / "config.json", place / "config.json"):
            content = mapping_in(file)
            found = {ours: str(content[theirs]) for ours, theirs in _CONFIG_NAMES.items() if content.get(theirs)}
            if len(found) == len(_CONFIG_NAMES):
                return found
    return {}


def _defaults_of_az(environ: Mapping[str, str]) -> dict[str, str]:
    """What `az configure --defaults group=... workspace=...` and `az account set` have written down."""
    folder = az_folder(environ)
    defaults = dict(_section(folder / "config", "defaults"))
    found = {
        "resource_group": environ.get("AZURE_DEFAULTS_GROUP") or defaults.get("group"),
        "workspace": environ.get("AZURE_DEFAULTS_WORKSPACE") or defaults.get("workspace"),
        "subscription_id": environ.get("AZURE_SUBSCRIPTION_ID") or _default_subscription(folder),
    }
    return {name: value for name, value in found.items() if value}


def _default_subscription(folder: Path) -> str | None:
    chosen = (row["id"] for row in az_subscriptions(folder) if row.get("isDefault") and row.get("id"))
    return next(map(str, chosen), None)


def _section(file: Path, name: str) -> Mapping[str, str]:
    import configparser

    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read(file, encoding="utf-8")
    except (configparser.Error, OSError, UnicodeDecodeError):
        return {}
    return dict(parser.items(name)) if parser.has_section(name) else {}
