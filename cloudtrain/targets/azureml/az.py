"""What the az command has written down on this machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cloudtrain.documents.document import Unreadable
from cloudtrain.documents.reading import read_text


def az_folder(environ: Mapping[str, str]) -> Path:
    """The folder of its settings."""
    home = environ.get("HOME") or environ.get("USERPROFILE") or "~"
    return Path(environ.get("AZURE_CONFIG_DIR") or f"{home}/.azure").expanduser()


def az_subscriptions(folder: Path) -> list[Mapping[str, Any]]:
    """Those that it is logged in to; `az logout` leaves the file without one."""
    found = mapping_in(folder / "azureProfile.json").get("subscriptions")
    return [row for row in found if isinstance(row, Mapping)] if isinstance(found, list) else []


def mapping_in(file: Path) -> Mapping[str, Any]:
    """The mapping of a JSON file; empty where there is none that can be read."""
    try:
        content = json.loads(read_text(file))  # az writes a byte order mark
    except (OSError, ValueError, RecursionError, Unreadable):
        return {}
    return content if isinstance(content, Mapping) else {}
