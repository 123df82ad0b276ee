"""Comparisons with packages of exact versions, which only the development environment has."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest

PINNED = "CLOUDTRAIN_TEST_PINNED" in os.environ
"""Read before the fixtures that remove cloudtrain's variables."""


def skip_guard(reason: str) -> NoReturn:
    """Skip a comparison for which another version is installed. Where CLOUDTRAIN_TEST_PINNED is set, as in CI, the
    exact versions must be there, and the test fails: a guard that skips guards nothing."""
    if PINNED:
        pytest.fail(reason)
    pytest.skip(reason)
