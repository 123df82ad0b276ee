"""Processes that meet before the first collective: those that do not come are named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import cloudtrain
from tests.deadlines import DEADLINE
from tests.ports import free_port

pytestmark = pytest.mark.torch

SCRIPT = """
from cloudtrain import runtime
group = runtime.init_process_group("gloo")
print("met", group.rank, flush=True)
runtime.destroy_process_group()
"""


def start(
    folder: Path, rank: int, world: int, port: int, **variables: str
) -> subprocess.Popen[str]:
    """One rank, as a launcher by hand starts it."""
    env = os.environ | {
        "PYTHONPATH": str(Path(cloudtrain.__file__).parents[1]), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
        "RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank), "CLOUDTRAIN_PATIENCE": "3", **variables,
    }  # fmt: skip
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        env=env,
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_ranks_that_do_not_come_are_named(tmp_path: Path) -> None:
    """Of four ranks only 0 comes: it says within its patience who is missing, in words and without a traceback."""
    # it has to arrive itself within it
    started = start(tmp_path, 0, 4, free_port(), CLOUDTRAIN_PATIENCE="10")
    out, errors = started.communicate(timeout=DEADLINE)
    assert out == ""
    assert (
        "error: ranks 1, 2, 3 did not arrive within 10 s; 1 of 4 processes have arrived" in errors
    )
    assert "hint: read the logs of the missing ranks" in errors
    assert "Traceback" not in errors


def test_a_rank_that_finds_no_rank_0_says_where_it_looked(tmp_path: Path) -> None:
    """The address is what one would look at first."""
    port = free_port()
    _, errors = start(tmp_path, 1, 2, port, LOCAL_RANK="0", LOCAL_WORLD_SIZE="1").communicate(
        timeout=DEADLINE
    )
    assert f"error: rank 1 cannot reach rank 0 at `127.0.0.1:{port}` within 3 s" in errors


def test_ranks_that_come_meet(tmp_path: Path) -> None:
    """Two ranks with patience enough."""
    port = free_port()
    ranks = [start(tmp_path, rank, 2, port, CLOUDTRAIN_PATIENCE="100") for rank in range(2)]
    assert [rank.communicate(timeout=DEADLINE)[0] for rank in ranks] == ["met 0\n", "met 1\n"]


def test_a_patience_that_is_no_number_is_refused(tmp_path: Path) -> None:
    """Before anything waits."""
    _, errors = start(tmp_path, 0, 1, free_port(), CLOUDTRAIN_PATIENCE="soon").communicate(
        timeout=DEADLINE
    )
    assert "error: `CLOUDTRAIN_PATIENCE` is `soon`, which is not a number of seconds" in errors
