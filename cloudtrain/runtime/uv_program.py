"""Finds uv, which builds environments and resolves requirements."""

from __future__ import annotations

import shutil
from importlib import import_module


def find_uv(path: str | None = None) -> str | None:
    """Return the program uv: the first in the folders of `path` (default: PATH), or else that of the installed package
    `uv`. None if there is none."""
    try:
        return shutil.which("uv", path=path) or str(import_module("uv").find_uv_bin())
    except (ImportError, AttributeError, OSError):
        return None
