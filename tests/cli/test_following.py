"""Following a real run on this machine from a real terminal: Ctrl-C, kill -9, and the commands of another shell."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest

from tests.deadlines import DEADLINE

pytestmark = pytest.mark.lifecycle

REPOSITORY = Path(__file__).parents[2]
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")

TRAIN = """\
import itertools, pathlib, time
from cloudtrain import runtime
for step in itertools.count():
    runtime.report(step=step, loss=1 / (step + 1))
    if step == 2:
        print("going", flush=True)
    if step > 2:
        time.sleep(0.05)
    if pathlib.Path(FINISH).exists():
        print("done", flush=True)
        break
"""


def shell(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A command from another shell."""
    return subprocess.run(
        [sys.executable, "-m", "cloudtrain", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=environ(),
    )


def environ() -> dict[str, str]:
    """The environment of a user with a terminal."""
    kept = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    return {**kept, "TERM": "xterm-256color", "PYTHONPATH": str(REPOSITORY)}


def state(name: str = "last") -> str:
    """The state of a run, as `cloudtrain status --json` says it."""
    return str(json.loads(shell("status", name, "--json").stdout)["state"])


def wait_for(wanted: str) -> None:
    """Until the newest run has that state."""
    deadline = time.monotonic() + DEADLINE
    while (found := state()) != wanted:
        assert time.monotonic() < deadline, f"still {found}"
        time.sleep(0.05)


@pytest.fixture
def terminal(clean_environment: Path) -> Iterator[pexpect.spawn[str]]:
    """`cloudtrain submit job.yaml` in a terminal, past the first lines of the run; nothing is left behind."""
    script = TRAIN.replace("FINISH", repr(str(clean_environment / "finish")))
    (clean_environment / "src").mkdir()
    (clean_environment / "src" / "train.py").write_text(script)
    (clean_environment / "job.yaml").write_text(
        "name: steps\nsource_dir: src\nentry_point: train.py\n"
    )
    child: pexpect.spawn[str] = pexpect.spawn(
        sys.executable, ["-m", "cloudtrain", "submit", "job.yaml"], env=environ(),  # type: ignore[arg-type]
        dimensions=(24, 80), encoding="utf-8", timeout=DEADLINE,
    )  # fmt: skip
    try:
        child.expect("going")
        child.expect("  min ")
        yield child
    finally:
        child.close(force=True)
        if state() not in ("succeeded", "failed", "stopped", "lost"):
            shell("stop", "last", "--wait")


@pytest.mark.slow
def test_ctrl_c_leaves_the_run_alone(terminal: pexpect.spawn[str]) -> None:
    """130, three lines that say what to type; the run goes on until it is stopped from another shell."""
    terminal.sendintr()
    terminal.expect(pexpect.EOF)
    terminal.close()
    text = ESCAPE.sub("", terminal.before or "")
    assert terminal.exitstatus == 130
    name = re.search(r"`(steps-\w+-1)` continues", text)
    assert name is not None, text
    assert f"stop it with: `cloudtrain stop {name[1]}`" in text
    assert state() == "running"
    assert shell("stop", name[1], "--wait").returncode == 0
    assert state() == "stopped"


@pytest.mark.slow
def test_killed_command_leaves_the_run_alone(
    terminal: pexpect.spawn[str], clean_environment: Path
) -> None:
    """kill -9 of the command: the run goes on, and another shell follows it to its end, no line twice."""
    assert terminal.pid is not None
    os.kill(terminal.pid, signal.SIGKILL)
    terminal.wait()
    assert state() == "running"
    follower = subprocess.Popen(
        [sys.executable, "-m", "cloudtrain", "logs", "last", "-f"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ(),
    )  # fmt: skip
    (clean_environment / "finish").touch()
    out, err = follower.communicate(timeout=DEADLINE)
    assert follower.returncode == 0
    lines = out.splitlines()
    assert lines.count("[rank 0] going") == lines.count("[rank 0] done") == 1
    steps = [int(found[1]) for line in lines if (found := re.search(r"step=(\d+)", line))]
    assert steps == sorted(set(steps))  # a fast script prints ten lines a second
    assert "succeeded" in err


@pytest.mark.slow
def test_follows_to_the_end_with_a_live_table(
    terminal: pexpect.spawn[str], clean_environment: Path
) -> None:
    """The last table has the last value, the result says so too, and what it wrote can be listed and waited for."""
    (clean_environment / "finish").touch()
    terminal.expect(pexpect.EOF)
    terminal.close()
    text = ESCAPE.sub("", terminal.before or "")
    assert terminal.exitstatus == 0
    assert "[metrics]" not in text
    last = re.search(
        r"succeeded after \S+: loss ([0-9.e-]+) \(step (\d+)\)", " ".join(text.split())
    )
    assert last is not None, text
    # a quick run may end before there is more than one
    table = text[text.rindex("step ", 0, text.rindex("loss  ")) :]
    assert re.search(rf"step {last[2]}\s", table)
    wait_for("succeeded")
    assert shell("wait", "last").returncode == 0
    listed = json.loads(shell("ps", "--all", "--json").stdout)
    assert [(run["job"], run["state"]) for run in listed] == [("steps", "succeeded")]


@pytest.mark.slow
def test_stop_while_following_ends_the_command(terminal: pexpect.spawn[str]) -> None:
    """Stopped from another shell, the follower ends by itself with 1 and says that the run was stopped."""
    assert shell("stop", "last").returncode == 0
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 1
    assert "was stopped" in ESCAPE.sub("", terminal.before or "")
