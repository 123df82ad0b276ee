"""Files and folders whose names show that they hold credentials. `secrets.py` judges the
content."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

_TABLES = json.loads(Path(__file__).with_suffix(".json").read_bytes())


def _table(kind: str) -> dict[str, str]:
    """Return what each name of a table means."""
    table = {}
    for what, names in _TABLES[kind].items():
        table.update(dict.fromkeys(names.split(), what))
    return table


_NAMES = _table("names")
_SUFFIXES = _table("suffixes")
_FOLDERS = _table("folders")
_PLACES = _table("places")
"""Pairs of names that mean credentials only together."""

_SUSPECT = re.compile(
    r"credentials(\.(json|ya?ml|toml|ini|cfg))?|secrets?\.(ya?ml|json|ini|cfg|env)|[^/]+\.(env|"
    r"tfvars)|"
    r".*(client[-_]secret|service[-_]?account)[^/]*\.json",
    re.IGNORECASE,
)
"""Names that often mean a secret. Such files are reported, but not left out by default."""

_EXAMPLES = (".example", ".sample", ".template", ".dist")
_ENDINGS = tuple(_SUFFIXES)


def secret_name(path: str) -> tuple[str, str] | None:
    """Return what the file or folder at the path holds, and the pattern that matched; None for an
    ordinary name."""
    *_, folder, name = f"//{path}".split("/")  # a path of one name has an empty folder
    pair = f"{folder}/{name}"
    lowered = name.lower()

    if name in _NAMES:
        return _NAMES[name], name
    if name in _FOLDERS:
        return _FOLDERS[name], f"{name}/"
    if pair in _PLACES:
        return _PLACES[pair], pair
    if lowered.endswith(_ENDINGS):
        suffix = lowered[lowered.rindex(".") :]
        return _SUFFIXES[suffix], f"*{suffix}"
    if ".tfstate." in name:
        return _SUFFIXES[".tfstate"], "*.tfstate.*"
    if name.startswith(".env.") and not name.endswith(_EXAMPLES):
        return _NAMES[".env"], ".env.*"
    return None


def credentials_in(paths: Iterable[str]) -> dict[str, str]:
    """Return what the files at `paths` probably hold, judged by their names and by the names of the
    folders in the paths. Ordinary files are left out."""
    found = {}
    for path in paths:
        parts = path.split("/")
        for length in range(len(parts), 0, -1):
            match = secret_name("/".join(parts[max(length - 2, 0) : length]))
            if match:  # of the file's own name, or of the nearest folder with a telling name
                found[path] = match[0]
                break
        else:
            if _SUSPECT.fullmatch(parts[-1]):
                found[path] = "credentials"
    return found
