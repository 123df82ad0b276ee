"""One real cluster for all tests here, where Slurm is installed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.targets.slurm.site import Site, environ_of, find_cluster


@pytest.fixture
def cluster() -> Path:
    """The folder of a cluster of three nodes, with accounting."""
    return find_cluster()


@pytest.fixture
def site(cluster: Path, tmp_path: Path) -> Iterator[Site]:
    """The cluster with a shared folder of its own."""
    found = Site(tmp_path, environ_of(cluster, tmp_path))
    yield found
    found.clean_up()


@pytest.fixture
def forgetful_site(tmp_path: Path) -> Iterator[Site]:
    """A cluster without accounting, which forgets a job two seconds after its end."""
    found = Site(tmp_path, environ_of(find_cluster("--forgetful"), tmp_path))
    yield found
    found.clean_up()
