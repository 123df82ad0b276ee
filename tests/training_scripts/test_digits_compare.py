"""`compare.py` beside the digits script: all exchanges average the same gradients, and send what theory says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deadlines import DEADLINE

pytestmark = pytest.mark.torch

SCRIPT = Path(__file__).parents[2] / "training_scripts" / "digits_ddp" / "compare.py"


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    """The words of each line, of three processes, whose parts of the gradients are not of one size."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "3",
        str(SCRIPT),
    ]
    small = "--hidden 256 --layers 3 --batch 8 --rounds 1 --buckets [0.1,25] --accumulate [5] --shares [8,16]".split()
    done = subprocess.run(
        [*command, *small],
        cwd=tmp_path_factory.mktemp("compare"),
        env={"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"},
        text=True,
        capture_output=True,
        timeout=DEADLINE,
    )
    assert done.returncode == 0, done.stderr
    return [line.split() for line in done.stdout.splitlines()]


MEGABYTES = 4 * (64 * 256 + 256 + 2 * (256 * 256 + 256) + 256 * 10 + 10) / 1e6


def row(tables: list[list[str]], *name: str) -> list[str]:
    """The cells behind a row's name, in the first table that has it."""
    return next(line[len(name) :] for line in tables if tuple(line[: len(name)]) == name)


@pytest.mark.parametrize("name", ["DDP", "all_reduce", "ring", "sharded servers", "one server"])
def test_every_exchange_gives_the_gradients_of_one_process(
    tables: list[list[str]], name: str
) -> None:
    """Of the whole batch, which no process of the three has seen."""
    assert float(row(tables, *name.split())[-1]) < 1e-7


@pytest.mark.parametrize(
    ("name", "worker", "busiest"),
    [
        ("DDP", 4 / 3, 4 / 3),
        ("all_reduce", 4 / 3, 4 / 3),
        ("ring", 4 / 3, 4 / 3),
        ("sharded servers", 4 / 3, 4 / 3),
        ("one server", 1, 2),
    ],
)
def test_theory_says_what_the_kernel_counts(
    tables: list[list[str]], name: str, worker: float, busiest: float
) -> None:
    """2 (n - 1) / n of the gradients for each process of a ring; n - 1 times the gradients for a server."""
    cells = [float(cell) for cell in row(tables, *name.split())[:4]]
    predicted = [worker * MEGABYTES, busiest * MEGABYTES]
    assert cells[:2] == pytest.approx(predicted, abs=0.05)
    if Path("/proc/self/io").exists():
        assert cells[2:] == pytest.approx(predicted, abs=0.15)


@pytest.mark.parametrize("share", [8, 16])
def test_the_speed_up_is_of_the_same_batch(tables: list[list[str]], share: int) -> None:
    """Three processes share the batch that one has alone."""
    each, one, three, gain = row(tables, str(3 * share))
    assert int(each) == share
    assert float(gain.rstrip("x")) == pytest.approx(float(one) / float(three), rel=0.2)


def test_small_buckets_are_many(tables: list[list[str]]) -> None:
    """One bucket holds everything at 25 MB; at 0.1 MB each wide layer has its own."""
    assert int(row(tables, "25", "MB")[0]) == 1
    assert int(row(tables, "0.1", "MB")[0]) >= 3


def test_no_sync_sends_once(tables: list[list[str]]) -> None:
    """Five micro-batches send five times the gradients when each is exchanged."""
    if not Path("/proc/self/io").exists():
        pytest.skip("the kernel does not count")
    each, held = (float(cell) for cell in row(tables, "5")[-2:])
    assert held == pytest.approx(MEGABYTES * 4 / 3, abs=0.15)
    assert each == pytest.approx(5 * held, rel=0.1)
