"""A small script that reports one metric, and sweeps of it on this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cloudtrain as ct

SCRIPT = """\
import argparse, os, signal, time
from cloudtrain import runtime
parser = argparse.ArgumentParser()
parser.add_argument("--rate", type=float, default=0.0)
parser.add_argument("--mode", default="good")
given = parser.parse_args()
with open(os.environ["STARTED"], "a") as file:
    file.write(os.environ["CLOUDTRAIN_RUN_NAME"] + "\\n")
if given.mode == "dead" or (given.mode == "later" and not os.path.exists(os.path.dirname(os.environ["STARTED"]) + "/ready")):
    raise SystemExit("no such data")
if given.mode == "killed":
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(600)
if given.mode == "silent":
    runtime.report(loss=1.0)
else:
    for step in range(3):
        runtime.report(step=step, score=float("nan") if given.mode == "nan" else -(given.rate - 0.3) ** 2 + step)
"""

MakeSweep = Callable[..., ct.Sweep]


@pytest.fixture
def started(tmp_path: Path) -> Path:
    """Where the script writes down each run that started it."""
    return tmp_path / "started.txt"


@pytest.fixture
def make_sweep(tmp_path: Path, started: Path) -> MakeSweep:
    """`make_sweep(trials=3)` is a sweep of the script, with other fields."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text(SCRIPT)

    def make(**fields: Any) -> ct.Sweep:
        job = {
            "name": "small",
            "source_dir": str(tmp_path / "src"),
            "entry_point": "train.py",
            "environment": {"variables": {"STARTED": str(started)}},
            **fields.pop("job", {}),
        }
        given = {
            "search": {"rate": {"uniform": [0, 1]}},
            "objective": {"maximize": "score"},
            "trials": 3,
            **fields,
        }
        return ct.Sweep(name="small-sweep", job=job, **given)

    return make
