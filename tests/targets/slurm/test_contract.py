"""What every service promises, kept by a real Slurm cluster: the tests of `tests/targets/test_contract.py`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.targets.places import Place
from tests.targets.slurm.place import slurm
from tests.targets.test_contract import *  # noqa: F403 - all of its tests, with the fixture below

pytestmark = [pytest.mark.lifecycle, pytest.mark.slurm]


@pytest.fixture
def anywhere(place: Place) -> Iterator[Place]:
    """The cluster."""
    with slurm(place) as found:
        yield found
