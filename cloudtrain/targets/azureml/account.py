"""Find the account settings on this machine, without the network and without Azure packages.

The target's own settings come first. Missing settings come from the SDK's `config.json` (in the job's folder or one
above it, also in `.azureml`), or else from the defaults of `az`. A source that contradicts a known setting is ignored
as a whole. `config.json` is used only if no other user could have written it (`cloudtrain/system/trust.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from cloudtrain.documents.reading import read_bytes
from cloudtrain.system.trust import read_trusted
from cloudtrain.targets.azureml.az import az_folder, az_subscriptions
from cloudtrain.targets.azureml.settings import AzureML

PLACEHOLDERS = {
    "subscription_id": "00000000-0000-0000-0000-000000000000",
    "resource_group": "RESOURCE_GROUP",
    "workspace": "WORKSPACE",
}
"""Placeholders for settings that are missing; a rule stops the submit and says what to type."""

_CONFIG_NAMES = {
    "subscription_id": "subscription_id",
    "resource_group": "resource_group",
    "workspace": "workspace_name",
}
"""Maps our names to those of the SDK's `config.json`."""

_LONGEST = 64 * 1024
"""Largest accepted `config.json` in bytes; a real one has about three hundred."""


class AzureMLAccount(NamedTuple):
    """The account settings of the Azure ML target, as far as they are known without the network."""

    subscription_id: str
    resource_group: str
    workspace: str
    missing: tuple[str, ...] = ()
    """The names of the three settings that are missing; a placeholder stands in for each."""
    credential: str | None = None
    """The kind of azure-identity credential. None: the first kind that works."""
    cloud: str | None = None
    """The name of the Azure cloud. None: the environment decides; its default is the public cloud."""
    overlay: Any = None
    """The user's own corrections of the instance catalogue, or None."""
    files: tuple[str, ...] = ()
    """The SDK's `config.json`, if it was used."""

    @property
    def place(self) -> str:
        """Return the account part of a run's reference: `[CREDENTIAL@]SUBSCRIPTION:GROUP:WORKSPACE[:CLOUD]`."""
        from urllib.parse import quote

        parts = (self.subscription_id, self.resource_group, self.workspace, *([self.cloud] if self.cloud else []))
        place = ":".join(quote(part, safe="") for part in parts)
        return place if self.credential is None else f"{self.credential}@{place}"

    @property
    def workspace_id(self) -> str:
        """Return the workspace's id in Azure Resource Manager."""
        return (
            f"/subscriptions/{self.subscription_id}/resourceGroups/{self.resource_group}"
            f"/providers/Microsoft.MachineLearningServices/workspaces/{self.workspace}"
        )


def account_of(target: AzureML, environ: Mapping[str, str], folder: Path) -> AzureMLAccount:
    """Return the target's account settings. Missing settings come from `config.json` and from the defaults of `az`.

    The nearest `config.json` in `folder` or a folder above it is used.

    Raises:
        SettingsError: the settings would come from a `config.json` that another user could have written.
    """
    known = {name: value for name in PLACEHOLDERS if (value := getattr(target, name))}
    file, configured = _config(folder) if len(known) < len(PLACEHOLDERS) else (None, {})
    fits = _agree(known, configured)
    if file is not None and fits:
        configured = _workspace_in(read_trusted(file))
    for found in (configured, _defaults_of_az(environ)):
        if _agree(known, found):
            known = {**found, **known}
    missing = tuple(name for name in PLACEHOLDERS if name not in known)
    return AzureMLAccount(
        **(PLACEHOLDERS | known),
        missing=missing,
        credential=target.credential,
        cloud=target.cloud or environ.get("AZUREML_CURRENT_CLOUD") or None,
        files=(str(file),) if file is not None and fits else (),
    )


def _agree(known: Mapping[str, str], found: Mapping[str, str]) -> bool:
    return all(found.get(name, value) == value for name, value in known.items())


def _config(folder: Path) -> tuple[Path | None, dict[str, str]]:
    """Return the nearest `config.json` that names a workspace, and the settings in it.

    The file may come from the studio or from an unrelated program, so the caller decides whether to use it.
    """
    for place in (folder, *folder.parents):
        for file in (place / ".azureml" / "config.json", place / "config.json"):
            if file.is_file() and (found := _workspace_in(_bytes_of(file))):
                return file, found
    return None, {}


def _bytes_of(file: Path) -> bytes:
    try:
        return read_bytes(file, _LONGEST)
    except OSError:  # also a longer file
        return b""


def _workspace_in(content: bytes) -> dict[str, str]:
    """Return the workspace settings of a `config.json` if they are complete; otherwise an empty dict."""
    try:
        names = json.loads(content.decode("utf-8-sig"))
        json.dumps(names, ensure_ascii=False).encode()  # half of a character cannot be sent
    except (ValueError, RecursionError):
        return {}
    if not isinstance(names, Mapping):
        return {}
    found = {ours: str(names[theirs]) for ours, theirs in _CONFIG_NAMES.items() if names.get(theirs)}
    return found if len(found) == len(_CONFIG_NAMES) else {}


def _defaults_of_az(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that `az configure --defaults group=... workspace=...` and `az account set` have stored. The
    environment variables of az take precedence.
    """
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
