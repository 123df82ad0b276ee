"""Silence azure-ai-ml's warnings about its experimental classes."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

_REMARKS = "azure.ai.ml._utils._experimental"
"""The logger of azure-ai-ml (1.35.2) that calls half of its classes experimental, even on import."""


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the SDK's warnings while the `with` block runs, and restore the logger afterwards."""
    logger = logging.getLogger(_REMARKS)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
