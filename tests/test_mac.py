"""The interpreter of the cell `mac` of tools/run/cells.py hides what it says, from every process of cloudtrain."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.skipif(
    "encodings._like_a_mac" not in sys.modules, reason="for the interpreter of the cell `mac`"
)

ASK = """
import os, select, sys, time
sys.path.append(sys.argv[1])
from cloudtrain.runtime.proc import stat_fields
from cloudtrain.system.processes import HAS_PROC, boot_id
from cloudtrain.targets.local.processes import environment_of
print(HAS_PROC, hasattr(os, "pidfd_open"), hasattr(time, "CLOCK_BOOTTIME"), hasattr(select, "epoll"))
print( bool(boot_id()), bool(stat_fields(os.getpid())))
print((environment_of(os.getpid()) or {}).get("A"))
"""


@pytest.mark.parametrize(
    "first", ["", "import os", "import time", "import select", "import pathlib"]
)
@pytest.mark.parametrize("options", [[], ["-I"], ["-I", "-S"]], ids=" ".join)
def test_no_process_sees_linux(options: list[str], first: str) -> None:
    """Not the supervisor either, which starts without site-packages and with a given environment."""
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    command = [sys.executable, *options, "-c", first + ASK, root]
    answer = subprocess.run(command, env={"A": "b"}, capture_output=True, text=True, check=True)
    assert answer.stdout.split() == ["False"] * 6 + ["b"]


def test_names_of_linux_are_missing() -> None:
    """A call that Linux alone has is an AttributeError, as on a Mac."""
    assert not hasattr(os, "sched_getaffinity")
    assert not hasattr(time, "CLOCK_BOOTTIME")


def test_the_tests_see_linux() -> None:
    """Only cloudtrain is deceived: tests may look at what it did."""
    assert os.path.exists("/proc/self/environ")
