"""A place where jobs run, cleaned up afterwards."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.targets.places import Place


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """This machine, with a state folder of its own."""
    here = Place(tmp_path, dict(os.environ))
    yield here
    here.clean_up()
