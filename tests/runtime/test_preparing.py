"""Data prepared once on an instance, however many processes ask for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import cloudtrain
from cloudtrain import runtime
from tests.deadlines import DEADLINE

SCRIPT = """
import os, sys, time
from pathlib import Path
from cloudtrain import runtime

def make(aside):
    print("making", flush=True)
    with open("count", "a") as file:
        file.write("x")
    if sys.argv[1:] == ["wait"]:
        time.sleep(600)
    (aside / "tokens").write_text("whole")

print((runtime.prepared("data/tokens", make) / "tokens").read_text(), flush=True)
"""


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """A process that asks for the data."""
    env = os.environ | {"PYTHONPATH": str(Path(cloudtrain.__file__).parents[1])}
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, *arguments],
        cwd=folder,
        env=env,
        text=True,
        stdout=subprocess.PIPE,
    )


def test_of_four_processes_one_prepares(tmp_path: Path) -> None:
    """All four then read the same."""
    asking = [start(tmp_path) for _ in range(4)]
    said = [process.communicate(timeout=DEADLINE)[0].splitlines()[-1] for process in asking]
    assert said == ["whole"] * 4
    assert (tmp_path / "count").read_text() == "x"


def test_after_a_kill_the_next_one_prepares_anew(tmp_path: Path) -> None:
    """What was half done is gone, and nobody waits for the dead."""
    first = start(tmp_path, "wait")
    assert first.stdout is not None
    assert first.stdout.readline() == "making\n"
    first.send_signal(signal.SIGKILL)
    first.communicate()
    out, _ = start(tmp_path).communicate(timeout=DEADLINE)
    assert out == "making\nwhole\n"
    assert [path.name for path in (tmp_path / "data").iterdir() if path.is_dir()] == ["tokens"]


def test_a_failure_leaves_no_folder(tmp_path: Path) -> None:
    """The name means that all of it is there."""
    with pytest.raises(ZeroDivisionError):
        runtime.prepared(tmp_path / "data", lambda _: 1 / 0)
    assert not (tmp_path / "data").exists()
    assert (
        runtime.prepared(tmp_path / "data", lambda aside: (aside / "a").touch())
        == tmp_path / "data"
    )
    assert runtime.prepared(tmp_path / "data", lambda _: 1 / 0) == tmp_path / "data"
