"""What an interpreter has: imported by this one, and run as a file by another, which may be older. Stands alone."""

from __future__ import annotations

import json
import os
import platform
import sys
from importlib import metadata

TYPE_CHECKING = False  # as typing.TYPE_CHECKING, without importing typing
if TYPE_CHECKING:
    from collections.abc import Iterable


def versions_of(names: Iterable[str]) -> dict[str, str | None]:
    """The installed version of each distribution; None where there is none."""
    found: dict[str, str | None] = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def machine() -> dict[str, str]:
    """What the markers of requirements ask for."""
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
