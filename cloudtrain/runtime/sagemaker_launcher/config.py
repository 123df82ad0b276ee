"""The files that SageMaker writes into every container."""

from __future__ import annotations

import json

from cloudtrain.runtime.errors import SetupError

TYPE_CHECKING = False  # as typing.TYPE_CHECKING, without importing typing
if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Any


def read_config(path: Path) -> Mapping[str, Any]:
    """Read a configuration file.

    Raises:
        SetupError: the file is missing, or is not a JSON object.
    """
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise SetupError(
            f"`{path}` cannot be read: {error}", hint="run this launcher in a SageMaker container, which has the file"
        ) from None
    if not isinstance(found, dict):
        raise SetupError(f"`{path}` does not hold a JSON object")
    return found
