"""The results of `cloudtrain instances --refresh`: the file `instances.TARGET.refreshed.json` in the user's
configuration folder.

The next refresh replaces the whole file, and no refresh ever changes the user's `instances.toml`. Both files
correct the catalogue in the same way, and `instances.toml` takes precedence. The format is JSON, which is read faster
than TOML: the file has hundreds of types and is read for every plan.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from cloudtrain.errors import SettingsError
from cloudtrain.system.trust import read_trusted


class Refreshed(NamedTuple):
    """The results of one `cloudtrain instances --refresh`."""

    file: Path
    location: str
    """The region that was queried."""
    types: int
    """Number of types in the file."""
    added: tuple[str, ...]
    """Types that the catalogue's table lacks."""
    notes: tuple[str, ...] = ()
    """Notes about failed queries, each a line without a period."""


def refreshed_file(user_folder: Path, target: str) -> Path:
    """Return the path of a target's refreshed file."""
    return user_folder / f"instances.{target}.refreshed.json"


def read_refreshed(user_folder: Path, target: str) -> Mapping[str, Any]:
    """Return the table of the last refresh, by name of instance type; empty if there was no refresh.

    Raises:
        SettingsError: another user may have written the file, or it cannot be read, or its format is wrong.
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
        raise SettingsError(
            f"`{file}` is not a price table from `cloudtrain instances --refresh`", hint=hint, code="CT919"
        )
    return table


def write_refreshed(user_folder: Path, target: str, table: Mapping[str, Any], *, about: str) -> Path:
    """Replace the target's refreshed file. `about` is a note for readers of the file: what was queried, and when.

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
        file.chmod(0o600)  # independent of the umask: a file that others may write would not be read again
    except OSError as error:
        hint = "make the folder writable for you"
        raise SettingsError(f"`{file}` cannot be written: {error.strerror}", hint=hint, code="CT919") from None
    return file
