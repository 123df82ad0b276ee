"""Random histories of submissions against a model of what a user may be told; `make histories` runs 100,000."""

from __future__ import annotations

import pytest

from tests.lifecycle.submission.histories import history

pytestmark = pytest.mark.lifecycle


@pytest.mark.parametrize("first", range(0, 1000, 100))
@pytest.mark.slow_after(5)
def test_histories(first: int) -> None:
    """A hundred histories of processes, stores, clocks and services agree with the model."""
    for seed in range(first, first + 100):
        history(seed)
