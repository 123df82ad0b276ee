"""Report the installed packages and the platform of a Python interpreter. cloudtrain imports this
module for its own interpreter, and runs it as a script with other interpreters, so it imports only
the standard library."""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from collections.abc import Iterable
from importlib import metadata


def versions_of(names: Iterable[str]) -> dict[str, str | None]:
    """Map package names to their installed versions; None for a package that is not installed."""
    return {name: _version_of(name) for name in names}


def _version_of(name: str) -> str | None:
    try:
        package = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None
    headers = package.read_text("METADATA") or package.read_text("PKG-INFO") or ""
    # metadata.version would parse the whole description
    found = re.search(r"(?mi)^Version:[ \t]*(\S+)", headers)
    return found[1] if found else None


def machine() -> dict[str, str]:
    """Return the values of environment markers, such as `python_version`, for this interpreter and
    platform."""
    return {
        "python_version": ".".join(platform.python_version_tuple()[:2]),
        "python_full_version": platform.python_version(),
        "sys_platform": sys.platform,
        "platform_system": platform.system(),
        "platform_machine": platform.machine(),
        "os_name": os.name,
        "implementation_name": sys.implementation.name,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps([versions_of(json.loads(sys.argv[1])), machine()]))
