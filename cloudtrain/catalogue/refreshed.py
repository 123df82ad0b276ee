"""What `cloudtrain instances --refresh` found: `instances.TARGET.refreshed.json` in the user's configuration folder.

A file of its own, replaced whole by the next refresh, so that none ever touches the `instances.toml` that somebody
wrote. It has the same tables and lies below it. JSON, because it has hundreds of types and is read for every plan.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from cloudtrain.errors import SettingsError
from cloudtrain.system.trust import read_trusted


class Refreshed(NamedTuple):
    """What a refresh did."""

    file: Path
    location: str
    """The region that was asked about."""
    types: int
    """Types that the file says something about."""
    added: tuple[str, ...]
    """Those that the catalogue's own table lacks."""
    notes: tuple[str, ...] = ()
    """What could not be asked, each a line without a final stop."""


def refreshed_file(user_folder: Path, target: str) -> Path:
    """Where a target's refresh is kept."""
    return user_folder / f"instances.{target}.refreshed.json"


def read_refreshed(user_folder: Path, target: str) -> Mapping[str, Any]:
    """The table of the last refresh by name of type; empty where none was made.

    Raises:
        SettingsError: somebody else can have written the file, it cannot be read, or is not what a refresh writes.
    """
    file = refreshed_file(user_folder, target)
    if not file.exists():
        return {}
    content = read_trusted(file)
    try:
        table = json.loads(content)[target]
    except (ValueError, KeyError, TypeError, IndexError):
        table = None
    if not isinstance(table, dict):
        hint = f"write it again with `cloudtrain instances --refresh --target {target}`, or delete it"
        raise SettingsError(f"`{file}` is not a price table that a refresh wrote", hint=hint, code="CT919")
    return table


def write_refreshed(user_folder: Path, target: str, table: Mapping[str, Any], *, about: str) -> Path:
    """Replace the target's file. `about` says for a reader what was asked, and when.

    Raises:
        SettingsError: the file cannot be written.
    """
    from cloudtrain.runtime.atomic import write_file
    from cloudtrain.system.private import make_private_folder

    file = refreshed_file(user_folder, target)
    text = json.dumps({"about": about, target: table}, indent=1, ensure_ascii=False) + "\n"
    try:
        make_private_folder(user_folder)
        write_file(file, text.encode())
        file.chmod(0o600)  # whatever the umask is: a file that others may write would not be read again
    except OSError as error:
        hint = "make the folder writable for you"
        raise SettingsError(f"`{file}` cannot be written: {error.strerror}", hint=hint, code="CT919") from None
    return file
