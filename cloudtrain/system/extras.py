"""Optional dependencies. They are imported late, and the error for a missing one shows the exact pip line."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from cloudtrain.errors import MissingExtra


def require(module: str, *, extra: str) -> ModuleType:
    """Import and return `module`, which `pip install 'cloudtrain[EXTRA]'` installs.

    An import error from inside the module (a broken installation) is passed on unchanged.

    Raises:
        MissingExtra: the module is not installed.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or module.split(".")[0] != error.name.split(".")[0]:
            raise
        package = next((name for start, name in _PACKAGES.items() if f"{module}.".startswith(f"{start}.")), module)
        raise MissingExtra(f"`{package}` is not installed", hint=f"pip install 'cloudtrain[{extra}]'") from error


_PACKAGES = {
    "botocore": "boto3",
    "s3transfer": "boto3",
    "boto3": "boto3",
    "azure.core": "azure-core",
    "azure.identity": "azure-identity",
    "azure.storage.blob": "azure-storage-blob",
    "azure.ai.ml": "azure-ai-ml",
}
"""Maps modules to their package names in `pip list`. boto3 installs its own dependencies."""
