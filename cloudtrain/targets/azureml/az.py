"""Read the files that the az command keeps on this machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cloudtrain.documents.document import Unreadable
from cloudtrain.documents.reading import read_text
from cloudtrain.system.paths import expand_home


def az_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder of az's settings, usually `~/.azure`."""
    home = environ.get("HOME") or environ.get("USERPROFILE") or "~"
    return expand_home(environ.get("AZURE_CONFIG_DIR") or f"{home}/.azure")


def az_subscriptions(folder: Path) -> list[Mapping[str, Any]]:
    """Return the subscriptions that az is logged in to, from its `azureProfile.json` in `folder`.

    `az logout` removes them from this file.
    """
    found = mapping_in(folder / "azureProfile.json").get("subscriptions")
    return [row for row in found if isinstance(row, Mapping)] if isinstance(found, list) else []


def mapping_in(file: Path) -> Mapping[str, Any]:
    """Return the mapping in a JSON file; empty if the file is missing or unreadable."""
    try:
        content = json.loads(read_text(file))  # az writes a byte order mark
    except (OSError, ValueError, RecursionError, Unreadable):
        return {}
    return content if isinstance(content, Mapping) else {}
