"""The SDK without its remarks about itself."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

_REMARKS = "azure.ai.ml._utils._experimental"
"""The logger of azure-ai-ml (1.35.2) that calls half of its classes experimental, on import too."""


@contextmanager
def quiet() -> Iterator[None]:
    """No remark reaches stderr, and the logger is afterwards what it was."""
    logger = logging.getLogger(_REMARKS)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
