"""Install the script's requirements before it starts."""

from __future__ import annotations

import subprocess
import sys

from cloudtrain.runtime.errors import SetupError

from .failure import last_error

TYPE_CHECKING = False  # as typing.TYPE_CHECKING, without importing typing
if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def install(requirements: str, code: Path, environment: Mapping[str, str], python: str) -> None:
    """Install the requirements file with pip into the container's Python. The container is deleted after the job, so
    pip may overwrite packages of the operating system.

    Raises:
        SetupError: pip failed.
    """
    argv = [python, "-m", "pip", "install", "--disable-pip-version-check", "-r", requirements]
    settings = {"PIP_BREAK_SYSTEM_PACKAGES": "1", "PIP_ROOT_USER_ACTION": "ignore"}
    result = subprocess.run(argv, cwd=str(code), env={**settings, **environment}, stderr=subprocess.PIPE)
    sys.stderr.write(result.stderr.decode("utf-8", "replace"))
    if result.returncode:
        lines = result.stderr.decode("utf-8", "replace").splitlines()
        said = next((line for line in lines if line.startswith("ERROR:")), last_error(lines)[0])
        message = f"`pip install -r {requirements}` failed with exit code {result.returncode}: {said}"
        raise SetupError(message, hint="the whole output is in the log")
