"""What the bundle's tests share."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

_NOBODY = 65534


@pytest.fixture
def unprivileged() -> Iterator[Path]:
    """A folder owned by the user that the test runs as; never root, for whom every file can be read."""
    folder = Path(tempfile.mkdtemp())
    was = os.geteuid()
    try:
        if was == 0:
            os.chown(folder, _NOBODY, -1)
            os.seteuid(_NOBODY)
        yield folder
    finally:
        os.seteuid(was)
        shutil.rmtree(folder)
