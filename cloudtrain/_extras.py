"""Optional dependencies: imported late, and when one is missing the error names the exact pip line."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from cloudtrain.errors import MissingExtra


def require(module: str, *, extra: str) -> ModuleType:
    """Import `module`, or say which extra of cloudtrain brings it.

    An import error from inside the module (a broken installation) is passed on as it is.

    Raises:
        MissingExtra: the module is not installed.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or module.split(".")[0] != error.name.split(".")[0]:
            raise
        raise MissingExtra(f"`{module}` is not installed", hint=f"pip install 'cloudtrain[{extra}]'") from error
