"""The points at which a submission is killed, as parameters: some of them in `make test`, all of them in `make test-all`."""

from __future__ import annotations

from typing import Any

import pytest

OFTEN = 15
"""Every so many-th point is in `make test`."""


def kill_points(count: int) -> list[Any]:
    """1 to `count`."""
    return [
        pytest.param(point, marks=[] if point % OFTEN == 1 else [pytest.mark.slow])
        for point in range(1, count + 1)
    ]
